"""Loss of a batch computed in micro-batches: the result of a loss function, and the total."""

from dataclasses import dataclass, field

import torch

from siirl.engine.training.collectives import Collectives


@dataclass(frozen=True)
class LossSum:
    """Result of a loss function for a micro-batch."""

    loss: torch.Tensor
    """Sum of the loss, a scalar with gradient; the engine divides by the whole weight."""
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    """Scalars that are summed over micro-batches and ranks."""
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    """Scalars whose maximum over micro-batches and ranks is taken."""


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a whole batch, the same on every rank."""

    loss: float
    weight: float
    """Sum of the weights of all rows; 0 for a batch without training signal."""
    sums: dict[str, float]
    maxima: dict[str, float]


class LossTally:
    """Accumulates the results of loss functions."""

    def __init__(self) -> None:
        self.loss = torch.zeros((), dtype=torch.float64)
        self.sums: dict[str, torch.Tensor] = {}
        self.maxima: dict[str, torch.Tensor] = {}

    def add(self, part: LossSum, *, counts: bool) -> None:
        """Add a micro-batch.

        A dummy micro-batch (`counts` is False) adds only the names, so that all ranks have the
        same.
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
        """Totals over all ranks, in two collective calls."""
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
