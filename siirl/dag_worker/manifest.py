"""Locates a checkpoint and verifies its files against its manifest.

The manifest itself may be damaged: values are used only if they have the expected types, and no
name may point outside the folder.
"""

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from siirl.errors import CheckpointError
from siirl.files.documents import is_count, is_name, read_object, read_text
from siirl.files.weight_files import FROZEN_FILE, INDEX_FILE, TRAINED_FILE, WEIGHTS_FILE
from siirl.params.key_names import MODEL_PATH

LATEST = "latest"
MANIFEST = "manifest.json"
STATE_FILE = "state.pt"
FORMAT = "siirl-checkpoint-2"
FORMATS = ("siirl-checkpoint-1", FORMAT)  # the first had no shards
EVALUATION_DUE = "evaluation_due"  # the run was interrupted before the step's evaluation finished
KEPT_CHECKPOINTS = 3  # one to resume from, and two fallbacks
TAKE_EARLIER = "Choose an earlier checkpoint."
OFTEN_SHARED = (
    f"{TAKE_EARLIER} If it shares this file, copy the file from elsewhere, or start again from the "
    "weights that the run started from."
)
IN_SEVERAL_FILES = (INDEX_FILE, FROZEN_FILE, TRAINED_FILE)  # instead of WEIGHTS_FILE

Fingerprints = dict[str, dict[str, Any]]
"""`bytes` and `sha256` of files, by name."""


def resolve_checkpoint(path: Path) -> Path:
    """Resolve a checkpoint folder, a folder of checkpoints or a run folder to a checkpoint folder.

    Among several checkpoints it is the one that the pointer names; without a pointer (a copy may
    lack it) the one of the last step.

    Raises:
        CheckpointError: The path is none of these, its pointer is damaged, or the disk fails.
    """
    with reading(path):
        return _resolve(path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise an OSError of the block, which looks for checkpoints in `path`, as CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be searched for a checkpoint: {error.strerror or error}. Repair that, "
            "or give the folder of another run."
        ) from error


def _resolve(path: Path) -> Path:
    for folder in (path, path / "checkpoints"):
        if (folder / LATEST).is_file():
            path = folder / _newest(folder / LATEST)
            break
        if complete := _complete(folder):
            path = complete[-1]
            break
    if not (path / MANIFEST).is_file():
        found = (
            ", ".join(sorted(entry.name for entry in path.iterdir())[:10])
            if path.is_dir()
            else "no such folder"
        )
        raise CheckpointError(
            f"{path} is not a checkpoint. Expected: the folder of a run (outputs/<name>/<time>) "
            "with a saved checkpoint, or a folder in its "
            f"checkpoints/ that contains {MANIFEST}. Found: {found or 'an empty folder'}. siirl "
            "train writes checkpoints, every trainer.save_freq steps and when it is stopped."
        )
    return path


def has_checkpoint(run: Path) -> bool:
    """Whether a run folder has a checkpoint to resume from; it may be damaged."""
    folder = run / "checkpoints"
    with reading(run):
        return (folder / LATEST).is_file() or bool(_complete(folder))


def _complete(folder: Path) -> list[Path]:
    """Checkpoints in a folder, by step: their manifest is written last."""
    return sorted(file.parent for file in folder.glob(f"step_*/{MANIFEST}"))


def read_manifest(folder: Path, *, verify: bool = True) -> dict[str, Any]:
    """Read the manifest of a checkpoint, and verify every file that it lists.

    Args:
        folder: The checkpoint.
        verify: False leaves the files to `verify_files`: their digests take minutes for a large
            model.

    Returns:
        A dict with `step` (int), `engines` (names), `files` (relative name to `bytes` and
        `sha256`), and further keys.

    Raises:
        CheckpointError: A foreign folder, a damaged manifest, or a file that is missing, truncated
            or changed.
    """
    file = folder / MANIFEST
    manifest = read_object(file, remedy=TAKE_EARLIER)
    if manifest.get("format") not in FORMATS:
        found = str(manifest.get("format"))[:50]
        raise CheckpointError(
            f"{file} was not written by this program. Expected format: {FORMAT}. Found: {found}."
        )
    wrong = _what_is_wrong(manifest)
    if wrong:
        raise CheckpointError(f"{file} is damaged. Expected: {wrong}. {TAKE_EARLIER}")
    if verify:
        _compare_files(folder, manifest["files"])
    return manifest


