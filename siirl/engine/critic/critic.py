"""Critic: updates a value model in any domain, with epochs, mini-batches and one clipped loss.

A value belongs to a decision: one token of text, or a whole chunk of a robot's actions. `decisions`
selects the token of each decision, which the column `value_mask` marks. The loss is the mean over
these tokens of the whole mini-batch, over all ranks.
"""

# B row (trajectory), T token

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.tensor_checks import as_bool_mask, require_finite
from siirl.algos.value_loss import clipped_value_loss
from siirl.data_coordinator.protocol.batch import without_texts
from siirl.engine.critic.value_model import ValueModel
from siirl.engine.critic.value_scorers import states_behind
from siirl.engine.training.batch_cuts import (
    mini_batch_rows,
    rows_by_id,
    take_rows,
    with_bool_masks,
)
from siirl.engine.training.batch_loss import LossSum, TrainStep
from siirl.engine.training.collectives import raise_on_all_ranks
from siirl.engine.training.train_engine import TrainEngine
from siirl.errors import ConfigError

Metrics = dict[str, float]
COLUMNS = ("values", "value_mask", "returns")


@dataclass(frozen=True)
class Values:
    """A critic's values of a batch."""

    values_BT: torch.Tensor
    """At every token that the policy chose, in units of the return; 0 elsewhere."""
    value_mask_BT: torch.Tensor
    """Bool: the token of each decision."""


