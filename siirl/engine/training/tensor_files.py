"""Named tensors in safetensors files, with errors that name file, expectation and content.

No pickle: reading a foreign file runs no code.
"""

from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file

from siirl.errors import CheckpointError

LISTED = 5  # differences listed in a message


def write_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` to `file`.

    Raises:
        OSError: The file cannot be written (full, read-only).
    """
    try:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file
        )
    except safetensors.SafetensorError as error:
        raise OSError(f"{file} could not be written: {error}") from error


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of `file` into memory.

    Raises:
        CheckpointError: No such file, or a truncated or foreign one.
    """
    if not file.is_file():
        raise CheckpointError(
            f"{file} does not exist. Expected: a safetensors file. Found in {file.parent}: "
            f"{_listing(file.parent)}."
        )
    try:
        return load_file(file)
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{file} is not a whole safetensors file: {error}. Found {file.stat().st_size} "
            "bytes. Copy it again, or take another."
        ) from error


def require_fitting(
    file: Path, *, found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Size]
) -> None:
    """Raise CheckpointError unless `found` has exactly the names and shapes of `expected`."""
    wrong = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    wrong += [f"{name} is not expected" for name in sorted(found.keys() - expected.keys())]
    wrong += [
        f"{name} has shape {list(found[name].shape)}, expected {list(expected[name])}"
        for name in sorted(expected.keys() & found.keys())
        if found[name].shape != expected[name]
    ]
    if wrong:
        raise CheckpointError(
            f"{file} belongs to another model. Expected {len(expected)} tensors, found "
            f"{len(found)}, of which {len(wrong)} do not fit: {'; '.join(wrong[:LISTED])}"
            f"{' ...' if len(wrong) > LISTED else ''}. Choose the checkpoint or the model to fit."
        )


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    return ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
