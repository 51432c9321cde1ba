"""Types of scorers and losses, and the sum of a loss over micro-batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.log_probs import TokenScores
from siirl.engine.training.collectives import Collectives

Scores = TypeVar("Scores", TokenScores, torch.Tensor)
"""Output of a scorer for each token: log-prob and entropy of a policy, or the value of a critic."""
Scorer = Callable[[nn.Module, TensorDict, float], Scores]
"""Runs the module on a micro-batch of at least one row; the number divides the logits.

Returns log-probs and entropy [B, T] of the micro-batch's tokens, or their values [B, T]. Padding
rows have an empty `response_mask`.
"""


@dataclass(frozen=True)
class LossSum:
    """Result of a loss function for a micro-batch."""

    loss: torch.Tensor
    """Sum of the loss, a scalar with gradient; the engine divides by the whole weight."""
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    """Scalars that are summed over micro-batches and ranks."""
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    """Scalars whose maximum over micro-batches and ranks is taken."""


LossFunction = Callable[[Scores, TensorDict], LossSum]
"""Loss of a micro-batch as a sum, from its scores and columns."""
LossWeight = Callable[[TensorDict], torch.Tensor]
"""Contribution of a batch of rows to the loss denominator."""


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a whole batch, the same on every rank."""

    loss: float
    weight: float
    """Sum of the weights of all rows; 0 for a batch without training signal."""
    sums: dict[str, float]
    maxima: dict[str, float]


@dataclass(frozen=True)
class TrainStep:
    """One optimiser step, the same on every rank."""

    batch: BatchLoss
    applied: bool
    """False if the batch had no weight or the gradient was not finite."""
    grad_norm: float
    """Norm of the whole gradient before clipping."""
    learning_rate: float


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