class Critic:
    """Updates the value model that `engine` trains.

    Args:
        engine: Initialised; its scorer returns values.
        model: The engine's module.
        decisions: Bool [B, T] of a batch: the token of each decision.
        epochs: Passes over the samples of a step.
        rows_per_mini_batch: Trajectories of one optimiser step, over all ranks.
        clip_range: Largest move of a value before the loss is clipped, in the units of
            `ValueModel.normalized`; None: no clipping.
        seed: Seed of the generator that draws mini-batches.
        observe: Called with this rank's rows after an update, on every rank.
    """

    def __init__(
        self,
        *,
        engine: TrainEngine[torch.Tensor],
        model: ValueModel,
        decisions: Callable[[TensorDict], torch.Tensor],
        epochs: int,
        rows_per_mini_batch: int,
        clip_range: float | None,
        seed: int,
        observe: Callable[[TensorDict], None] | None = None,
    ) -> None:
        self.engine = engine
        self.observe = observe
        self.model = model
        self.decisions = decisions
        self.epochs = epochs
        self.rows_per_mini_batch = rows_per_mini_batch
        self.clip_range = math.inf if clip_range is None else clip_range
        self.generator = torch.Generator().manual_seed(seed)

    def compute_values(self, batch: TensorDict) -> Values:
        """Values of this rank's rows under the current weights, without gradient.

        Every rank calls it.

        Raises:
            TensorError: A value that is not finite on this rank; InvariantError on the others.
        """
        device = batch["response_mask"].device
        values_BT = self.engine.forward(batch, lambda values_BT, rows: values_BT).to(device)
        with raise_on_all_ranks(self.engine.ranks):
            require_finite(values=values_BT)
        return Values(values_BT=values_BT, value_mask_BT=self.decisions(batch))

    def bootstrap_values(self, batch: TensorDict) -> torch.Tensor:
        """Value [B] of the state after each of this rank's rows; 0 if its episode terminated.

        Every rank calls it.

        Args:
            batch: Rows with `bootstrapped` and the columns that `states_behind` reads.

        Raises:
            TensorError: A value that is not finite on this rank; InvariantError on the others.
        """
        going_on_B = as_bool_mask(batch["bootstrapped"])
        values_BT = self.engine.forward(states_behind(batch), lambda values_BT, rows: values_BT)
        values_B = values_BT[:, 0].to(going_on_B.device)
        with raise_on_all_ranks(self.engine.ranks):
            require_finite(mask=going_on_B, bootstrap_values=values_B)
        return torch.where(going_on_B, values_B, torch.zeros_like(values_B))

    def update(self, batch: TensorDict) -> Metrics:
        """All optimiser steps of a training step; every rank calls it, even without rows.

        Args:
            batch: This rank's rows with `values`, `value_mask` and `returns`, and the scorer's
                columns.

        Returns:
            Metrics over all ranks, the same on every rank.

        Raises:
            ConfigError: A missing column.
            TensorError: Bad numbers on this rank; InvariantError on the others.
        """
        for name in COLUMNS:
            if name not in batch:
                known = ", ".join(sorted(map(str, batch.keys())))
                raise ConfigError(
                    f"The critic's update needs the column {name!r}; the batch has: {known}."
                )
        kept_BT = as_bool_mask(batch["value_mask"])
        with raise_on_all_ranks(self.engine.ranks):
            require_finite(mask=kept_BT, values=batch["values"], returns=batch["returns"])
        metrics = self._old_value_metrics(
            batch["values"][kept_BT].double(), batch["returns"][kept_BT].double()
        )
        # In the first step all values are the initial 0, so updates are not clipped to them.
        first = self.model.normalize_returns and not self.model.has_seen_returns
        clip_range = math.inf if first else self.clip_range
        self.model.observe_returns(batch["returns"], kept_BT, ranks=self.engine.ranks)
        columns = with_bool_masks(without_texts(batch), ranks=self.engine.ranks)
        owned = rows_by_id(batch, self.engine.ranks)
        steps: list[TrainStep] = []
        for _ in range(self.epochs):
            parts = mini_batch_rows(
                batch=batch,
                rows=self.rows_per_mini_batch,
                ranks=self.engine.ranks,
                generator=self.generator,
                owned=owned,
            )
            steps += [
                self.engine.train_batch(
                    take_rows(columns, rows), self._loss(clip_range), _decisions, sums_tokens=True
                )
                for rows in parts
            ]
        if self.observe is not None:
            self.observe(batch)
        return {**metrics, **_metrics(steps)}

    def state_dict(self) -> dict[str, Any]:
        """State of the critic that the next update depends on.

        The engine saves weights, statistics and moments itself.
        """
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, on any number of ranks."""
        self.generator.set_state(state["generator"])

    def _loss(self, clip_range: float) -> Callable[[torch.Tensor, TensorDict], LossSum]:
        normalized = self.model.normalized

        def loss(values_BT: torch.Tensor, rows: TensorDict) -> LossSum:
            kept_BT = as_bool_mask(rows["value_mask"])
            loss_BT, clipped_BT = clipped_value_loss(
                values_BT=normalized(values_BT),
                old_values_BT=normalized(rows["values"]),
                returns_BT=normalized(rows["returns"]),
                mask_BT=kept_BT,
                clip_range=clip_range,
            )
            return LossSum(loss=loss_BT.sum(), sums={"critic/vf_clipfrac": clipped_BT.sum()})

        return loss

    def _old_value_metrics(self, values: torch.Tensor, returns: torch.Tensor) -> Metrics:
        """Metrics of the values before the update against the returns, over all ranks."""
        errors = returns - values
        parts = [
            returns.new_tensor(len(returns)),
            values.sum(),
            *(x.sum() for x in (returns, returns**2, errors, errors**2)),
        ]
        count, value, total, squares, error, error_squares = self.engine.ranks.sum(
            torch.stack(parts).cpu()
        ).tolist()
        if count == 0:
            return {}
        variance = squares / count - (total / count) ** 2
        error_variance = error_squares / count - (error / count) ** 2
        metrics = {"critic/value_mean": value / count, "critic/return_mean": total / count}
        if variance > 0:
            metrics["critic/explained_variance"] = 1 - error_variance / variance
        return metrics


def _decisions(rows: TensorDict) -> torch.Tensor:
    """Contribution of these rows to the denominator."""
    return as_bool_mask(rows["value_mask"]).sum()


def _metrics(steps: list[TrainStep]) -> Metrics:
    """Unweighted means over the optimiser steps."""
    values: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        if step.batch.weight == 0:
            continue
        values["critic/vf_loss"].append(step.batch.loss)
        values["critic/grad_norm"].append(step.grad_norm)
        values["critic/vf_clipfrac"].append(
            step.batch.sums["critic/vf_clipfrac"] / step.batch.weight
        )
    metrics = {name: sum(parts) / len(parts) for name, parts in values.items()}
    metrics["critic/lr"] = steps[-1].learning_rate
    metrics["critic/updates"] = float(sum(step.applied for step in steps))
    metrics["critic/skipped_updates"] = float(
        sum(step.batch.weight > 0 and not step.applied for step in steps)
    )
    return metrics
