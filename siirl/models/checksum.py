"""A checksum of a set of weights, to compare them in two places without moving them.

It sums integers over the raw bits. The result therefore does not depend on the order of summation,
the threads, the device, or the order in which weights arrive. A float sum of 10,000 entries, in
contrast, differs between one thread and two.
"""

# N entry of a tensor

import hashlib
from collections.abc import Iterable, Mapping

import torch

from siirl.models.weight_rows import Rows

_INTEGER_OF_BYTES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Entries widened to 64 bits at a time, held three times. A CPU is fastest with 6 MB, which fit its
# cache; a GPU needs fewer, larger kernels, here of 50 MB.
_CHUNK, _CHUNK_ON_GPU = 1 << 18, 1 << 21
_MODULUS = 1 << 63  # range of a signed integer in a message


class RunningChecksum:
    """The checksum of weights that arrive part by part, in any order.

    Entry i of a weight adds `(2 i + 1) (bits + 1)` times an odd number that depends on the weight's
    name, modulo 2**63. Shapes are not included.
    """

    def __init__(self, weights: Iterable[Rows] = ()) -> None:
        self.value = 0
        """The number so far; it changes when any bit of a weight does."""
        for rows in weights:
            self.add(rows)

    def add(self, rows: Rows) -> None:
        """Include some rows."""
        total = factor_of(rows.name) * _sum_of_bits(rows.values.detach(), start=rows.start)
        self.value = (self.value + total) % _MODULUS


def joined_checksum(parts: Iterable[int]) -> int:
    """The checksum of weights from the checksums of their parts."""
    return sum(parts) % _MODULUS


def checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    """The checksum of whole weights."""
    return RunningChecksum(
        Rows(name, tensor, tuple(tensor.shape)) for name, tensor in tensors.items()
    ).value


def factor_of(name: str) -> int:
    """An odd number for a name, so that exchanged weights change the checksum."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") | 1


def _sum_of_bits(tensor: torch.Tensor, *, start: int) -> int:
    flat_N = tensor.contiguous().reshape(-1)
    if len(flat_N) == 0:
        return 0
    bits_N = flat_N.view(_INTEGER_OF_BYTES[tensor.element_size()])
    size = min(len(bits_N), _CHUNK if tensor.device.type == "cpu" else _CHUNK_ON_GPU)
    odd_N = torch.arange(1, 2 * size, 2, dtype=torch.int64, device=tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for place in range(0, len(bits_N), size):
        part_N = bits_N[place : place + size].to(torch.int64)
        # 2 i + 1 = 2 (start + place) + odd; int64 wraps around, whatever the order
        total += 2 * (start + place) * part_N.sum()
        total += (part_N * odd_N[: len(part_N)]).sum()
    ones = (start + len(bits_N)) ** 2 - start**2  # the sum of 2 i + 1
    return int(total) + ones
