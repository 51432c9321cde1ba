"""The loss of a batch that is computed in pieces: what a loss function returns for a piece, and
what the pieces add up to.
"""

from dataclasses import dataclass, field

import torch

from siirl.engine.training.collectives import Collectives


@dataclass(frozen=True)
class LossSum:
    """What a loss function returns for a micro-batch."""

    loss: torch.Tensor
    """Sum of the loss, a scalar with gradient; the engine divides by the weight of the whole batch.
    """
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    """Scalars that are added up over micro-batches and ranks."""
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    """Scalars of which the largest over micro-batches and ranks is taken."""


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a whole batch, the same on every rank."""

    loss: float
    weight: float
    """Sum of the weights of all rows; 0 if there was nothing to learn from."""
    sums: dict[str, float]
    maxima: dict[str, float]


class LossTally:
    """Adds up what loss functions return."""

    def __init__(self) -> None:
        self.loss = torch.zeros((), dtype=torch.float64)
        self.sums: dict[str, torch.Tensor] = {}
        self.maxima: dict[str, torch.Tensor] = {}

    def add(self, part: LossSum, *, counts: bool) -> None:
        """Take in a micro-batch; of one that counts nothing only the names, so that all ranks have
        the same.
        """
        if counts:
            self.loss += part.loss.detach().double().cpu()
        for name, value in part.sums.items():
            old = self.sums.get(name, torch.zeros((), dtype=torch.float64))
            self.sums[name] = old + value.detach().double().cpu() if counts else old
        for name, value in part.maxima.items():
            old = self.maxima.get(name, torch.tensor(-torch.inf, dtype=torch.float64))
            self.maxima[name] = torch.maximum(old, value.detach().double().cpu()) if counts else old

    def total(self, ranks: Collectives, *, weight: float) -> BatchLoss:
        """Everything over all ranks, in two collective calls."""
        sums = ranks.sum(torch.stack([self.loss, *self.sums.values()])).tolist()
        maxima = (
            ranks.maximum(torch.stack(list(self.maxima.values()))).tolist() if self.maxima else []
        )
        return BatchLoss(
            loss=sums[0] / weight,
            weight=weight,
            sums=dict(zip(self.sums, sums[1:], strict=True)),
            maxima=dict(zip(self.maxima, maxima, strict=True)),
        )
