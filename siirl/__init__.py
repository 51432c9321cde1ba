"""siirl: reinforcement learning of policies that act. README.md tells how to use it, this file only
guards its neighbours.

`envs`, `vjepa` and `pipelines` are installed as top-level packages, with names that another
distribution may use too. So the first import of siirl looks where each would be imported from,
without importing it, and refuses to go on with a stranger.
"""

import importlib.util
from pathlib import Path

from siirl import interrupts

__version__ = "0.1.0"  # the only place: pyproject.toml reads it here
COMPANIONS = ("envs", "vjepa", "pipelines")


def check_companions() -> None:
    """Raise ImportError if `envs`, `vjepa` or `pipelines` would come from elsewhere than the folder
    that holds siirl.
    """
    home = Path(__file__).resolve().parent.parent
    for name in COMPANIONS:
        spec = importlib.util.find_spec(name)
        locations = (
            [] if spec is None else list(spec.submodule_search_locations or [spec.origin or ""])
        )
        if not any(Path(location).resolve() == home / name for location in locations):
            found = (
                f"{locations[0]} comes first on sys.path"
                if locations
                else "there is no such package"
            )
            raise ImportError(
                f"siirl needs its own package {name!r} at {home / name}, but {found}. "
                f"Uninstall or rename the other {name!r}, or install siirl into an environment of its own (`make setup`)."
            )


if (
    interrupts.is_command()
):  # a signal must not meet a command unprepared while it imports what it needs, for seconds
    interrupts.listen()
check_companions()
