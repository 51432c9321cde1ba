"""Actor: PPO's policy update in any domain: epochs, mini-batches, one loss, over a TrainEngine.

`siirl.engine.actor.actor_loss` defines a token's loss, the scorer of the domain computes its
log-prob, and the batch holds its advantage.

Old log-probs come from the column `old_log_probs`, or without it from `rollout_log_probs`.

The learning rate may follow the measured KL (`next_rate_factor`). A run whose acting and training
log-probs differ by more than rounding is stopped (`require_agreement`).
"""

# B row (trajectory), T token

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.log_probs import TokenScores
from siirl.algos.tensor_checks import require_finite
from siirl.data_coordinator.protocol.batch import without_texts
from siirl.engine.actor.actor_loss import (
    APPROX_KL,
    COMPARED,
    LARGEST_GAP,
    MEAN_GAP,
    OWN_TOKENS,
    PER_TOKEN,
    SELECTED,
    ActorLoss,
)
from siirl.engine.training.batch_cuts import (
    mini_batch_rows,
    row_places,
    rows_by_id,
    take_rows,
    with_bool_masks,
)
from siirl.engine.training.batch_loss import LossSum, TrainStep
from siirl.engine.training.collectives import raise_on_all_ranks
from siirl.engine.training.train_engine import TrainEngine
from siirl.errors import ConfigError, InvariantError
from siirl.params import ActorArguments
from siirl.params.domains import SERVER, TEXT_ENGINES, VLLM
from siirl.params.model_args import ActorRolloutRefArguments

Metrics = dict[str, float]
RATE_STEP = 1.5  # Schulman et al. 2017, section 4: the choice of such factors hardly matters
LARGEST_RATE_FACTOR = 32.0  # limit in both directions, in case of a wrong target


