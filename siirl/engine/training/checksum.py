"""One number for a set of tensors, to compare weights in two places without moving them.

It sums integers over the raw bits, so it depends on no order of summation, thread or device: a
float sum of 10,000 entries differs between one thread and two.
"""

# N entry of a tensor

from collections.abc import Mapping

import torch

_INTEGER_OF_BYTES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 22  # entries widened to 64 bits at a time: 64 MB on top of the weights
_MODULUS = 1 << 63  # range of a signed integer in a message
_FACTOR = 0x9E3779B97F4A7C15  # odd: exchanged tensors change the sum


def checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    """A number below 2**63 that changes when any bit of a weight does.

    Each tensor, in the order of names, contributes the sum of its entries' bits times 2 i + 1 for
    entry i, modulo 2**64. Names and shapes are not included.
    """
    total = 0
    for name in sorted(tensors):
        total = (total * _FACTOR + _sum_of_bits(tensors[name].detach())) % _MODULUS
    return total


def _sum_of_bits(tensor: torch.Tensor) -> int:
    flat_N = tensor.contiguous().reshape(-1)
    bits_N = flat_N.view(_INTEGER_OF_BYTES[tensor.element_size()])
    total = 0
    for start in range(0, len(bits_N), _CHUNK):
        part_N = bits_N[start : start + _CHUNK].to(torch.int64)
        place_N = torch.arange(start, start + len(part_N), dtype=torch.int64, device=tensor.device)
        total += int((part_N * (2 * place_N + 1)).sum())  # int64 wraps around, whatever the order
    return total
