"""Weights as a stream of rows: parts of a few megabytes, one at a time.

A row is an entry of the first axis; a weight without axes is one row. Sharded weights are gathered
part by part, so that no rank temporarily holds a whole tensor.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import distributed
from torch.distributed.tensor import DTensor, Replicate, Shard

from siirl.models.stored_tensors import local_part

# A broadcast over NCCL or gloo is as fast with 16 MiB as with more, and buckets are larger.
PART_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a weight."""

    name: str
    values: torch.Tensor
    shape: tuple[int, ...]
    """Shape of the whole weight."""
    first: int = 0
    """Number of the first row."""

    @property
    def start(self) -> int:
        """Number of the first entry in the whole weight."""
        return self.first * torch.Size(self.shape[1:]).numel()

    @property
    def last(self) -> bool:
        """Whether no rows follow."""
        return self.first + _length(self.values.shape) >= _length(self.shape)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The same rows of a tensor of the weight's shape, as a view."""
        return whole[self.first : self.first + len(self.values)] if self.shape else whole

    def with_values(self, values: torch.Tensor) -> "Rows":
        """The rows with other values."""
        return replace(self, values=values)

    def cut(self, most_bytes: int) -> Iterator["Rows"]:
        """Parts of at most `most_bytes`, or of one row if a row is larger."""
        for begin, end in _ranges(self.values.shape, self.values.dtype, most_bytes):
            part = self.values[begin:end] if self.shape else self.values
            yield Rows(self.name, part, self.shape, first=self.first + begin)


class Assembly:
    """Assembles rows into whole weights, in separate memory."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[torch.Tensor, int]] = {}
        """The weight, and the number of its missing rows."""

    def add(self, rows: Rows) -> torch.Tensor | None:
        """Add rows; return the whole weight if these were its last ones."""
        if rows.name not in self._held:
            whole = torch.empty(rows.shape, dtype=rows.values.dtype, device=rows.values.device)
            self._held[rows.name] = (whole, _length(rows.shape))
        whole, missing = self._held.pop(rows.name)
        rows.of(whole).copy_(rows.values)
        missing -= _length(rows.values.shape)
        if missing > 0:
            self._held[rows.name] = (whole, missing)
            return None
        return whole


def in_rows(
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    most_bytes: int = PART_BYTES,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Iterator[Rows]:
    """The rows of weights, one part at a time, without gradients.

    If weights are sharded, every rank consumes all parts and gets their values.

    Args:
        weights: Names and tensors, whole or DTensors.
        most_bytes: Bytes of a part; one row may have more.
        dtypes: Types that rows are cast to before they are sent, by name; others keep theirs.
    """
    for name, tensor in weights:
        detached = tensor.detach()
        dtype = (dtypes or {}).get(name, detached.dtype)
        axes = _sharded_axes(detached) if isinstance(detached, DTensor) else []
        assert axes is not None, "FSDP2 shards the first axis"
        if isinstance(detached, DTensor) and axes:
            yield from _gathered(name, detached, axes[0], dtype, most_bytes)
        else:
            whole = Rows(name, local_part(detached), tuple(detached.shape))
            for rows in whole.cut(most_bytes):
                yield rows.with_values(rows.values.to(dtype))


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be sharded; every rank calls it and gets it.

    `DTensor.full_tensor` would need twice the memory.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    if _sharded_axes(tensor) is None:  # a norm not yet summed over ranks
        return tensor.full_tensor()
    part = local_part(tensor)
    whole = torch.empty(tensor.shape, dtype=part.dtype, device=part.device)
    for rows in in_rows([("", tensor)]):
        rows.of(whole).copy_(rows.values)
    return whole


def _gathered(
    name: str, tensor: DTensor, axis: int, dtype: torch.dtype, most_bytes: int
) -> Iterator[Rows]:
    shape = tuple(tensor.shape)
    group = tensor.device_mesh.get_group(axis)
    own = local_part(tensor)
    each = -(-shape[0] // distributed.get_world_size(group))  # the last ranks may have no rows
    for rank, place in enumerate(range(0, shape[0], max(each, 1))):
        held = (min(each, shape[0] - place), *shape[1:])
        for begin, end in _ranges(held, dtype, most_bytes):
            if rank == distributed.get_rank(group):
                part = own[begin:end].to(dtype).contiguous()
            else:
                part = torch.empty((end - begin, *shape[1:]), dtype=dtype, device=own.device)
            distributed.broadcast(part, group=group, group_src=rank)
            yield Rows(name, part, shape, first=place + begin)


def _sharded_axes(tensor: DTensor) -> list[int] | None:
    """Mesh axes over which rows are sharded, possibly none; None: another placement."""
    axes = [axis for axis, placed in enumerate(tensor.placements) if placed != Replicate()]
    return axes if [tensor.placements[axis] for axis in axes] in ([], [Shard(0)]) else None


def _ranges(
    shape: tuple[int, ...], dtype: torch.dtype, most_bytes: int
) -> Iterator[tuple[int, int]]:
    row_bytes = dtype.itemsize * torch.Size(shape[1:]).numel()
    step = max(most_bytes // max(row_bytes, 1), 1)
    length = _length(shape)
    if length == 0:
        yield 0, 0  # a weight without entries is part of the stream
    for begin in range(0, length, step):
        yield begin, min(begin + step, length)


def _length(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1
