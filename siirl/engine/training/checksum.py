"""One number for a set of tensors, to compare weights in two places without moving them.

It sums integers over the raw bits, so it depends on no order of summation, thread or device: a
float sum of 10,000 entries differs between one thread and two.
"""

# N entry of a tensor

from collections.abc import Mapping

import torch

_INTEGER_OF_BYTES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Entries widened to 64 bits at a time, which are held three times: a CPU is fastest with 6 MB,
# which fit its cache; a GPU needs fewer and larger kernels, here of 50 MB.
_CHUNK, _CHUNK_ON_GPU = 1 << 18, 1 << 21
_MODULUS = 1 << 63  # range of a signed integer in a message
_FACTOR = 0x9E3779B97F4A7C15  # odd: exchanged tensors change the sum


class RunningChecksum:
    """The checksum of tensors that come one after the other, in their order.

    Each tensor contributes the sum of its entries' bits times 2 i + 1 for entry i, modulo 2**64.
    Names and shapes are not included.
    """

    def __init__(self) -> None:
        self.value = 0
        """The number so far, below 2**63; it changes when any bit of a weight does."""

    def add(self, tensor: torch.Tensor) -> None:
        """Include the next tensor."""
        self.value = (self.value * _FACTOR + _sum_of_bits(tensor.detach())) % _MODULUS


def checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    """The checksum of tensors in the order of their names."""
    digest = RunningChecksum()
    for name in sorted(tensors):
        digest.add(tensors[name])
    return digest.value


def _sum_of_bits(tensor: torch.Tensor) -> int:
    flat_N = tensor.contiguous().reshape(-1)
    if len(flat_N) == 0:
        return 0
    bits_N = flat_N.view(_INTEGER_OF_BYTES[tensor.element_size()])
    size = min(len(bits_N), _CHUNK if tensor.device.type == "cpu" else _CHUNK_ON_GPU)
    odd_N = torch.arange(1, 2 * size, 2, dtype=torch.int64, device=tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(bits_N), size):
        part_N = bits_N[start : start + size].to(torch.int64)
        # 2 i + 1 with i = start + place; int64 wraps around, whatever the order
        total += 2 * start * part_N.sum()
        total += (part_N * odd_N[: len(part_N)]).sum()
    return int(total)
