"""Reads tensors from safetensors files; each rank reads only the part that it holds.

Bytes go from the file into the target through a small buffer. With a memory map, as in the
safetensors library, every page read would count as memory of the process.
"""

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from siirl.errors import CheckpointError
from siirl.files.weight_files import HEADER_LENGTH

BUFFER_BYTES = 16 * 1024 * 1024
PAGE_BYTES = 4096
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, without a gradient."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


@dataclass(frozen=True)
class StoredTensor:
    """Place of a tensor in a file."""

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""

    def first_bytes(self) -> bytes:
        """Up to a page of its bytes."""
        size = self.dtype.itemsize * torch.Size(self.shape).numel()
        with self.file.open("rb", buffering=0) as stream:
            return os.pread(stream.fileno(), min(size, PAGE_BYTES), self.start)


class StoredTensors:
    """The tensors of some files, by name; only headers are read until `fill`.

    Args:
        files: safetensors files.

    Raises:
        CheckpointError: A truncated or foreign file.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.tensors: dict[str, StoredTensor] = {}
        for file in files:
            self.tensors |= _header(file)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor."""
        return {name: stored.shape for name, stored in self.tensors.items()}

    @property
    def types(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        """Type and shape of each tensor."""
        return {
            name: (stored.dtype, torch.Size(stored.shape)) for name, stored in self.tensors.items()
        }

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Copy the tensor, or this rank's part of it, into `target`, in its type.

        Args:
            name: Name in the files.
            target: A tensor or DTensor of the stored shape, on any device.

        Raises:
            CheckpointError: The file changed meanwhile.
        """
        stored = self.tensors[name]
        rows, first = self.rows_of(target)
        flat = local_part(target)
        if flat.numel() == 0:
            return
        width = flat.numel() // rows
        entries = _read(stored, start=first * width, count=rows * width)
        place = 0
        for part in entries:
            _flat(flat)[place : place + len(part)].copy_(part)
            place += len(part)

    def equal(self, one: str, other: str) -> bool:
        """Whether two tensors have the same type, shape and values."""
        a, b = self.tensors[one], self.tensors[other]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        count = torch.Size(a.shape).numel()
        pairs = zip(_read(a, start=0, count=count), _read(b, start=0, count=count), strict=True)
        return all(torch.equal(part, same) for part, same in pairs)

    @staticmethod
    def rows_of(target: torch.Tensor) -> tuple[int, int]:
        """Number of rows (entries of the first axis) that this rank holds, and the number of the
        first one.
        """
        if not isinstance(target, DTensor):
            return (len(target) if target.ndim else 1), 0
        shape, offset = compute_local_shape_and_global_offset(
            target.shape, target.device_mesh, target.placements
        )
        assert tuple(shape[1:]) == tuple(target.shape[1:]), "FSDP2 shards the first axis"
        return shape[0], offset[0]

    def whole(self, name: str) -> torch.Tensor:
        """The whole tensor in its stored type, in host memory."""
        stored = self.tensors[name]
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self.fill(name, tensor)
        return tensor


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.is_contiguous()
    return tensor.view(-1)


def _read(stored: StoredTensor, *, start: int, count: int) -> Iterator[torch.Tensor]:
    """Entries from `start` on, in pieces of at most one buffer."""
    size = stored.dtype.itemsize
    buffer = torch.empty(min(count, BUFFER_BYTES // size), dtype=stored.dtype)
    with stored.file.open("rb", buffering=0) as stream:
        while count:
            part = buffer[: min(count, len(buffer))]
            view = memoryview(part.view(torch.uint8).numpy())  # type: ignore[arg-type]
            offset = stored.start + start * size
            while len(view):
                got = os.preadv(stream.fileno(), [view], offset)
                if not got:
                    raise CheckpointError(
                        f"{stored.file} ended within {stored.name}: it changed while it was read."
                    )
                view, offset = view[got:], offset + got
            yield part
            start, count = start + len(part), count - len(part)


def _header(file: Path) -> dict[str, StoredTensor]:
    with whole_file(file), safetensors.safe_open(file, framework="pt") as stored:
        names = list(stored.keys())  # the library has checked header and length
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(HEADER_LENGTH))
        header: dict[str, Any] = json.loads(stream.read(length))
    found = {}
    for name in names:
        entry = header[name]
        if entry["dtype"] not in DTYPES:
            raise CheckpointError(
                f"{file}: {name} has the unsupported type {entry['dtype']}. Known: "
                f"{', '.join(DTYPES)}."
            )
        found[name] = StoredTensor(
            file=file,
            name=name,
            dtype=DTYPES[entry["dtype"]],
            shape=tuple(entry["shape"]),
            start=HEADER_LENGTH + length + entry["data_offsets"][0],
        )
    return found


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[None]:
    """Turn the safetensors error of a truncated file into one with file name and remedy."""
    try:
        yield
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is not a complete safetensors file: {error}. "
            "Copy or make it again."
        ) from error