class Actor:
    """Updates the policy that `engine` trains.

    Args:
        engine: Initialised; its temperature equals that of the rollout.
        config: The group `actor_rollout_ref.actor`.
        rollouts_per_prompt: Trajectories of a prompt; `ppo_mini_batch_size` counts prompts.
        seed: Seed of the generator that draws mini-batches, and tokens if a loss selects some at
            random.
        horizon: Tokens of the longest possible response; needed by
            `loss_agg_mode=seq-mean-token-sum-norm` only.
        decision_tokens: Tokens of a decision; read with `ratio_level=decision` only.
        observe: Called with this rank's rows after an update, on every rank.

    Raises:
        ConfigError: An unknown loss, aggregation or KL estimator, or one that lacks a setting.
    """

    def __init__(
        self,
        *,
        engine: TrainEngine,
        config: ActorArguments,
        rollouts_per_prompt: int,
        seed: int = 0,
        horizon: int | None = None,
        decision_tokens: int = 1,
        observe: Callable[[TensorDict], None] | None = None,
    ) -> None:
        self.engine = engine
        self.observe = observe
        self.config = config
        self.loss = ActorLoss(config, horizon=horizon, decision_tokens=decision_tokens)
        self.rows_per_mini_batch = config.ppo_mini_batch_size * rollouts_per_prompt
        self.generator = torch.Generator().manual_seed(seed)

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """Log-probs and entropy [B, T] of this rank's rows under the current weights.

        No gradient; 0 at masked tokens.
        """

        def both(scores: TokenScores, micro_batch: TensorDict) -> torch.Tensor:
            return torch.stack([scores.log_probs_BT, scores.entropy_BT], dim=1)

        result_B2T = self.engine.forward(batch, both).to(batch["response_mask"].device)
        with raise_on_all_ranks(self.engine.ranks):
            require_finite(log_probs=result_B2T[:, 0], entropy=result_B2T[:, 1])
        return TokenScores(log_probs_BT=result_B2T[:, 0], entropy_BT=result_B2T[:, 1])

    def update(self, batch: TensorDict, *, policy_version: int | None = None) -> Metrics:
        """All optimiser steps of a training step; every rank calls it, even without rows.

        Args:
            batch: This rank's rows with `advantages`, `response_mask`, the scorer's columns,
                `ref_log_prob` if KL is in the loss, and old log-probs (see the module).
            policy_version: Version of the current weights; rows of other versions are left out of
                `rollout/log_prob_gap` and its mean. None: no row is left out.

        Returns:
            Metrics over all ranks, the same on every rank.

        Raises:
            ConfigError: A missing column.
            TensorError: Bad numbers on this rank; InvariantError on the others.
        """
        old_column = self._old_column(batch)
        # a selection needs the unique ids
        columns = with_bool_masks(
            batch if self.loss.selects else without_texts(batch), ranks=self.engine.ranks
        )
        owned = rows_by_id(batch, self.engine.ranks)
        steps: list[TrainStep] = []
        for epoch in range(self.config.ppo_epochs):
            parts = mini_batch_rows(
                batch=batch,
                rows=self.rows_per_mini_batch,
                ranks=self.engine.ranks,
                generator=self.generator,
                owned=owned,
            )
            for number, rows in enumerate(parts):
                # The weights equal those of the rollout only before the first step.
                acted = epoch == 0 and number == 0
                loss = functools.partial(
                    self.loss.of_micro_batch,
                    old_column=old_column,
                    gap=acted,
                    version=policy_version,
                )
                mini_batch = take_rows(columns, rows)
                if not self.loss.is_built_in:  # a user's function may change its arguments in place
                    mini_batch = mini_batch.clone()
                steps.append(self._step(mini_batch, loss, old_column))
        if self.observe is not None:
            self.observe(batch)
        metrics = _metrics(steps)
        self._follow_kl(metrics)
        return metrics

    def _follow_kl(self, metrics: Metrics) -> None:
        """Adjust the learning rate to the KL of an update of several optimiser steps.

        The KL is measured before each step, so it is 0 if there is only one.
        """
        target = self.config.target_kl
        if target is None or metrics["actor/updates"] < 2:
            return
        self.engine.rate_factor = next_rate_factor(
            self.engine.rate_factor,
            kl=metrics[APPROX_KL],
            target=target * self.engine.schedule_factor(),
        )

    def state_dict(self) -> dict[str, Any]:
        """State of the actor that the next update depends on.

        The engine saves weights and moments itself.
        """
        return {"generator": self.generator.get_state(), "rate_factor": self.engine.rate_factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, on any number of ranks."""
        self.generator.set_state(state["generator"])
        self.engine.rate_factor = state.get("rate_factor", 1.0)  # older checkpoints have none

    def _old_column(self, batch: TensorDict) -> str:
        needed = ["advantages", "response_mask"]
        if self.loss.uses_kl:
            needed.append("ref_log_prob")
        for name in needed:
            if name not in batch:
                known = ", ".join(sorted(map(str, batch.keys())))
                raise ConfigError(
                    f"The actor's update needs the column {name!r}; the batch has: {known}."
                )
        if self.loss.needs_behaviour and not (
            "old_log_probs" in batch and "rollout_log_probs" in batch
        ):
            raise ConfigError(
                "Importance weights are recomputed old_log_probs over rollout_log_probs: the "
                "actor's update needs both columns (compute_old_log_prob makes the first)."
            )
        if "old_log_probs" in batch:
            return "old_log_probs"
        if "rollout_log_probs" not in batch:
            raise ConfigError("The actor's update needs old_log_probs or rollout_log_probs.")
        return "rollout_log_probs"

    def _step(
        self,
        rows: TensorDict,
        loss: Callable[[TokenScores, TensorDict], LossSum],
        old_column: str,
    ) -> TrainStep:
        """Take one optimiser step; none if neither an advantage nor another term has a gradient.

        AdamW would otherwise move the weights by its momentum and shrink them by its decay, without
        a reason in the data. Rows without advantage (groups that were all correct or all wrong)
        count in the denominator. The passes skip them if they have no gradient.
        """
        skips = self.loss.advantage_only
        advantage_B = (rows["advantages"].abs() * rows["response_mask"]).nan_to_num(1.0).sum(1)
        weight: torch.Tensor | None = None
        if skips and float(self.engine.ranks.maximum(advantage_B.sum().cpu())) == 0:
            rows = rows[:0]
        else:
            if self.loss.selects:
                rows = self._with_selection(rows, old_column)
            if skips and len(rows):
                weight = self.loss.weight(rows)
                rows = take_rows(rows, (advantage_B > 0).nonzero()[:, 0])
        return self.engine.train_batch(
            rows, loss, self.loss.weight, weight=weight, sums_tokens=self.loss.sums_tokens
        )

    def _with_selection(self, rows: TensorDict, old_column: str) -> TensorDict:
        """Add the column of tokens that the loss selects over the whole mini-batch.

        The selection uses the current weights.
        """
        with raise_on_all_ranks(self.engine.ranks):
            self.loss.check_columns(rows, old_column)
        log_probs_BT = self.compute_log_prob(rows).log_probs_BT
        places_B = row_places(batch=rows, ranks=self.engine.ranks)
        rows = rows.clone(recurse=False)  # the mini-batch may be the caller's batch
        rows[SELECTED] = self.loss.select(
            rows,
            log_probs_BT=log_probs_BT,
            old_column=old_column,
            place_B=places_B,
            generator=self.generator,
            ranks=self.engine.ranks,
        )
        return rows


def _metrics(steps: list[TrainStep]) -> Metrics:
    """Unweighted means over the optimiser steps.

    Token statistics are means over the tokens of a step.
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
                count = OWN_TOKENS if name in PER_TOKEN else "tokens"
                values[name].append(total / step.batch.sums[count])
        if step.batch.sums.get(COMPARED, 0.0) > 0:
            values[MEAN_GAP].append(step.batch.sums[MEAN_GAP] / step.batch.sums[COMPARED])
    metrics = {name: sum(parts) / len(parts) for name, parts in values.items()}
    for name in ("actor/ratio_max", LARGEST_GAP):
        found = [step.batch.maxima[name] for step in steps if name in step.batch.maxima]
        if found:
            metrics[name] = max(found)
    if MEAN_GAP not in metrics:  # no row of these weights was compared
        metrics.pop(LARGEST_GAP, None)
    metrics["actor/lr"] = steps[-1].learning_rate
    metrics["actor/updates"] = float(sum(step.applied for step in steps))
    metrics["actor/skipped_updates"] = float(
        sum(step.batch.weight > 0 and not step.applied for step in steps)
    )
    return metrics


def require_agreement(
    metrics: Mapping[str, float], settings: ActorRolloutRefArguments, *, on_gpu: bool
) -> None:
    """Raise InvariantError if acting and training log-probs differ by more than rounding.

    The check uses the mean over tokens, which does not depend on the number of tokens. The maximum
    is a metric and grows with that number: of 7000 tokens in bfloat16, one was off by 0.05 in a
    correct run. Other frameworks log such numbers and do not stop. TRL logs the mean and the
    largest difference (`sampling/sampling_logp_difference`). verl logs the probability differences
    (`training/rollout_probs_diff_mean`, `_max`) and the k3 estimate of the KL. prime-rl logs that
    KL (`mismatch_kl`), NeMo RL the mean of `exp |difference|` (`token_mult_prob_error`), AReaL the
    importance weight (`behave_imp_weight`). Left out: a single wrong row among hundreds. In
    bfloat16 it moves the mean less than rounding does; the maximum shows it.
    """
    gap = metrics.get(MEAN_GAP, 0.0)
    bound = log_prob_gap_bound(settings, on_gpu=on_gpu)
    if not gap <= bound:  # also true for NaN
        raise InvariantError(
            "Acting and training disagree: log-probs of the same actions and weights differ by "
            f"{gap:.2g} in the mean and by {metrics[LARGEST_GAP]:.2g} at most; rounding explains a "
            f"mean of up to {bound:.2g} (actor_rollout_ref.rollout.max_log_prob_gap). The ratio of "
            "PPO would be wrong."
        )


def log_prob_gap_bound(settings: ActorRolloutRefArguments, *, on_gpu: bool) -> float:
    """Largest mean log-prob difference between acting and training that rounding explains.

    Measured on the shipped model: 5e-7 in float32. In bfloat16: 1e-3 to 3e-3 if one module acts and
    trains by the same kernels, and 9e-3 to 2e-2 if one side has bfloat16 weights (vLLM) and the
    other casts in the forward pass. A GPU acts and trains text with different kernels, compiled
    blocks and vLLM have further ones, and the difference grows with depth and width. Between vLLM
    and training on an H200, with random bfloat16 weights: 1.8e-2 for Qwen2.5-1.5B and 3.9e-2 for
    Qwen2.5-7B. Errors for comparison, of the shipped model: a temperature of 0.9 instead of 1.0
    gives 3e-2 to 6e-2; an off-by-one position gives 1.9; weights that are one step old give 0.4 at
    lr 2e-4 and 1.6e-2 at lr 1e-5. Smaller errors are detectable in float32 only; the checksum
    of the weight sync proves in any case that new weights arrived
    (siirl.engine.training.weight_sync).
    """
    rollout = settings.rollout
    if rollout.max_log_prob_gap is not None:
        return rollout.max_log_prob_gap
    if settings.model.dtype == "float32":
        return 1e-4
    other_kernels = (
        rollout.name in (VLLM, SERVER)
        or settings.actor.use_torch_compile
        or (rollout.name in TEXT_ENGINES and on_gpu)
    )
    if not other_kernels:
        return 1e-2
    return 1e-1 if on_gpu else 3e-2


def next_rate_factor(factor: float, *, kl: float, target: float) -> float:
    """Factor of the learning rate after an update with a measured `kl`, in nats per token.

    The effect of a rate depends on the policy: a rate that hardly moves a broad distribution
    overshoots with a sharp one. The factor therefore rises while the KL between the acting and the
    trained policy is under half the target, and falls while it is above twice the target (Schulman
    et al. 2017, arXiv 1707.06347, section 4, which applies it to a penalty). Rudin et al. 2022,
    arXiv 2109.11978, apply it to the rate. If the schedule lowers the rate, the target falls with
    it.
    """
    if kl > 2 * target:
        return max(factor / RATE_STEP, 1 / LARGEST_RATE_FACTOR)
    if kl < target / 2:
        return min(factor * RATE_STEP, LARGEST_RATE_FACTOR)
    return factor
