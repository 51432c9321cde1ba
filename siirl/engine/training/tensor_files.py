"""Named tensors in safetensors files, with errors that name file, expectation and content.

No pickle: reading a foreign file runs no code. The format consists of a length, a header in JSON,
and the bytes of the tensors (https://github.com/huggingface/safetensors, README, "Format").
"""

import json
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from siirl.errors import CheckpointError
from siirl.files.weight_files import INDEX_FILE

LISTED = 5  # differences listed in a message
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
HEADER_UNIT = 8  # the header is padded to a multiple of this, so that tensors are aligned
Types = dict[str, tuple[torch.dtype, torch.Size]]


class WeightSource(Protocol):
    """Named tensors that are read one at a time."""

    @property
    def types(self) -> Types:
        """Type and shape of each, in their order in the files."""

    def whole(self, name: str) -> torch.Tensor:
        """One tensor."""


def write_weight_file(file: Path, weights: WeightSource) -> None:
    """Write all tensors of a source.

    Raises:
        OSError: See `write_tensors_in_turn`.
    """
    in_turn = ((name, weights.whole(name)) for name in weights.types)
    write_tensors_in_turn(file, weights.types, in_turn)


def write_index(folder: Path, files: Mapping[str, Types]) -> None:
    """Write the index of weights in several files (huggingface_hub, "Serialization").

    Args:
        folder: The folder of the files.
        files: The tensors in each.
    """
    places = {tensor: name for name, types in files.items() for tensor in types}
    total = sum(size_of(*place) for types in files.values() for place in types.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def size_of(dtype: torch.dtype, shape: torch.Size) -> int:
    """Bytes of a tensor."""
    return dtype.itemsize * shape.numel()


def write_tensors_in_turn(
    file: Path,
    stored: Mapping[str, tuple[torch.dtype, torch.Size]],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Write tensors that are made one at a time; no more than one is in memory.

    Args:
        file: The safetensors file.
        stored: Type and shape of every tensor, in the order of `tensors`.
        tensors: Names and tensors.

    Raises:
        OSError: The file cannot be written (full, read-only).
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in stored.items():
        start, end = end, end + size_of(dtype, shape)
        header[name] = {
            "dtype": DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % HEADER_UNIT)
    expected = iter(stored)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors:
            assert name == next(expected)
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            stream.write(flat.numpy().data)


def require_fitting(
    file: Path, *, found: Mapping[str, torch.Size], expected: Mapping[str, torch.Size]
) -> None:
    """Raise CheckpointError unless `found` has exactly the names and shapes of `expected`."""
    wrong = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    wrong += [f"{name} is not expected" for name in sorted(found.keys() - expected.keys())]
    wrong += [
        f"{name} has shape {list(found[name])}, expected {list(expected[name])}"
        for name in sorted(expected.keys() & found.keys())
        if found[name] != expected[name]
    ]
    if wrong:
        raise CheckpointError(
            f"{file} belongs to another model. Expected {len(expected)} tensors, found "
            f"{len(found)}; {len(wrong)} do not fit: "
            f"{'; '.join(wrong[:LISTED])}{' ...' if len(wrong) > LISTED else ''}. Choose a "
            "checkpoint and a model that fit."
        )


def listing(folder: Path) -> str:
    """Names of the first files in a folder, for a message."""
    if not folder.is_dir():
        return "no such folder"
    return ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"


def let_others_read(folder: Path) -> None:
    """Give weight files the umask's mode; safetensors writes them with mode 0600.

    A file that an earlier checkpoint shares keeps its mode: its owner may be another user.
    """
    probe = folder / ".mode"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for file in folder.glob("*.safetensors"):
        if file.stat().st_nlink == 1:
            file.chmod(mode)
