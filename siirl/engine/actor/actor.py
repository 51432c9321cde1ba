"""Actor: PPO's update of a policy, whatever its domain: epochs, mini-batches, one loss, over a
TrainEngine.

What the loss of a token is stands in `siirl.engine.actor.actor_loss`; what domain a token is from
is the scorer's business, what an advantage is the batch's.

Old log-probs are, in this order: the column `old_log_probs`; with `on_policy` the current ones,
detached; else the column `rollout_log_probs`.
"""

# B row (trajectory), T token

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.log_probs import TokenScores
from siirl.algos.tensor_checks import require_finite
from siirl.data_coordinator.protocol.batch import without_texts
from siirl.engine.actor.actor_loss import COMPARED, LARGEST_GAP, MEAN_GAP, SELECTED, ActorLoss
from siirl.engine.actor.mini_batches import mini_batch_rows, row_places
from siirl.engine.training.batch_loss import LossSum
from siirl.engine.training.collectives import fail_together
from siirl.engine.training.train_engine import TrainEngine, TrainStep
from siirl.errors import ConfigError, TensorError
from siirl.params import ActorArguments

Metrics = dict[str, float]


class Actor:
    """Updates the policy that `engine` trains.

    Args:
        engine: Initialised; its temperature is the one that acted.
        config: The group `actor_rollout_ref.actor`.
        rollouts_per_prompt: `ppo_mini_batch_size` counts prompts, of which each has so many
            trajectories.
        seed: Of the generator that draws mini-batches, and tokens where a loss selects some at
            random; `trainer.seed`'s default.
        horizon: Tokens of the longest possible response; needed by
            `loss_agg_mode=seq-mean-token-sum-norm` only.

    Raises:
        ConfigError: A loss, aggregation or KL estimator that does not exist, or that lacks
            something.
    """

    def __init__(
        self,
        *,
        engine: TrainEngine,
        config: ActorArguments,
        rollouts_per_prompt: int,
        seed: int = 0,
        horizon: int | None = None,
    ) -> None:
        self.engine, self.config = engine, config
        self.loss = ActorLoss(config, horizon=horizon)
        self.rows_per_mini_batch = config.ppo_mini_batch_size * rollouts_per_prompt
        self.generator = torch.Generator().manual_seed(seed)

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """Log-probs and entropy [B, T] of this rank's rows under the current weights, without
        gradient; 0 at masked tokens.
        """

        def both(scores: TokenScores, micro_batch: TensorDict) -> torch.Tensor:
            return torch.stack([scores.log_probs_BT, scores.entropy_BT], dim=1)

        result_B2T = self.engine.forward(batch, both).to(batch["response_mask"].device)
        self._together(lambda: require_finite(log_probs=result_B2T[:, 0], entropy=result_B2T[:, 1]))
        return TokenScores(log_probs_BT=result_B2T[:, 0], entropy_BT=result_B2T[:, 1])

    def update(
        self, batch: TensorDict, *, on_policy: bool = False, policy_version: int | None = None
    ) -> Metrics:
        """All optimiser steps of a training step; every rank calls it, a rank without rows too.

        Args:
            batch: This rank's rows with `advantages`, `response_mask`, the scorer's columns,
                `ref_log_prob` where KL is in the loss, and old log-probs (see the module).
            on_policy: The current weights acted in every row and this is their only update, so that
                their log-probs, detached, are the old ones.
            policy_version: Version of the current weights; rows of others are left out of
                `rollout/log_prob_gap` and its mean. None: no row is.

        Returns:
            Metrics over all ranks, the same on every rank.

        Raises:
            ConfigError: A missing column, or `on_policy` with more than one optimiser step.
            TensorError: Bad numbers on this rank; InvariantError on the others.
        """
        old_column = self._old_column(batch, on_policy)
        columns = (
            batch if self.loss.selects else without_texts(batch)
        )  # a selection goes by unique ids
        steps: list[TrainStep] = []
        for epoch in range(self.config.ppo_epochs):
            parts = mini_batch_rows(
                batch=batch,
                rows=self.rows_per_mini_batch,
                ranks=self.engine.ranks,
                generator=self.generator,
            )
            if on_policy and (len(parts) > 1 or self.config.ppo_epochs > 1):
                raise ConfigError(
                    f"on_policy means one optimiser step, but there are {self.config.ppo_epochs} epochs of {len(parts)} mini-batches: "
                    "compute old_log_probs first."
                )
            for number, rows in enumerate(parts):
                # Only before the first step are the weights those that acted.
                acted = epoch == 0 and number == 0
                loss = self.loss.of_micro_batch(
                    old_column=old_column, gap=acted, version=policy_version
                )
                steps.append(self._step(columns[rows], loss, old_column))
        return _metrics(steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything of the actor's own that the next update depends on; the engine saves weights
        and moments itself.
        """
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, on any number of ranks."""
        self.generator.set_state(state["generator"])

    def _old_column(self, batch: TensorDict, on_policy: bool) -> str | None:
        for name in (
            "advantages",
            "response_mask",
            *(["ref_log_prob"] if self.config.use_kl_loss else []),
        ):
            if name not in batch:
                raise ConfigError(
                    f"The actor's update needs the column {name!r}; the batch has: {', '.join(sorted(map(str, batch.keys())))}."
                )
        if self.loss.needs_behaviour and not (
            "old_log_probs" in batch and "rollout_log_probs" in batch
        ):
            raise ConfigError(
                "Importance weights are old_log_probs, computed anew, over rollout_log_probs: the actor's update needs both columns "
                "(compute_old_log_prob makes the first)."
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

    def _step(
        self,
        rows: TensorDict,
        loss: Callable[[TokenScores, TensorDict], LossSum],
        old_column: str | None,
    ) -> TrainStep:
        """One optimiser step; none where no row has an advantage and nothing else pulls on the
        weights.

        AdamW would otherwise move them by its momentum and shrink them by its decay, for no reason
        in the data. Rows without advantage, of groups that were all right or all wrong, count in
        the denominator, and are left out of the passes where they have no gradient.
        """
        other_terms = self.config.entropy_coef != 0 or self.loss.uses_kl
        pull_B = (rows["advantages"].abs() * rows["response_mask"]).nan_to_num(1.0).sum(1)
        if not other_terms and float(self.engine.ranks.maximum(pull_B.sum().cpu())) == 0:
            return self.engine.train_batch(rows[:0], loss, self.loss.weight)
        if self.loss.selects:
            rows = self._with_selection(rows, old_column)
        if not self.loss.pulled_by_advantage_alone or not len(rows):
            return self.engine.train_batch(rows, loss, self.loss.weight)
        return self.engine.train_batch(
            rows[pull_B > 0], loss, self.loss.weight, weight=self.loss.weight(rows)
        )

    def _with_selection(self, rows: TensorDict, old_column: str | None) -> TensorDict:
        """Rows with the column of tokens that the loss chooses over the whole mini-batch, under the
        weights as they are now.
        """
        self._together(lambda: self.loss.check_columns(rows, old_column))
        log_probs_BT = self.compute_log_prob(rows).log_probs_BT
        places_B = row_places(batch=rows, ranks=self.engine.ranks)
        rows[SELECTED] = self.loss.select(
            rows,
            log_probs_BT=log_probs_BT,
            old_column=old_column,
            place_B=places_B,
            generator=self.generator,
            ranks=self.engine.ranks,
        )
        return rows

    def _together(self, check: Callable[[], None]) -> None:
        """Run a check that may fail on this rank alone, and fail on all of them."""
        failure: TensorError | None = None
        try:
            check()
        except TensorError as error:
            failure = error
        fail_together(self.engine.ranks, failure)


def _metrics(steps: list[TrainStep]) -> Metrics:
    """Means over the optimiser steps, of which each has one vote; token statistics are means over
    the tokens of a step.
    """
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
        if step.batch.sums.get(COMPARED, 0.0) > 0:
            values[MEAN_GAP].append(step.batch.sums[MEAN_GAP] / step.batch.sums[COMPARED])
    metrics = {name: sum(parts) / len(parts) for name, parts in values.items()}
    for name in ("actor/ratio_max", LARGEST_GAP):
        found = [step.batch.maxima[name] for step in steps if name in step.batch.maxima]
        if found:
            metrics[name] = max(found)
    metrics["actor/lr"] = steps[-1].learning_rate
    metrics["actor/updates"] = float(sum(step.applied for step in steps))
    metrics["actor/skipped_updates"] = float(
        sum(step.batch.weight > 0 and not step.applied for step in steps)
    )
    return metrics
