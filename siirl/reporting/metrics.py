"""Declares every metric: name `area/name`, meaning, and reduction over ranks.

Reductions are never guessed from names: a name not declared in `METRICS`, from a user's node, gets
its mean over ranks (`siirl.reporting.metric_reduction`). `siirl.reporting.metric_writers` writes
the reduced values.
"""

import enum
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from siirl.errors import ConfigError, UnknownNameError


class Weighted(NamedTuple):
    """A mean with its weight (tokens, trajectories, seconds), so that unequal ranks average
    correctly.
    """

    value: float
    weight: float


class Unusable(NamedTuple):
    """Placeholder for a recorded value that is not a number; it carries a description to rank 0."""

    what: str


Value = float | Weighted | Sequence[float] | Unusable
"""Recorded value: a number, a weighted mean (reduction `MEAN`), or a list (`DISTRIBUTION`).
"""
Reduced = float | list[float]


def finite(values: Sequence[float]) -> list[float]:
    """The finite values; histograms can hold only these."""
    return [value for value in values if math.isfinite(value)]


class Reduction(enum.Enum):
    """Reduction of the values of several ranks, and of one rank within a step."""

    SUM = "sum"
    """Counts, added over ranks."""
    RATE = "sum over ranks"
    """Rates, added over ranks; several rounds of one rank are averaged first.
    """
    DURATION = "sum over rounds, maximum over ranks"
    """Seconds: ranks wait for the slowest, and rounds of a step run one after another."""
    MEAN = "mean over all items"
    """Means, recorded as `Weighted`; weight 0 everywhere leaves the metric out."""
    RANK_MEAN = "mean over ranks"
    """Shares of each rank, such as its simulators' utilisation; used for undeclared metrics too.
    """
    MAX = "maximum"
    """Gaps and peaks."""
    MIN = "minimum"
    LAST = "the latest"
    """Values that are already global, hence equal on every rank."""
    TOTAL = "sum over nodes, equal on every rank"
    """Global counts of a node, if a step may have several such nodes, for example updates of one
    policy."""
    DISTRIBUTION = "all values"
    """The values of all ranks one after another; shown as quantiles and as a histogram."""


@dataclass(frozen=True)
class Metric:
    """A declared metric."""

    reduction: Reduction
    meaning: str
    own: bool = field(default=False, compare=False)
    """Whether a user registered it."""


_SUM = Reduction.SUM
_MEAN = Reduction.MEAN
_RANK_MEAN = Reduction.RANK_MEAN
_MAX = Reduction.MAX
_LAST = Reduction.LAST
_RATE = Reduction.RATE

