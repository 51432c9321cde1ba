"""Types of scorers and losses, and the sum of a loss over micro-batches."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.log_probs import TokenScores
from siirl.engine.training.collectives import Collectives
from siirl.errors import TensorError

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


def require_gradient(part: LossSum) -> None:
    """Raise TensorError for a loss that no gradient leaves."""
    if not part.loss.requires_grad:
        raise TensorError(
            "The loss has no gradient, so nothing would be learnt: compute it from the scores, "
            "without detach() or no_grad()."
        )


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
        self.loss = 0.0
        self.sums: dict[str, float] = {}
        self.maxima: dict[str, float] = {}

    def add(self, part: LossSum, *, counts: bool) -> None:
        """Add a micro-batch.

        A dummy micro-batch (`counts` is False) adds only the names, so that all ranks have the
        same.
        """
        loss, *values = _numbers([part.loss, *part.sums.values(), *part.maxima.values()])
        if counts:
            self.loss += loss
        for name, value in zip(part.sums, values[: len(part.sums)], strict=True):
            old = self.sums.get(name, 0.0)
            self.sums[name] = old + value if counts else old
        for name, value in zip(part.maxima, values[len(part.sums) :], strict=True):
            old = self.maxima.get(name, -math.inf)
            self.maxima[name] = float(np.maximum(old, value)) if counts else old  # keeps NaN

    def total(self, ranks: Collectives, *, weight: float) -> BatchLoss:
        """Totals over all ranks, in two collective calls."""
        sums = ranks.sum(_float64([self.loss, *self.sums.values()])).tolist()
        maxima = ranks.maximum(_float64([*self.maxima.values()])).tolist() if self.maxima else []
        return BatchLoss(
            loss=sums[0] / weight,
            weight=weight,
            sums=dict(zip(self.sums, sums[1:], strict=True)),
            maxima=dict(zip(self.maxima, maxima, strict=True)),
        )


def _numbers(scalars: list[torch.Tensor]) -> list[float]:
    device = scalars[0].device
    if device.type == "cpu":
        return [float(scalar.detach()) for scalar in scalars]
    here = [scalar.detach().to(device, torch.float64).reshape(()) for scalar in scalars]
    numbers: list[float] = torch.stack(here).tolist()  # one transfer from the device
    return numbers


def _float64(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)
