"""Actor: PPO's update of a policy, whatever its domain: epochs, mini-batches, one loss, over a TrainEngine.

The loss of a token is `policy loss - entropy_coef * entropy + kl_loss_coef * KL`, all three aggregated alike with denominators over
the whole mini-batch. What domain a token is from is the scorer's business, what an advantage is the batch's.

Old log-probs are, in this order: the column `old_log_probs`; with `on_policy` the current ones, detached; else the column
`rollout_log_probs`.
"""

# B row (trajectory), T token

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.aggregation import AGGREGATIONS, aggregate_loss, aggregation_weight
from siirl.algos.checks import as_bool_mask, require_finite
from siirl.algos.kl import KL_NAMES, kl_estimate
from siirl.algos.log_probs import TokenScores
from siirl.algos.masked import masked_sum
from siirl.algos.policy_losses import NATIVE_AGGREGATION, POLICY_LOSSES, check_clip, log_ratio, policy_loss
from siirl.engine.actor.mini_batches import mini_batch_rows
from siirl.engine.collectives import fail_together
from siirl.engine.train_engine import LossSum, TrainEngine, TrainStep
from siirl.errors import ConfigError, TensorError, UnknownNameError
from siirl.params import ActorArguments

Metrics = dict[str, float]


class Actor:
    """Updates the policy that `engine` trains.

    Args:
        engine: Initialised; its temperature is the one that acted.
        config: The group `actor_rollout_ref.actor`.
        rollouts_per_prompt: `ppo_mini_batch_size` counts prompts, of which each has so many trajectories.
        seed: Of the generator that draws mini-batches.
        horizon: Tokens of the longest possible response; needed by `loss_agg_mode=seq-mean-token-sum-norm` only.

    Raises:
        ConfigError: A loss, aggregation or KL estimator that does not exist, or that lacks something.
    """

    def __init__(
        self, *, engine: TrainEngine, config: ActorArguments, rollouts_per_prompt: int, seed: int, horizon: int | None = None
    ) -> None:
        self.engine, self.config, self.horizon = engine, config, horizon
        self.rows_per_mini_batch = config.ppo_mini_batch_size * rollouts_per_prompt
        self.generator = torch.Generator().manual_seed(seed)
        self.clip = {
            "clip_ratio_low": config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low,
            "clip_ratio_high": config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
            "clip_ratio_c": config.clip_ratio_c,
        }
        check_clip(**self.clip)
        if config.loss not in POLICY_LOSSES:
            raise UnknownNameError.of(kind="policy loss (actor_rollout_ref.actor.loss)", name=config.loss, known=POLICY_LOSSES)
        self.aggregation = config.loss_agg_mode or NATIVE_AGGREGATION[config.loss]
        if self.aggregation not in AGGREGATIONS:
            raise UnknownNameError.of(kind="loss_agg_mode", name=self.aggregation, known=AGGREGATIONS)
        if AGGREGATIONS[self.aggregation].needs_horizon and horizon is None:
            raise ConfigError(f"loss_agg_mode={self.aggregation} divides by the longest possible response: give the Actor its horizon.")
        if config.use_kl_loss and config.kl_loss_type not in KL_NAMES:
            raise UnknownNameError.of(kind="KL estimator (kl_loss_type)", name=config.kl_loss_type, known=KL_NAMES)

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """Log-probs and entropy [B, T] of this rank's rows under the current weights, without gradient; 0 at masked tokens."""

        def both(scores: TokenScores, micro_batch: TensorDict) -> torch.Tensor:
            return torch.stack([scores.log_probs_BT, scores.entropy_BT], dim=1)

        result_B2T = self.engine.forward(batch, both).to(batch["response_mask"].device)
        failure: TensorError | None = None
        try:
            require_finite(log_probs=result_B2T[:, 0], entropy=result_B2T[:, 1])
        except TensorError as error:
            failure = error
        fail_together(self.engine.ranks, failure)
        return TokenScores(log_probs_BT=result_B2T[:, 0], entropy_BT=result_B2T[:, 1])

    def update(self, batch: TensorDict, *, on_policy: bool = False, policy_version: int | None = None) -> Metrics:
        """All optimiser steps of a training step; every rank calls it, a rank without rows too.

        Args:
            batch: This rank's rows with `advantages`, `response_mask`, the scorer's columns, `ref_log_prob` where KL is in the loss,
                and old log-probs (see the module).
            on_policy: The current weights acted in every row and this is their only update, so that their log-probs, detached, are
                the old ones.
            policy_version: Version of the current weights; rows of others are left out of `rollout/log_prob_gap`. None: no row is.

        Returns:
            Metrics over all ranks, the same on every rank.

        Raises:
            ConfigError: A missing column, or `on_policy` with more than one optimiser step.
            TensorError: Bad numbers on this rank; InvariantError on the others.
        """
        old_column = self._old_column(batch, on_policy)
        steps: list[TrainStep] = []
        for epoch in range(self.config.ppo_epochs):
            parts = mini_batch_rows(batch=batch, rows=self.rows_per_mini_batch, ranks=self.engine.ranks, generator=self.generator)
            if on_policy and (len(parts) > 1 or self.config.ppo_epochs > 1):
                raise ConfigError(
                    f"on_policy means one optimiser step, but there are {self.config.ppo_epochs} epochs of {len(parts)} mini-batches: "
                    "compute old_log_probs first."
                )
            for number, rows in enumerate(parts):
                # Only before the first step are the weights those that acted.
                acted = epoch == 0 and number == 0
                steps.append(self._step(batch[rows], self._loss(old_column, gap=acted, version=policy_version)))
        return _metrics(steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything of the actor's own that the next update depends on; the engine saves weights and moments itself."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, on any number of ranks."""
        self.generator.set_state(state["generator"])

    def _old_column(self, batch: TensorDict, on_policy: bool) -> str | None:
        for name in ("advantages", "response_mask", *(["ref_log_prob"] if self.config.use_kl_loss else [])):
            if name not in batch:
                raise ConfigError(
                    f"The actor's update needs the column {name!r}; the batch has: {', '.join(sorted(map(str, batch.keys())))}."
                )
        if "old_log_probs" in batch:
            return "old_log_probs"
        if on_policy:
            return None
        if "rollout_log_probs" not in batch:
            raise ConfigError(
                "The actor's update needs old_log_probs or rollout_log_probs, or on_policy=True where one step follows a rollout."
            )
        return "rollout_log_probs"

    def _step(self, rows: TensorDict, loss: Callable[[TokenScores, TensorDict], LossSum]) -> TrainStep:
        """One optimiser step; none where no row has an advantage and nothing else pulls on the weights.

        AdamW would otherwise move them by its momentum and shrink them by its decay, for no reason in the data.
        """
        other_terms = self.config.entropy_coef != 0 or self._uses_kl()
        pull = rows["advantages"].abs() * rows["response_mask"]
        if not other_terms and float(self.engine.ranks.maximum(pull.nan_to_num(1.0).sum().cpu())) == 0:
            rows = rows[:0]
        return self.engine.train_batch(rows, loss, self._weight)

    def _uses_kl(self) -> bool:
        return self.config.use_kl_loss and self.config.kl_loss_coef != 0

    def _weight(self, rows: TensorDict) -> torch.Tensor:
        return aggregation_weight(mask_BT=rows["response_mask"], mode=self.aggregation)

    def _loss(self, old_column: str | None, *, gap: bool, version: int | None) -> Callable[[TokenScores, TensorDict], LossSum]:
        """The loss of a micro-batch as the engine wants it."""

        def loss(scores: TokenScores, rows: TensorDict) -> LossSum:
            kept_BT = as_bool_mask(rows["response_mask"])
            log_probs_BT = scores.log_probs_BT
            old_BT = log_probs_BT.detach() if old_column is None else rows[old_column].to(log_probs_BT.dtype)
            result = policy_loss(name=self.config.loss, available=self._loss_arguments(rows, log_probs_BT, old_BT, kept_BT))
            tokens_BT = {"entropy": scores.entropy_BT, **result.metrics_BT}
            loss_BT = result.loss_BT - self.config.entropy_coef * scores.entropy_BT
            if self._uses_kl():
                tokens_BT["kl_loss"] = kl_estimate(
                    log_probs_BT=log_probs_BT, ref_log_probs_BT=rows["ref_log_prob"], mask_BT=kept_BT, name=self.config.kl_loss_type
                )
                loss_BT = loss_BT + self.config.kl_loss_coef * tokens_BT["kl_loss"]
            log_ratio_BT = log_ratio(log_probs_BT=log_probs_BT.detach(), old_log_probs_BT=old_BT, mask_BT=kept_BT)
            maxima = {"actor/ratio_max": log_ratio_BT.max().exp()}
            if gap and "rollout_log_probs" in rows:
                maxima["rollout/log_prob_gap"] = _log_prob_gap(log_probs_BT, rows, kept_BT, version)
            sums = {f"actor/{name}": masked_sum(value.detach(), kept_BT) for name, value in tokens_BT.items()}
            return LossSum(
                loss=self._sum(loss_BT, kept_BT),
                sums={"tokens": kept_BT.sum(), "pg_loss": self._sum(result.loss_BT, kept_BT), **sums},
                maxima=maxima,
            )

        return loss

    def _sum(self, loss_BT: torch.Tensor, kept_BT: torch.Tensor) -> torch.Tensor:
        return aggregate_loss(loss_BT=loss_BT, mask_BT=kept_BT, mode=self.aggregation, denominator=1.0, horizon=self.horizon)

    def _loss_arguments(self, rows: TensorDict, log_probs_BT: torch.Tensor, old_BT: torch.Tensor, kept_BT: torch.Tensor) -> dict[str, Any]:
        """What of `siirl.algos.policy_losses.LOSS_ARGUMENTS` there is."""
        arguments = {
            "log_probs_BT": log_probs_BT,
            "old_log_probs_BT": old_BT,
            "advantages_BT": rows["advantages"],
            "mask_BT": kept_BT,
            "loss_agg_mode": self.aggregation,
            "config": self.config,
            **self.clip,
        }
        if "rollout_log_probs" in rows:
            arguments["rollout_log_probs_BT"] = rows["rollout_log_probs"]
        return arguments


def _log_prob_gap(log_probs_BT: torch.Tensor, rows: TensorDict, kept_BT: torch.Tensor, version: int | None) -> torch.Tensor:
    """Largest difference between training and behaviour log-probs of the same weights."""
    if version is not None:
        kept_BT = kept_BT & (rows["policy_version"] == version)[:, None]
    difference_BT = (log_probs_BT.detach() - rows["rollout_log_probs"]).abs()
    return torch.where(kept_BT, difference_BT, torch.zeros_like(difference_BT)).max()


def _metrics(steps: list[TrainStep]) -> Metrics:
    """Means over the optimiser steps, of which each has one vote; token statistics are means over the tokens of a step."""
    values: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        if step.batch.weight == 0:
            continue
        values["actor/loss"].append(step.batch.loss)
        values["actor/pg_loss"].append(step.batch.sums["pg_loss"] / step.batch.weight)
        values["actor/grad_norm"].append(step.grad_norm)
        for name, total in step.batch.sums.items():
            if name.startswith("actor/"):
                values[name].append(total / step.batch.sums["tokens"])
    metrics = {name: sum(parts) / len(parts) for name, parts in values.items()}
    for name in ("actor/ratio_max", "rollout/log_prob_gap"):
        found = [step.batch.maxima[name] for step in steps if name in step.batch.maxima]
        if found:
            metrics[name] = max(found)
    metrics["actor/lr"] = steps[-1].learning_rate
    metrics["actor/updates"] = float(sum(step.applied for step in steps))
    metrics["actor/skipped_updates"] = float(sum(step.batch.weight > 0 and not step.applied for step in steps))
    return metrics
