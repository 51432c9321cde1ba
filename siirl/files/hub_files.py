"""Downloads a `HubPlace` from the Hugging Face Hub once, into its cache on this machine.

The Hub is asked first, with a short timeout. If it does not answer, a complete copy in the cache
(HF_HOME) is used. A place that names its commit is read from the cache without asking. HF_ENDPOINT
and HF_HUB_OFFLINE have huggingface_hub's meaning. Left out: a language model given by its id
(siirl.models.hub).
"""

import functools
import logging
import re
from pathlib import Path

from siirl.errors import MissingAssetError
from siirl.files.hub_place import HubPlace
from siirl.files.hub_refusals import refusal

logger = logging.getLogger(__name__)

# The Hub answers within a second; a slower connection cannot download gigabytes either.
PATIENCE_S = 5.0
COMMIT = re.compile(r"[0-9a-f]{40}")
OTHER_FORMATS = (
    *("*.bin", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.pth", "*.tflite"),
    *("flax_*", "tf_*", "onnx/*", "openvino/*", "coreml/*"),
)
"""Weights for other programs, not downloaded; repositories often keep them beside safetensors
files.
"""
LISTED = 8  # entries of a repository in a message


@functools.cache
def local_copy(place: HubPlace, *, key: str) -> tuple[Path, HubPlace]:
    """The file or folder of a place on this machine, and the place with its commit.

    Args:
        place: A model or a data set, or a file or folder in it.
        key: Key or flag that names it, for messages.

    Raises:
        MissingAssetError: No such repository, revision or path; or the Hub cannot be reached, and
            the cache has no complete copy.
    """
    from huggingface_hub import constants

    is_pinned = place.revision is not None and COMMIT.fullmatch(place.revision) is not None
    if is_pinned or constants.is_offline_mode():
        folder = _cached(place)
        if folder is not None:
            return _within(folder, place, key), _pinned(place, folder)
    return _downloaded(place, key)


def _downloaded(place: HubPlace, key: str) -> tuple[Path, HubPlace]:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    try:
        HfApi().repo_info(
            place.repository,
            revision=place.revision,
            repo_type=place.kind,
            timeout=PATIENCE_S,
        )
    except (HfHubHTTPError, HTTPError, OfflineModeIsEnabled) as error:
        reason, remedy = _reason(place, error)
        folder = _cached(place)
        if folder is None:
            raise MissingAssetError(f"{key}={place}: {reason}. {remedy}") from error
        logger.warning("%s: %s, so its copy in %s is used.", place, reason, folder)
        return _within(folder, place, key), _pinned(place, folder)
    patterns = [place.path, f"{place.path}/*"] if place.path else None
    try:
        folder = Path(
            snapshot_download(
                place.repository,
                revision=place.revision,
                repo_type=place.kind,
                allow_patterns=patterns,
                ignore_patterns=list(OTHER_FORMATS),
            )
        )
    except (HfHubHTTPError, HTTPError, OSError) as error:
        raise MissingAssetError(
            f"{key}={place}: the download failed ({str(error) or type(error).__name__}). Start "
            "again: finished files stay in the Hub's cache."
        ) from error
    return _within(folder, place, key), _pinned(place, folder)


def _cached(place: HubPlace) -> Path | None:
    """The snapshot in the cache; None if it is missing or known to be incomplete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            place.repository,
            revision=place.revision,
            repo_type=place.kind,
            allow_patterns=[place.path, f"{place.path}/*"] if place.path else None,
            ignore_patterns=list(OTHER_FORMATS),
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    there = Path(folder) / place.path
    return Path(folder) if there.exists() else None


def _within(folder: Path, place: HubPlace, key: str) -> Path:
    path = folder / place.path
    if path.exists():
        return path
    entries = sorted(entry.name for entry in folder.iterdir())
    raise MissingAssetError(
        f"{key}={place}: the repository has no {place.path}. It contains: "
        f"{', '.join(entries[:LISTED]) or 'nothing'}. Correct the path."
    )


def _pinned(place: HubPlace, folder: Path) -> HubPlace:
    """The place at the commit that names a snapshot's folder."""
    return HubPlace(place.kind, place.repository, folder.name, place.path)


def _reason(place: HubPlace, error: Exception) -> tuple[str, str]:
    """Reason why the Hub did not serve a place, and the remedy."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    reason = refusal(error, kind=place.kind)
    if isinstance(error, GatedRepoError):
        page = f"https://huggingface.co/{place.repository}"
        return reason, f"Request it at {page}, then `hf auth login`."
    if isinstance(error, RepositoryNotFoundError):
        return reason, "Correct the name, or give a local path."
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision {place.revision}", "Name a branch, a tag or a commit of it."
    if isinstance(error, OfflineModeIsEnabled):
        return (
            "HF_HUB_OFFLINE is set, and the cache has no complete copy",
            "Unset it, or give a local path.",
        )
    if isinstance(error, HfHubHTTPError):
        return reason, "Try again."
    return reason, "Try again, or give a local path."