def require_engines(folder: Path, expected: list[str]) -> None:
    """Refuse a checkpoint of other engines than a job trains.

    Raises:
        CheckpointError: See `read_manifest`; or the checkpoint is of another job.
    """
    found = read_manifest(folder, verify=False)["engines"]
    if found != expected:
        raise CheckpointError(
            f"{folder} is of another job. It holds {' and '.join(found)}; this job trains "
            f"{' and '.join(expected)}. Choose the pipeline of that run, or start a new one from "
            f"its policy: trainer.resume=null {MODEL_PATH}={folder / 'actor'}"
        )


def verify_files(folder: Path, *, rank: int = 0, ranks: int = 1) -> None:
    """Verify this rank's share of the files that the manifest lists.

    Args:
        folder: The checkpoint.
        rank: Number of this rank; together the ranks verify every file.
        ranks: Number of ranks.

    Raises:
        CheckpointError: See `read_manifest`.
    """
    files = read_manifest(folder, verify=False)["files"]
    by_size = sorted(files, key=lambda name: (-files[name]["bytes"], name))
    _compare_files(folder, {name: files[name] for name in by_size[rank::ranks]})


def _compare_files(folder: Path, files: Fingerprints) -> None:
    for name, expected in files.items():
        try:
            _compare(folder / name, expected)
        except OSError as error:
            raise CheckpointError(
                f"{folder / name} cannot be read: {error.strerror}. {TAKE_EARLIER}"
            ) from error


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, in the manifest's form."""
    with path.open("rb") as stream:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
        }


def _newest(pointer: Path) -> str:
    """Name stored in the pointer."""
    name = read_text(pointer, remedy="Name one of the folders next to it instead.").strip()
    if not is_name(name):
        raise CheckpointError(
            f"{pointer} is damaged. Expected: the name of a folder next to it. Found: "
            f"{name[:50]!r}. Name one of these folders instead."
        )
    return name


def _what_is_wrong(manifest: dict[str, Any]) -> str | None:
    """Describe the expected type of the first invalid value; None if all are valid."""
    engines, files = manifest.get("engines"), manifest.get("files")
    if not isinstance(manifest.get(EVALUATION_DUE, False), bool):
        return f"{EVALUATION_DUE} to be true or false"
    if not is_count(manifest.get("step")):
        return "step to be the number of a training step"
    if not isinstance(engines, list) or not all(isinstance(name, str) for name in engines):
        return "engines to be a list of names"
    if not isinstance(files, dict) or not all(_inside(name) for name in files):
        return "files to be names of files in its folder"
    if not all(_is_fingerprint(value) for value in files.values()):
        return "bytes and sha256 of every file"
    needed = {STATE_FILE, *(file for name in engines for file in _weight_files(name, files))}
    missing = needed - files.keys()
    return f"{min(missing)} among its files" if missing else None


def _weight_files(engine: str, files: Collection[str]) -> list[str]:
    """The files that must hold an engine's weights, in the layout of the listed files."""
    in_several = f"{engine}/{INDEX_FILE}" in files
    return [f"{engine}/{name}" for name in (IN_SEVERAL_FILES if in_several else (WEIGHTS_FILE,))]


def _remedy(path: Path) -> str:
    return OFTEN_SHARED if path.name == FROZEN_FILE else TAKE_EARLIER


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return name.isprintable() and name != "" and not path.is_absolute() and ".." not in path.parts


def _is_fingerprint(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_count(value.get("bytes"))
        and isinstance(value.get("sha256"), str)
    )


def _compare(path: Path, expected: dict[str, Any]) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != expected["bytes"]:
        found = "no such file" if size is None else f"{size} bytes, so it was truncated or replaced"
        raise CheckpointError(
            f"{path} does not have the size that was saved. Expected: {expected['bytes']} bytes. "
            f"Found: {found}. {_remedy(path)}"
        )
    digest = fingerprint(path)["sha256"]
    if digest != expected["sha256"]:
        raise CheckpointError(
            f"{path} was changed after it was saved. Expected SHA-256: {expected['sha256']}. "
            f"Found: {digest}. {_remedy(path)}"
        )
