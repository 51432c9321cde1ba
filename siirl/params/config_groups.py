"""Config groups and options, read from file names under configs/.

Imports no Hydra, so that shell completion is fast.
"""

from siirl.errors import MissingAssetError
from siirl.files.paths import config_dir
from siirl.params.key_names import MODEL_POLICY

PRIMARY = "train"
OPTIONAL_GROUPS = frozenset({"reward", "experiment"})  # null by default: pipeline= and env= choose


def options() -> dict[str, tuple[str, ...]]:
    """The groups under configs/ with their options.

    Raises:
        MissingAssetError: The folder lacks its primary file: the installation is incomplete.
    """
    folder = config_dir()
    if not (folder / f"{PRIMARY}.yaml").is_file():
        raise MissingAssetError(
            f"No {PRIMARY}.yaml in {folder}: the installation is incomplete; install siirl again "
            "or use a whole checkout."
        )
    groups = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("_")
    )
    return {path.name: tuple(sorted(file.stem for file in path.glob("*.yaml"))) for path in groups}


def summary(group: str, option: str) -> str:
    """The first comment line of an option's file, for `--help`."""
    lines = (config_dir() / group / f"{option}.yaml").read_text().splitlines()
    comments = (
        line.removeprefix("#").strip()
        for line in lines
        if line.startswith("#") and "@package" not in line
    )
    return next(comments, "")


def policy_choice(name: str) -> str:
    """The word of the command line that chooses a shipped policy."""
    return f"model={name}" if name in options()["model"] else f"{MODEL_POLICY}={name}"
