"""Selects LIBERO's assets: a user's folder, the benchmark's (installed or hub), or stand-ins.

A folder is checked before anything is built; an incomplete one is refused with its missing files.
Stand-ins raise a warning once per process and are named in the environment's spec and infos.
"""

import functools
import os
import socket
import urllib.parse
import warnings
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from envs.libero.folders import cache_folder, package_folder
from envs.libero.stand_in.stand_ins import stand_in_files, stand_in_folder

AUTO, STAND_IN = "auto", "stand_in"
LABEL = "stand-in"
HUB_REPOSITORY = "lerobot/libero-assets"  # the repository that hf-libero 0.1.4 uses
NOTICE = (
    "LIBERO runs on stand-in assets: geometry that this project generates, not the benchmark's. "
    "Success rates on it are NOT LIBERO scores. Set env.assets to a folder of LIBERO's assets for "
    "those (docs/libero.md)."
)
HOW_TO = (
    f"Get them by: hf download {HUB_REPOSITORY} --repo-type dataset --local-dir FOLDER, "
    "or: git clone https://github.com/Lifelong-Robot-Learning/LIBERO (FOLDER is "
    "libero/libero/assets there); or use env.assets=stand_in."
)
SHORT_NOTICE = f"{LABEL} assets: not LIBERO scores"  # fits into the strip above a video
SHOWN = 5  # missing files named in the message


class DamagedDescription(ValueError):
    """An asset description is not MJCF; the message names the file."""


@dataclass(frozen=True)
class Assets:
    """A complete folder of assets."""

    folder: Path
    stand_in: bool

    @property
    def label(self) -> str:
        """Label in infos and reports: `stand-in`, or the folder."""
        return LABEL if self.stand_in else str(self.folder)


class StandInWarning(UserWarning):
    """This run's numbers are not LIBERO scores."""


class IncompleteAssetsWarning(UserWarning):
    """A folder of assets is incomplete; `auto` tries the next source."""


def find_assets(wanted: str | Path) -> Assets:
    """Return the assets that `env.assets` selects.

    Args:
        wanted: A folder; `stand_in`; or `auto`: the installed folder, else the cached one, else a
            download from the Hub if it is reachable, else stand-ins.

    Raises:
        ValueError: The folder is missing, incomplete or damaged; the message has the files and the
            remedy.
    """
    if wanted == STAND_IN:
        return _stand_ins()
    if wanted == AUTO:
        folder = _auto_folder()
        return _stand_ins() if folder is None else Assets(folder, stand_in=False)
    folder = Path(wanted).expanduser().absolute()
    if not folder.is_dir():
        raise ValueError(
            f"env.assets={str(wanted)!r} is not a folder; it may also be {AUTO} or {STAND_IN}. "
            f"{HOW_TO}"
        )
    _check_complete(folder)
    return Assets(folder, stand_in=False)


def missing_files(folder: Path) -> list[str]:
    """Return needed files below `folder` that are missing or empty.

    The five suites need descriptions, and the meshes and textures named in them.

    Raises:
        DamagedDescription: A description is unreadable.
    """
    missing = []
    for path, content in stand_in_files():
        # the stand-ins define the needed files: same paths, same styles of floor and wall
        if not _has_content(folder / path):
            missing.append(path)
        elif isinstance(content, str):
            missing += [
                str(file.relative_to(folder))
                for file in _named_files(folder / path, root=folder)
                if not _has_content(file)
            ]
    return list(dict.fromkeys(missing))


def _has_content(file: Path) -> bool:
    # an interrupted download or copy leaves empty files
    return file.is_file() and file.stat().st_size > 0


def _named_files(description: Path, *, root: Path) -> list[Path]:
    try:
        asset = ET.parse(description).getroot().find("asset")
    except ET.ParseError as error:
        raise DamagedDescription(
            f"a damaged description, {description.relative_to(root)} ({error})"
        ) from error
    named = [] if asset is None else [node.get("file", "") for node in asset.findall("./*[@file]")]
    files = [Path(os.path.normpath(description.parent / file)) for file in named]
    return [file for file in files if file.is_relative_to(root)]


@functools.cache
def _check_complete(folder: Path) -> None:
    fault = _fault(folder)
    if fault is not None:
        raise ValueError(f"env.assets={str(folder)!r} {fault}. {HOW_TO}")


def _fault(folder: Path) -> str | None:
    """Predicate of a sentence on the folder's fault; None if it is complete."""
    try:
        missing = missing_files(folder)
    except DamagedDescription as error:
        return f"holds {error}"
    if not missing:
        return None
    return f"lacks {', '.join(missing[:SHOWN])}" + (
        f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    )


@functools.cache
def _stand_ins() -> Assets:
    warnings.warn(NOTICE, StandInWarning, stacklevel=2)
    return Assets(stand_in_folder(), stand_in=True)


@functools.cache
def _auto_folder() -> Path | None:
    cached = cache_folder() / "assets"
    for folder in (package_folder() / "assets", cached):
        fault = _fault(folder) if folder.is_dir() else None
        if fault is not None:
            warnings.warn(
                f"The folder {folder} {fault}; env.assets={AUTO} tries the next source.",
                IncompleteAssetsWarning,
                stacklevel=2,
            )
        elif folder.is_dir():
            return folder
    if not _hub_answers():
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        # locks: one server downloads, the others wait
        snapshot_download(HUB_REPOSITORY, repo_type="dataset", local_dir=cached)
        _check_complete(cached)
    except (HTTPError, OSError, ValueError) as error:
        # the Hub's own errors are OSErrors, broken connections are not
        warnings.warn(
            f"LIBERO's assets could not be downloaded from the Hub ({error}).",
            StandInWarning,
            stacklevel=2,
        )
        return None
    return cached


def _hub_answers() -> bool:
    """Whether the Hub answers within two seconds; its client would try for a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return False
    address = urllib.parse.urlparse(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=2.0):
            return True
    except OSError:
        return False
