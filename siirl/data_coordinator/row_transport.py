"""Moves rows from rank to rank: whole columns, packed, in one collective call of torch.distributed.

A packed batch has three parts: the length of its header in eight bytes; the header as JSON (names,
dtypes and shapes of tensor columns; string columns in full); and the columns' bytes, each at a
multiple of `ALIGNMENT`. Nothing is pickled. A step's surplus is small, and for small transfers a
collective is faster than one Ray object per pair of ranks; for tens of megabytes between two ranks,
Ray is faster.

Left out: columns of types other than numbers and strings.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from torch import distributed

from siirl.data_coordinator.protocol.batch import texts
from siirl.occupation import OCCUPATION

ALIGNMENT = 16  # no torch dtype is wider
LENGTH_BYTES = 8


class AllToAll:
    """Sends packed rows to other ranks of a process group; with NCCL the bytes pass through the
    rank's GPU.

    Args:
        group: The ranks that exchange rows, numbered as there; None: all.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self._group = group

    def exchange(self, outgoing: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Send each rank its bytes; returns the bytes from others, by rank. All ranks call it."""
        device = "cuda" if distributed.get_backend(self._group) == "nccl" else "cpu"
        ranks = range(distributed.get_world_size(self._group))
        nothing = torch.empty(0, dtype=torch.uint8)
        parts = [outgoing.get(rank, nothing) for rank in ranks]
        given = torch.tensor([len(part) for part in parts], device=device)
        taken = torch.empty_like(given)
        with OCCUPATION.doing("waits for the other ranks in an exchange of rows", waiting=True):
            distributed.all_to_all_single(taken, given, group=self._group)
            sizes = taken.tolist()
            arrived = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
            distributed.all_to_all_single(
                arrived, torch.cat(parts).to(device), sizes, given.tolist(), group=self._group
            )
        return {
            rank: part.clone()  # starts at a multiple of ALIGNMENT
            for rank, part in zip(ranks, torch.split(arrived.cpu(), sizes), strict=True)
            if len(part)
        }


def pack(batch: TensorDict) -> torch.Tensor:
    """The rows of a batch as bytes, uint8 [N]."""
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in batch.items()
        if isinstance(value, torch.Tensor)
    }
    legend = json.dumps(
        {
            "rows": len(batch),
            "tensors": [
                [name, str(value.dtype).removeprefix("torch."), list(value.shape)]
                for name, value in tensors.items()
            ],
            "texts": {
                str(name): texts(batch, str(name)) for name in batch.keys() if name not in tensors
            },
        }
    ).encode()
    begin = _aligned(LENGTH_BYTES + len(legend))
    packed = torch.zeros(
        begin + sum(_aligned(value.nbytes) for value in tensors.values()), dtype=torch.uint8
    )
    head = len(legend).to_bytes(LENGTH_BYTES, "big") + legend
    packed[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    for value in tensors.values():
        packed[begin : begin + value.nbytes] = value.flatten().view(torch.uint8)
        begin += _aligned(value.nbytes)
    return packed


def unpack(packed: torch.Tensor) -> TensorDict:
    """The batch that `pack` turned into these bytes; its columns share their memory."""
    size = int.from_bytes(packed[:LENGTH_BYTES].numpy().tobytes(), "big")
    legend = json.loads(packed[LENGTH_BYTES : LENGTH_BYTES + size].numpy().tobytes())
    columns: dict[str, Any] = {
        name: NonTensorStack(*values) for name, values in legend["texts"].items()
    }
    begin = _aligned(LENGTH_BYTES + size)
    for name, dtype_name, shape in legend["tensors"]:
        dtype = getattr(torch, dtype_name)
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        columns[name] = packed[begin : begin + nbytes].view(dtype).view(shape)
        begin += _aligned(nbytes)
    return TensorDict(columns, batch_size=[legend["rows"]])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
