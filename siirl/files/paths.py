"""Paths that keys name, and those of configs/ and assets/ in a checkout or a wheel."""

import os
from pathlib import Path

from siirl.errors import ConfigError, MissingAssetError
from siirl.files.hub_place import SCHEME, hub_place, is_hub_id

LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Bytes of a file's name and of a path on Linux (limits.h: NAME_MAX, and PATH_MAX with its NUL)."""
SHOWN = 60  # characters of a name that is too long
PACKAGE = Path(__file__).resolve().parent.parent
ASSETS = "assets"


def _shipped(name: str) -> Path:
    checkout = PACKAGE.parent / name
    # `configs` beside site-packages' siirl may belong to another project: a checkout has
    # a pyproject.toml.
    return checkout if (PACKAGE.parent / "pyproject.toml").is_file() else PACKAGE / "_data" / name


def config_dir() -> Path:
    """Folder with train.yaml and the config groups."""
    return _shipped("configs")


def asset_path(name: str) -> Path:
    """A file or folder below assets/."""
    return _shipped(ASSETS) / name


def fault_of_path(text: str) -> str | None:
    """Reason why no file system of Linux can hold a path, with the remedy; None: it can."""
    if "\0" in text:
        return f"has a NUL character, which no path may have: {text[:SHOWN]!r}."
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # its message has no name
        return f"{text[:SHOWN]!r} names the home of a user who does not exist: write the folder."
    longest = max(path.parts, key=_bytes, default="")
    if _bytes(longest) > LONGEST_NAME:
        return (
            f"has a file name of {_bytes(longest)} bytes, but at most {LONGEST_NAME} are allowed: "
            f"{longest[:SHOWN]}…; choose a shorter one."
        )
    if _bytes(str(path)) > LONGEST_PATH:
        return (
            f"has a path of {_bytes(str(path))} bytes, but at most {LONGEST_PATH} are allowed: "
            f"{str(path)[:SHOWN]}…; choose a shorter one."
        )
    return None


def usable_path(text: str, *, key: str) -> Path:
    """`text` as a path, with the home folder for `~`.

    Raises:
        ConfigError: No file system can hold it.
    """
    fault = fault_of_path(text)
    if fault is not None:
        raise ConfigError(f"{key} {fault}")
    return Path(text).expanduser()


def why_no_file(path: Path) -> str:
    """Follows a key's value in messages about a `path` that is not a regular file."""
    if path.is_dir():
        return "is a folder: name a file in it"
    return "is not a regular file" if path.exists() else "there is no such file"


def _bytes(name: str) -> int:
    return len(os.fsencode(name))


def find(path: str, *, key: str = "path") -> Path:
    """The file or folder that a config key names. `assets/...` is the shipped one, wherever siirl
    is installed; `hf://...` is its copy in the Hub's cache; any other path is returned unchanged.

    Raises:
        ConfigError: `hf://` without a valid location after it; a path that no file system can hold.
        MissingAssetError: The Hub does not serve the location.
    """
    if path.startswith(SCHEME):
        from siirl.files.hub_files import local_copy

        place = hub_place(path, place=key)
        assert place is not None
        return local_copy(place, key=key)[0]
    given = usable_path(path, key=key)
    if given.parts[:1] == (ASSETS,) and not given.exists():
        return asset_path(str(Path(*given.parts[1:])))
    return given


def find_model(path: str, *, key: str) -> Path:
    """As `find`; an id `owner/name` without such a folder names a repository on the Hub."""
    if not path:
        raise ConfigError(f"{key} is empty: name a folder.")
    found = find(path, key=key)
    if found.exists() or not is_hub_id(path):
        return found
    try:
        return find(f"{SCHEME}{path}", key=key)
    except MissingAssetError as error:
        raise not_as_id(path, key=key, error=error) from error


def not_as_id(path: str, *, key: str, error: MissingAssetError) -> MissingAssetError:
    """The error for a plain id, which may also be a misspelt folder."""
    reason = str(error).removeprefix(f"{key}={SCHEME}").partition(": ")[2]
    return MissingAssetError(
        f"{key}={path}: there is no folder {path} here; as an id on the Hub: {reason}"
    )
