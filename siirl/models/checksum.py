"""A checksum of a set of weights, to compare them in two places without moving them.

It sums integers over the raw bits. The result therefore does not depend on the order of summation,
the threads, the device, or the order in which weights arrive. A float sum of 10,000 entries, in
contrast, differs between one thread and two.

Each entry's bits are multiplied by a pseudo-random odd number of its place. With numbers in a
regular order, changes of a whole tensor would cancel: doubling all float32 weights adds 2**23 to
the bits of each, which is 0 modulo 2**63 if the numbers of all places add up to a multiple of
2**40.
"""

# N entry of a tensor

import functools
import hashlib
from collections.abc import Iterable, Mapping

import torch

from siirl.models.weight_rows import Rows

_INTEGER_OF_BYTES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Entries widened to 64 bits at a time, held three times. A CPU is fastest with 6 MB, which fit its
# cache; a GPU needs fewer, larger kernels, here of 50 MB.
_CHUNK, _CHUNK_ON_GPU = 1 << 18, 1 << 21
_BLOCK = 1 << 21  # entries between two uses of an odd number; a multiple of both
_MODULUS = 1 << 63  # range of a signed integer in a message
_ODD = -0x61C8864680B583EB  # 2**64 divided by the golden ratio, as a signed integer


class RunningChecksum:
    """The checksum of weights that arrive part by part, in any order.

    Entry i of a weight adds its bits and a constant, times odd numbers that depend on i and on the
    weight's name, modulo 2**63. Shapes are not included.
    """

    def __init__(self, weights: Iterable[Rows] = ()) -> None:
        self.value = 0
        """The number so far. It changes when one bit of a weight does; if several change, it stays
        with a probability of about 2**-31 or less (the signs of two float32).
        """
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


@functools.lru_cache(maxsize=1 << 16)
def factor_of(name: str) -> int:
    """An odd number of 64 bits for a name, so that exchanged weights change the checksum."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") | 1


@functools.cache
def _odd_numbers(device: torch.device) -> torch.Tensor:
    """A block of pseudo-random odd numbers: the mixing of SplitMix64 (Steele, Lea and Flood 2014,
    doi:10.1145/2660193.2660195), with arithmetic shifts.
    """
    mixed_N = torch.arange(1, _BLOCK + 1, dtype=torch.int64) * _ODD
    mixed_N = (mixed_N ^ (mixed_N >> 30)) * -0x40A7B892E31B1A47
    mixed_N = (mixed_N ^ (mixed_N >> 27)) * -0x6B2FB644ECCEEE15
    return ((mixed_N ^ (mixed_N >> 31)) | 1).to(device)


def _signed(number: int) -> int:
    return (number + _MODULUS) % (2 * _MODULUS) - _MODULUS


def _sum_of_bits(tensor: torch.Tensor, *, start: int) -> int:
    flat_N = tensor.contiguous().reshape(-1)
    bits_N = flat_N.view(_INTEGER_OF_BYTES[tensor.element_size()])
    chunk = _CHUNK if tensor.device.type == "cpu" else _CHUNK_ON_GPU
    odd_N = _odd_numbers(tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    place = 0
    while place < len(bits_N):
        block, inside = divmod(start + place, _BLOCK)
        size = min(chunk - inside % chunk, len(bits_N) - place)
        part_N = bits_N[place : place + size].to(torch.int64)
        if bits_N.dtype == torch.int64:
            # the highest bit would be lost modulo 2**63
            part_N = (part_N & 0xFFFFFFFF) + (part_N >> 32) * _ODD
        # int64 wraps around, whatever the order; no entry of fewer bits adds zero
        summed = ((part_N + _ODD) * odd_N[inside : inside + size]).sum()
        total += _signed(factor_of(f"block {block}")) * summed
        place += size
    return int(total)