# A part in angle brackets matches any text without a slash.
METRICS: dict[str, Metric] = {
    # The actor's update: already global, equal on every rank.
    "actor/loss": Metric(_LAST, "policy loss with its extra terms"),
    "actor/pg_loss": Metric(_LAST, "policy loss without extra terms"),
    "actor/entropy": Metric(_LAST, "entropy of the policy, nats per token"),
    "actor/pg_clipfrac": Metric(
        _LAST, "share of tokens whose ratio was clipped; of decisions with ratio_level=decision"
    ),
    "actor/pg_clipfrac_lower": Metric(_LAST, "share of tokens clipped by the dual clip"),
    "actor/ppo_kl": Metric(
        _LAST, "KL between behaviour and current policy, nats per token, the mean of -log ratio"
    ),
    "actor/approx_kl": Metric(
        _LAST, "the same, estimated by k3, which is never negative; target_kl follows it"
    ),
    "actor/ratio_max": Metric(_LAST, "largest importance ratio"),
    "actor/importance_weight": Metric(
        _LAST, "weight of a token, or decision, that corrects for the policy that acted"
    ),
    "actor/selected_share": Metric(
        _LAST, "share of tokens that the loss's selection restrains (Clip-Cov, KL-Cov)"
    ),
    "actor/policy_drift": Metric(_LAST, "CPGD's drift from the old policy"),
    "actor/kl_loss": Metric(
        _LAST, "KL to the reference policy, as a loss; per decision with ratio_level=decision"
    ),
    "actor/kl_coef": Metric(_LAST, "coefficient of the KL term"),
    "actor/reward_kl_penalty": Metric(_LAST, "KL subtracted from the reward"),
    "actor/grad_norm": Metric(_LAST, "norm of the whole gradient before clipping"),
    "actor/lr": Metric(_LAST, "learning rate"),
    "actor/skipped_updates": Metric(
        Reduction.TOTAL, "optimiser steps that were skipped because their gradient was not finite"
    ),
    "actor/weights_unchanged": Metric(
        _LAST, "1 if updates were applied but the acting weights did not change, else 0"
    ),
    "actor/updates": Metric(
        Reduction.TOTAL, "optimiser steps of this step; 0 without a training signal"
    ),
    # The critic's update: also global already.
    "critic/vf_loss": Metric(
        _LAST, "value loss; with critic.normalize_returns in deviations of the returns, squared"
    ),
    "critic/vf_clipfrac": Metric(_LAST, "share of values that were clipped"),
    "critic/grad_norm": Metric(_LAST, "norm of the critic's gradient before clipping"),
    "critic/lr": Metric(_LAST, "learning rate of the critic"),
    "critic/updates": Metric(Reduction.TOTAL, "optimiser steps of the critic in this step"),
    "critic/skipped_updates": Metric(
        Reduction.TOTAL,
        "optimiser steps of the critic that were skipped because their gradient was not finite",
    ),
    "critic/value_mean": Metric(_LAST, "mean value of a decision, before the update"),
    "critic/return_mean": Metric(_LAST, "mean return of a decision, the target of its value"),
    "critic/explained_variance": Metric(
        _LAST, "explained variance of the returns by the values before the update"
    ),
    "critic/warmup": Metric(_LAST, "1 in a step that trains only the critic"),
    # Rollouts.
    "rollout/success_rate": Metric(
        _MEAN, "share of all finished training episodes that succeeded, before any filter"
    ),
    "rollout/return": Metric(_MEAN, "sum of the environment's rewards per episode"),
    "rollout/<task>/success_rate": Metric(
        _MEAN, "share of this task's finished training episodes that succeeded, before any filter"
    ),
    "rollout/<task>/mixed_groups": Metric(
        _MEAN, "share of this task's groups with a success and a failure, before any filter"
    ),
    "rollout/episode_length": Metric(_MEAN, "environment steps per episode"),
    "rollout/episodes": Metric(_SUM, "finished episodes"),
    "rollout/avg_response_length": Metric(_MEAN, "tokens per response"),
    "rollout/avg_prompt_length": Metric(_MEAN, "tokens per prompt"),
    "rollout/turns": Metric(_MEAN, "turns of the model per episode"),
    "rollout/tokens_per_s": Metric(_RATE, "tokens generated per second of the rollout"),
    "rollout/reward/<part>": Metric(
        _MEAN, "part of the environment's reward per episode, before any filter"
    ),
    "rollout/rejected_episodes": Metric(_SUM, "episodes that the workflow rejected"),
    "rollout/ungraded_episodes": Metric(
        _SUM,
        "ungraded episodes, counted in neither success nor return",
    ),
    "rollout/truncated_share": Metric(
        _MEAN, "share of episodes that reached the limit of steps or of tokens"
    ),
    "rollout/entropy": Metric(_MEAN, "entropy of the sampled tokens, nats"),
    "rollout/log_prob_gap": Metric(
        _LAST, "largest difference of recomputed and behaviour log-probs"
    ),
    "rollout/log_prob_gap_mean": Metric(
        _LAST, "mean difference of recomputed and behaviour log-probs; limited by a bound"
    ),
    "rollout/stale_samples": Metric(_SUM, "samples of an older policy version"),
    # Filters and balancing.
    "sampling/rounds": Metric(_LAST, "rounds of rollouts of the step: 1, and one for each refill"),
    "sampling/groups": Metric(_LAST, "groups that are trained on, over all ranks"),
    "sampling/missing_groups": Metric(_LAST, "groups missing from the step after the last refill"),
    "sampling/kept": Metric(_SUM, "trajectories that passed the filter"),
    "sampling/dropped_<reason>": Metric(
        _SUM, "trajectories that the filter dropped for this reason"
    ),
    "data/trajectories": Metric(_SUM, "trajectories that are trained on"),
    "data/decisions": Metric(_SUM, "decisions that are trained on, as separate rows"),
    "data/bytes": Metric(_SUM, "size of the training batch"),
    "data/bytes_max_process": Metric(_MAX, "size of the largest rank's batch"),
    "data/bytes_moved": Metric(_SUM, "size of the rows that moved to another rank"),
    "data/epoch": Metric(_LAST, "passes over the training prompts so far"),
    "data/<task>/share": Metric(
        _LAST,
        "expected share of this task in the step's prompts (data.task_sampling=learnable)",
    ),
    "data/prompts": Metric(_LAST, "prompts that are trained on"),
    "data/prompts_too_long": Metric(
        _LAST, "training prompts of more than data.max_prompt_length tokens, left out or cut"
    ),
    "data/heldout_prompts_too_long": Metric(
        _LAST, "held-out prompts of more than data.max_prompt_length tokens, left out or cut"
    ),
    "data/prompts_also_held_out": Metric(
        _LAST,
        "prompts of the training files that are also in the validation files and are left out",
    ),
    "data/prompts_nearly_held_out": Metric(
        _LAST, "training prompts that differ from a held-out one only in case or blanks"
    ),
    "data/imbalance": Metric(_LAST, "largest share of a rank over the mean share, in tokens"),
    # The reward.
    "reward/mean_score": Metric(_MEAN, "trajectory reward"),
    "reward/success_rate": Metric(_MEAN, "share of successes among the rewarded trajectories"),
    "reward/baseline": Metric(_MEAN, "reward of the greedy response to a prompt"),
    "reward/score": Metric(Reduction.DISTRIBUTION, "trajectory rewards"),
    "reward/failure_score": Metric(Reduction.DISTRIBUTION, "trajectory rewards of failures"),
    "reward/failed": Metric(
        _SUM, "trajectories that were dropped because their reward could not be computed"
    ),
    "reward/penalty": Metric(_MEAN, "added to the score for long responses"),
    "reward/part/<part>": Metric(_MEAN, "a summand of the reward, before weighting"),
    "reward/distance": Metric(
        Reduction.DISTRIBUTION, "distance of failures to the nearest cluster of successes"
    ),
    "reward/clusters": Metric(_LAST, "clusters of successes, over all tasks"),
    "reward/noise_share": Metric(_LAST, "share of references that belong to no cluster"),
    "reward/value_skill": Metric(
        _LAST,
        "how clearly the first half of a success is rated above that of a failure, 0 to 1, less "
        "what chance would explain; mean over tasks",
    ),
    "reward/<task>/value_skill": Metric(
        _LAST, "the same of one task; at 0 its failures earn 0, as with reward=success"
    ),
    "reward/<statistic>": Metric(_LAST, "a statistic of the trajectory reward over all ranks"),
    "advantage/mean": Metric(_MEAN, "advantage"),
    "advantage/abs_mean": Metric(_MEAN, "size of the advantage"),
    "advantage/zero_groups": Metric(_SUM, "groups that carry no advantage"),
    # Simulators and inference.
    "env/steps": Metric(_SUM, "environment steps"),
    "env/steps_per_s": Metric(_RATE, "environment steps per second"),
    "env/busy_share": Metric(_RANK_MEAN, "share of the rollout during which a simulator was busy"),
    "env/failures": Metric(_SUM, "episodes that could not be simulated"),
    "env/replays": Metric(_SUM, "episodes replayed, or started again, after a fault"),
    "env/failed_episodes": Metric(
        _SUM, "episodes that could not be simulated; counted nowhere else"
    ),
    "policy/calls": Metric(_SUM, "forward passes of the policy during the rollout"),
    "policy/calls_per_s": Metric(_RATE, "forward passes per second"),
    "policy/batch_size": Metric(_MEAN, "requests in one forward pass"),
    "policy/busy_share": Metric(
        _RANK_MEAN, "share of the rollout during which the policy was busy"
    ),
    "policy/version": Metric(_LAST, "updates that the policy has had"),
    # Resource groups, and samples of older versions (trainer.max_staleness).
    "group/<group>/idle_share": Metric(
        _RANK_MEAN,
        "share of the time that a group waited for the other; rollout ranks of a stream report at "
        "most once a second, and a step without a report lacks their values",
    ),
    "staleness/samples": Metric(
        Reduction.DISTRIBUTION, "age in training steps of the oldest weights in a sample"
    ),
    "staleness/stale_share": Metric(_MEAN, "share of samples from older weights than the newest"),
    "staleness/mixed_share": Metric(_MEAN, "share of samples with tokens of several versions"),
    "staleness/discarded_prompts": Metric(_SUM, "prompts dropped because they were too old"),
    "staleness/discarded_share": Metric(
        _RANK_MEAN, "share of finished prompts that were dropped because they were too old"
    ),
    # Evaluation on held-out seeds; `<task>` is `all` for all tasks together.
    "val/<task>/success_rate": Metric(_MEAN, "share of successes, sampled actions"),
    "val/<task>/successes": Metric(_SUM, "successes"),
    "val/<task>/episodes": Metric(_SUM, "episodes"),
    "val/<task>/ungraded_episodes": Metric(_SUM, "episodes that the environment does not grade"),
    "val/<task>/return": Metric(_MEAN, "sum of the environment's rewards per episode"),
    "val/<task>/pass_at_<k>": Metric(
        _MEAN,
        "chance that one of k sampled answers is right, estimated without bias, over the prompts",
    ),
    "val/<task>/any_successes": Metric(
        _SUM, "prompts for which one of the trainer.val_samples answers is right"
    ),
    "val/<task>/any_episodes": Metric(_SUM, "prompts with trainer.val_samples answers"),
    "val/<task>/argmax_success_rate": Metric(_MEAN, "share of successes, greedy actions"),
    "val/<task>/argmax_successes": Metric(_SUM, "successes, greedy actions"),
    "val/<task>/argmax_ungraded_episodes": Metric(
        _SUM, "episodes that the environment does not grade, greedy actions"
    ),
    "val/<task>/argmax_episodes": Metric(_SUM, "episodes, greedy actions"),
    "val/<task>/argmax_return": Metric(
        _MEAN, "sum of the environment's rewards per episode, greedy actions"
    ),
    # The job's own reward for held-out episodes that the environment leaves ungraded; already over
    # all ranks.
    "val/<task>/mean_score": Metric(
        _LAST, "reward of an episode, without the penalty on long responses, sampled actions"
    ),
    "val/<task>/score_std": Metric(_LAST, "standard deviation of at least two rewards"),
    "val/<task>/scored_episodes": Metric(_LAST, "episodes that the reward scored"),
    "val/<task>/unscored_episodes": Metric(
        _LAST, "episodes that the reward failed to score; they are in no mean"
    ),
    "val/<task>/argmax_mean_score": Metric(_LAST, "reward of an episode, greedy actions"),
    "val/<task>/argmax_score_std": Metric(
        _LAST, "standard deviation of the rewards, greedy actions"
    ),
    "val/<task>/argmax_scored_episodes": Metric(
        _LAST, "episodes that the reward scored, greedy actions"
    ),
    "val/<task>/argmax_unscored_episodes": Metric(
        _LAST, "episodes that the reward failed to score, greedy actions"
    ),
    # Time and memory.
    "time/step_s": Metric(
        Reduction.DURATION, "seconds of the step, without its evaluation, on the slowest rank"
    ),
    "time/evaluation_s": Metric(
        Reduction.DURATION, "seconds of the held-out evaluation, which are not in time/step_s"
    ),
    "time/encode_video_s": Metric(
        Reduction.DURATION, "seconds of encoding videos for the reward, part of the rollout's node"
    ),
    "time/send_weights_s": Metric(
        Reduction.DURATION,
        "seconds at the end of a step in which training ranks send weights to rollout ranks, or "
        "wait until those ask; weights sent while training waits for rows are in that node's time",
    ),
    "time/<node>_s": Metric(Reduction.DURATION, "seconds of this node on the slowest rank"),
    "memory/host_peak_bytes": Metric(
        _MAX,
        "peak resident host memory of the largest rank, in this step; a rollout rank of its own "
        "counts with the time since its last report, as in the other peaks",
    ),
    "memory/host_peak_of_run_bytes": Metric(
        _MAX,
        "the same since the rank's start, instead, where the kernel resets no peak "
        "(/proc/self/clear_refs is not writable)",
    ),
    "memory/gpu_peak_bytes": Metric(
        _MAX, "peak memory of tensors on the fullest GPU, in this step"
    ),
    "memory/gpu_beyond_held_bytes": Metric(
        _MAX,
        "memory/gpu_peak_bytes without the weights, moments and copies that the same rank keeps "
        "between steps: at the peak, activations with gradients, or keys and values, the encoder "
        "and the reward model; vLLM's own processes are in memory/vllm_gpu_peak_bytes",
    ),
    "memory/gpu_loading_peak_bytes": Metric(
        _MAX,
        "peak memory of tensors on the fullest GPU of a training rank while models are loaded; "
        "once a run",
    ),
    "memory/<model>_gradients_bytes": Metric(
        _MAX,
        "gradients of the largest rank at an optimiser's step of this model; an update frees them",
    ),
    "memory/rollout_weights_bytes": Metric(
        _MAX,
        "acting weights of the largest rollout rank of its own, on its device, with the second "
        "copies in which new ones arrive; vLLM's weights are not counted",
    ),
    "memory/keys_values_bytes": Metric(
        _MAX,
        "largest keys and values of a rank's engine in this step; vLLM allocates all at once. An "
        "update frees those of siirl's own engine, and of a vLLM that sleeps",
    ),
    "memory/encoder_bytes": Metric(
        _MAX,
        "weights of the reward's V-JEPA encoder, on its device while it encodes a rollout",
    ),
    "memory/vllm_host_peak_bytes": Metric(
        _MAX,
        "peak resident memory, in this step, of vLLM's own processes (rollout.mode=async) that "
        "compute for the largest rank; since their start where the kernel resets no peak",
    ),
    "memory/vllm_gpu_peak_bytes": Metric(
        _MAX, "peak memory of tensors of the same processes on their GPUs, in this step"
    ),
    "memory/<what>_bytes": Metric(
        _MAX,
        "memory of its device that the largest rank keeps between steps for this part; not listed "
        "are activations and a reward model",
    ),
    # A rank has actor_rollout_ref.rollout.tensor_model_parallel_size GPUs; on CPUs it counts as
    # one.
    "perf/throughput": Metric(
        _SUM,
        "tokens of prompts and responses per second and GPU of the job (on CPUs per rank), over "
        "the whole step",
    ),
    "perf/update_tflops_per_s": Metric(
        _RANK_MEAN,
        "operations of the model in the actor's update, per second and GPU (on CPUs per rank; "
        "1e12)",
    ),
    "perf/mfu": Metric(
        _RANK_MEAN,
        "operations of the model in the actor's update per second and GPU, over the peak that the "
        "vendor of the GPU states; only for a known GPU",
    ),
    "perf/env_steps_per_s": Metric(
        _SUM,
        "environment steps per second and GPU of the job (on CPUs per rank), over the whole step",
    ),
    "perf/idle_share": Metric(_RANK_MEAN, "share of the step in which a rank waits for the others"),
    "perf/largest_idle_share": Metric(
        _MAX, "share of the step in which the rank that waits longest is idle"
    ),
    "sync/bytes": Metric(
        _MAX,
        "bytes of weights that the syncs of the step transferred, 0 if nothing was copied; if "
        "weights are sent to rollout ranks, of the transfers since the end of the step before, "
        "once for all receivers, and up to the last bucket if one broke off",
    ),
    "sync/swap_seconds": Metric(
        Reduction.DURATION,
        "seconds in which a rollout rank of its own generated nothing while it exchanged weights, "
        "since its last report",
    ),
    "sync/seconds": Metric(
        Reduction.DURATION,
        "seconds of the weight syncs of the step, checks included, and of sending weights to "
        "rollout ranks since the end of the step before",
    ),
    "recorder/videos": Metric(_SUM, "videos written so far"),
}


