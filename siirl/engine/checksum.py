"""One number for a set of tensors, to compare weights in two places without moving them."""

from collections.abc import Mapping

import torch


def checksum(tensors: Mapping[str, torch.Tensor]) -> float:
    """A number that changes when any weight does: the sum over tensors of position-weighted entries, in float64."""
    total = 0.0
    for place, name in enumerate(sorted(tensors), start=1):
        flat = tensors[name].detach().double().flatten()
        total += place * float(flat @ torch.linspace(1.0, 2.0, len(flat), dtype=torch.float64, device=flat.device))
    return total
