"""siirl: reinforcement learning of embodied policies and language models (see README.md).

`envs`, `vjepa` and `pipelines` are installed as top-level packages, and another distribution may
use the same names. The first import of siirl locates each of them without importing it, and raises
if one is not siirl's own.
"""

import _signal  # type: ignore[import-not-found]
import sys


def is_command() -> bool:
    """Whether Python was started as the script `siirl`, or as `python -m siirl…`."""
    started = sys.argv[0] if sys.argv else ""
    if started.rpartition("/")[2] == "siirl":
        return True
    return started == "-m" and any(
        word == "siirl" or word.startswith("siirl.") for word in sys.orig_argv
    )


def is_spawned() -> bool:
    """Whether multiprocessing has started this process, with its parent's arguments."""
    return sys.orig_argv[-1:] == ["--multiprocessing-fork"]


def program(module: str) -> str:
    """A subcommand's command line, in the form that started this process: `siirl report`, or
    `python -m siirl.report`.
    """
    name = module.rpartition(".")[2]
    if sys.argv[0].rpartition("/")[2] == f"{name}.py":
        return f"python -m {module}"
    return f"siirl {name.replace('_', '-')}"


if is_command():
    # Until `interrupts` is imported and listens, Ctrl-C ends the process without a traceback.
    # `_signal` is built in; importing `signal` takes ten milliseconds, and Ctrl-C during them
    # prints a traceback.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import importlib.util  # noqa: E402 - handle the signal first
from pathlib import Path  # noqa: E402

from siirl import interrupts  # noqa: E402

__version__ = "0.1.0"  # the only definition: pyproject.toml reads it here
COMPANIONS = ("envs", "vjepa", "pipelines")


def check_companions() -> None:
    """Raise ImportError if `envs`, `vjepa` or `pipelines` are not next to siirl's folder."""
    home = Path(__file__).resolve().parent.parent
    for name in COMPANIONS:
        spec = importlib.util.find_spec(name)
        locations = (
            [] if spec is None else list(spec.submodule_search_locations or [spec.origin or ""])
        )
        if not any(Path(location).resolve() == home / name for location in locations):
            found = (
                f"{locations[0]} comes first on sys.path" if locations else "the package is missing"
            )
            raise ImportError(
                f"siirl needs its own package {name!r} at {home / name}, but {found}. "
                f"Uninstall or rename the other {name!r}, or install siirl into a separate "
                "environment (`make setup`)."
            )


# Handle signals before imports that take seconds. A spawned process, such as vLLM's, has its own
# handlers: ended at once, it would leave shared memory behind.
if is_command() and not is_spawned():
    interrupts.listen()
check_companions()