AGENT_PREFIX = re.compile(r"\Aagent_\d+/")
"""Prefix of an agent group's metrics (siirl.dag_worker.agent_groups)."""


def register_metric(name: str, *, reduction: Reduction, meaning: str) -> None:
    """Declare a metric of the user's own, before the run starts and on every rank.

    Raises:
        ConfigError: A name that is not `area/name`, or that already has another declaration.
    """
    if not re.fullmatch(r"[a-z0-9_]+(/[A-Za-z0-9_.<>-]+)+", name):
        raise ConfigError(
            f"Metric {name!r} is not of the form area/name, for example 'reward/jerk'."
        )
    metric = Metric(reduction, meaning, own=True)
    if METRICS.setdefault(name, metric) != metric:
        raise ConfigError(
            f"Metric {name!r} is already declared, as {METRICS[name]}: use another name."
        )
    _pattern.cache_clear()


def declaration(name: str) -> Metric:
    """The declaration of `name`: its own, or that of the first matching name with angle brackets.

    Raises:
        UnknownNameError: No declaration fits.
    """
    found = find_declaration(name)
    if found is not None:
        return found
    raise UnknownNameError.of(
        kind="metric (declare it with siirl.reporting.metrics.register_metric)",
        name=name,
        known=METRICS,
    )


def find_declaration(name: str) -> Metric | None:
    """`declaration`, or None if none matches; an agent group's prefix (`agent_1/`) is left out."""
    name = AGENT_PREFIX.sub("", name)
    if name in METRICS:
        return METRICS[name]
    fitting = (
        metric
        for declared, metric in METRICS.items()
        if "<" in declared and _pattern(declared).fullmatch(name)
    )
    return next(fitting, None)


@functools.cache
def _pattern(declared: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(re.escape(part) for part in re.split(r"<[a-z_]+>", declared)))
