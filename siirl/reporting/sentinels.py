"""Sentinels: warn once, with a remedy, when metrics show that a run does not learn.

A sentinel sees the reduced metrics of every training step in order and returns a warning or None.
Left out: ending the run; a metric alone does not prove that it failed.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import Protocol

from siirl.reporting.metrics import Reduced

Metrics = Mapping[str, Reduced]

# With 96 rollouts per step and 1 % success, ten steps without success have probability 6e-5.
CONSTANT_STEPS = 10
MAIN_REASON = 0.1  # share of the dropped trajectories from which the remedy of a reason is given
IDLE_STEPS = 3  # consecutive steps without an update; one or two happen by chance with few groups
# Share of the first step's entropy; runs that solve their task end at 0.05 to 0.3.
COLLAPSED_SHARE = 0.02
COLLAPSED_STEPS = 5  # entropy of a single step depends on its tasks
STALLED_KL = 1e-5  # nats per token; runs that learn have 1e-3 to 3e-2
STALLED_STEPS = 10  # the KL of one step is a noisy estimate
# Compares the success of each task in the first and last steps. Of 54 recorded runs, two had such a
# fall: one trained at too high a rate, the other on samples that were four versions old.
FALLEN_STEPS = 10
FALLEN_ERRORS = 3.0  # standard errors; steps differ by their prompts
FALLEN_SHARE = 0.8  # of the initial success; a smaller fall is not worth a warning
# With four groups of a task per step: 80 groups, of which at most seven are mixed. A task with a
# share of 0.2 has so few in 1 % of such windows.
UNMIXED_STEPS = 20
UNMIXED_SHARE = 0.1
UNRANKED_STEPS = 20  # the correlation of a step has a standard error of about 0.3
UNSKILLED_STEPS = 10
RARE = 0.1  # success below which more successes are what a task needs
SOLVED = 0.9  # success above which low entropy is expected


class Sentinel(Protocol):
    """Detects one symptom."""

    def look(self, metrics: Metrics) -> str | None:
        """The warning, if the steps so far justify it."""


@dataclass
class ConstantReward:
    """Every trajectory of many consecutive steps has the same reward."""

    value: float | None = None
    steps: int = 0

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel; ignores steps without a scored trajectory."""
        rewards = metrics.get("reward/score")
        if not isinstance(rewards, list) or not rewards:
            return None
        value = rewards[0] if min(rewards) == max(rewards) else None
        self.steps = self.steps + 1 if value is not None and value == self.value else 1
        self.value = value
        if value is None or self.steps < CONSTANT_STEPS:
            return None
        return (
            f"Every reward of the last {self.steps} steps was {value:g}. {_remedy_of_reward(value)}"
        )


def _remedy_of_reward(value: float) -> str:
    if value == 0.0:
        return (
            "A policy that never succeeds learns nothing from a 0/1 reward: start from weights "
            "that sometimes succeed (siirl warm-start), use easier tasks, or a reward that "
            "ranks failures (reward=srpo). If rollouts do succeed, the reward function is wrong."
        )
    if value == 1.0:
        return "The policy solves all its tasks: use harder ones, or end the run."
    return "Check the reward function: it gives every rollout the same reward."


@dataclass
class UnchangedWeights:
    """Optimiser steps were applied, but the acting weights did not change."""

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel; updates with a learning rate or gradient of 0 cannot change a weight."""
        unchanged = metrics.get("actor/weights_unchanged") == 1.0
        rate = metrics.get("actor/lr", 0.0)
        norm = metrics.get("actor/grad_norm", 0.0)
        if not unchanged or not rate or not norm:
            return None
        return (
            f"An update was applied (learning rate {rate:.2g}, gradient norm {norm:.2g}), but no "
            "weight of the acting policy changed: the update is smaller than the weights' "
            "rounding. Raise actor_rollout_ref.actor.optim.lr, or use "
            "actor_rollout_ref.model.dtype=float32. If the model is your own, check that its "
            "parameters require gradients."
        )


@dataclass
class StalledPolicy:
    """Updates at about the highest learning rate of the run hardly move the policy."""

    largest_rate: float = 0.0
    steps: int = 0

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel. Ignores steps with a low rate, because a schedule lowers it on purpose.

        The KL is measured before each optimiser step, so an update with a single step says nothing.
        """
        rate, kl = metrics.get("actor/lr"), metrics.get("actor/ppo_kl")
        updates = metrics.get("actor/updates")
        if not (isinstance(rate, float) and isinstance(kl, float) and isinstance(updates, float)):
            return None
        self.largest_rate = max(self.largest_rate, rate)
        stalled = abs(kl) < STALLED_KL and rate > self.largest_rate / 2
        self.steps = self.steps + 1 if stalled and updates > 1 else 0
        if self.steps < STALLED_STEPS:
            return None
        return (
            f"The updates of the last {self.steps} steps moved the policy by less than "
            f"{STALLED_KL:.0e} nats per token at a learning rate of {rate:.2g}. Raise "
            "actor_rollout_ref.actor.optim.lr. actor_rollout_ref.actor.target_kl (0.01) adjusts "
            "it within limits."
        )


@dataclass
class CollapsedEntropy:
    """The policy has become almost deterministic without solving its tasks."""

    first: float | None = None
    steps: int = 0

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel."""
        entropy = metrics.get("actor/entropy")
        success = metrics.get("rollout/success_rate")
        if not isinstance(entropy, float):
            return None
        if self.first is None:
            self.first = entropy
        solved = isinstance(success, float) and success >= SOLVED
        collapsed = self.first > 0 and entropy < COLLAPSED_SHARE * self.first and not solved
        self.steps = self.steps + 1 if collapsed else 0
        if self.steps < COLLAPSED_STEPS:
            return None
        return (
            f"The policy's entropy fell from {self.first:.2g} to {entropy:.2g} nats per token; its "
            "rollouts are nearly identical and give little signal. Resume from an earlier "
            "checkpoint (trainer.resume) with a lower actor_rollout_ref.actor.optim.lr, a higher "
            "actor_rollout_ref.rollout.temperature or actor_rollout_ref.actor.entropy_coef above 0."
        )


@dataclass
class EveryGroupFiltered:
    """Filters dropped every group for several consecutive steps."""

    steps: int = 0

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel."""
        idle = metrics.get("actor/updates") == 0.0
        warming_up = bool(metrics.get("critic/warmup"))
        filtered = idle and not warming_up and not metrics.get("actor/skipped_updates")
        self.steps = self.steps + 1 if filtered else 0
        if self.steps < IDLE_STEPS:
            return None
        dropped = dropped_trajectories(metrics)
        main = [
            reason
            for reason, count in sorted(dropped.items(), key=lambda item: -item[1])
            if count >= MAIN_REASON * sum(dropped.values())
        ]
        split = set(_ENDS) <= set(main) and any(
            RARE <= success < SOLVED for _, success in _success_of_tasks(metrics)
        )
        texts = [
            _SAMPLE_MORE_BROADLY if split and reason in _ENDS else _REMEDY_OF_DROP.get(reason)
            for reason in main
        ]
        remedies = dict.fromkeys(text or _ANY_DROP for text in texts or [None])
        counts = ", ".join(
            f"{reason.replace('_', ' ')} {count:.0f}" for reason, count in dropped.items()
        )
        if not dropped and "critic/updates" in metrics:
            return f"Every advantage of the last {self.steps} steps was 0. {_NO_ADVANTAGE}"
        return (
            f"Every group of the last {self.steps} steps was dropped"
            f"{f' (trajectories dropped: {counts})' if counts else ''}. "
            f"{' '.join(remedies)}"
        )


_ANY_DROP = (
    "The rewards within each group are identical: use more rollouts per prompt "
    "(actor_rollout_ref.rollout.n), a higher temperature, or tasks of different difficulty."
)
_ENDS = ("all_success", "all_failure_without_reference")
_SAMPLE_MORE_BROADLY = (
    "The start state decides the outcome, so a 0/1 reward hardly teaches. Sample more broadly: a "
    "higher actor_rollout_ref.rollout.temperature, for robots also "
    "actor_rollout_ref.rollout.noise_correlation, or a start from siirl warm-start with more "
    "--target-noise."
)
_NO_ADVANTAGE = (
    "Whitening subtracts the mean of a step, so a single decision or equal ones have the advantage "
    "0: take more decisions per step (data.train_batch_size, actor_rollout_ref.rollout.n_steps)."
)
_REMEDY_OF_DROP = {
    "all_success": "Tasks whose rollouts all succeed are solved: use harder ones, or end the run.",
    "all_failure_without_reference": (
        "Of tasks whose rollouts all fail no success is known: start from weights that sometimes "
        "succeed (siirl warm-start), or with reward=srpo give demonstrations "
        "(reward.demonstrations)."
    ),
    "truncated": "Rollouts reach their length limit: raise data.max_response_length or "
    "env.max_episode_steps.",
    "outside_success_band": "Widen algorithm.filter.success_low and algorithm.filter.success_high.",
    "alone_in_group": "Each group has one rollout: raise actor_rollout_ref.rollout.n.",
    "filter_plugin": "The node's filter accepts no trajectory.",
}


@dataclass
class UnmixedGroups:
    """Tasks whose groups hardly ever have both a success and a failure, each named once.

    Left out: solved tasks beside solved tasks only; the run has reached its end.
    """

    found: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    """Share of mixed groups and success rate of a task's last steps."""
    named: set[str] = field(default_factory=set)

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel; ignores tasks without a group in the step."""
        for task, success in _success_of_tasks(metrics):
            mixed = metrics.get(f"rollout/{task}/mixed_groups")
            if isinstance(mixed, float):
                of_task = self.found.setdefault(task, deque(maxlen=UNMIXED_STEPS))
                of_task.append((mixed, success))
        means = {
            task: [fmean(kind) for kind in zip(*of_task, strict=True)]
            for task, of_task in self.found.items()
        }
        all_solved = all(success >= SOLVED for _, success in means.values())
        idle = [
            (task, mixed, success)
            for task, (mixed, success) in means.items()
            if len(self.found[task]) == UNMIXED_STEPS and mixed < UNMIXED_SHARE
            if task not in self.named
        ]
        if not idle or all_solved:
            return None
        self.named.update(task for task, *_ in idle)
        return " ".join(
            _remedy_of_task(task, mixed=mixed, success=success) for task, mixed, success in idle
        )


def _success_of_tasks(metrics: Metrics) -> Iterator[tuple[str, float]]:
    """Task and success rate of each task of a step."""
    for name, success in metrics.items():
        task = name.removeprefix("rollout/").removesuffix("/success_rate")
        if name == f"rollout/{task}/success_rate" and isinstance(success, float):
            yield task, success


def _remedy_of_task(task: str, *, mixed: float, success: float) -> str:
    found = (
        f"{task}: {mixed:.0%} of the groups of the last {UNMIXED_STEPS} steps had both a success "
        f"and a failure, and {success:.0%} of the rollouts succeeded."
    )
    if success >= SOLVED:
        return (
            f"{found} The task is solved and takes rollouts from the others: "
            "data.task_sampling=learnable draws fewer of its prompts; where the schedule "
            "refuses that key, leave the task out."
        )
    if success >= RARE:
        return f"{found} {_SAMPLE_MORE_BROADLY}"
    return (
        f"{found} A 0/1 reward hardly teaches. Start from weights that succeed more often (siirl "
        "warm-start with more --updates, for robots also more --demonstrations), or leave the task "
        "out."
    )


@dataclass
class UnrankedFailures:
    """The reward's order of failures does not agree with the true distance to success."""

    found: deque[float] = field(default_factory=lambda: deque(maxlen=UNRANKED_STEPS))

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel; ignores steps without enough failures, or without true distances."""
        correlation = metrics.get("reward/oracle_rank_correlation")
        if not isinstance(correlation, float) or math.isnan(correlation):
            return None
        self.found.append(correlation)
        if len(self.found) < UNRANKED_STEPS or fmean(self.found) > 0:
            return None
        return (
            f"The rewards of failures had a rank correlation of {fmean(self.found):.2f} with their "
            f"true closeness to success in the last {UNRANKED_STEPS} measured steps: their "
            "differences may be noise. reward=success rewards all failures alike; siirl "
            "reward-check measures other rewards and encoders on this policy."
        )


@dataclass
class UnskilledValue:
    """Tasks of reward=video_value whose failures are not ranked, each named once."""

    steps: dict[str, int] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel; ignores tasks without a skill in the step, which have few failures."""
        for name, skill in metrics.items():
            task = name.removeprefix("reward/").removesuffix("/value_skill")
            if name == f"reward/{task}/value_skill":
                self.steps[task] = self.steps.get(task, 0) + 1 if skill == 0.0 else 0
        unskilled = [
            task
            for task, steps in self.steps.items()
            if steps >= UNSKILLED_STEPS and task not in self.named
        ]
        if not unskilled:
            return None
        self.named.update(unskilled)
        return (
            f"{', '.join(unskilled)}: in the last {UNSKILLED_STEPS} steps the reward could not "
            "tell unfinished successes from failures, so failures earned 0, as with "
            "reward=success. It needs five successes of a task: give demonstrations "
            "(reward.demonstrations). With more, the video may not show the task: use another "
            "camera or reward.encoder."
        )


@dataclass
class FallenSuccess:
    """Training success is clearly lower than in the first steps."""

    first: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, deque[float]] = field(default_factory=dict)

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel; compares each task with itself, since a step's mix of tasks varies."""
        for task, success in _success_of_tasks(metrics):
            first = self.first.setdefault(task, [])
            last = self.last.setdefault(task, deque(maxlen=FALLEN_STEPS))
            (first if len(first) < FALLEN_STEPS else last).append(success)
        if not self.last or any(len(last) < FALLEN_STEPS for last in self.last.values()):
            return None
        before, after = (fmean(map(fmean, found.values())) for found in (self.first, self.last))
        spread = sum(
            variance(values) / len(values) for values in (*self.first.values(), *self.last.values())
        )
        error = math.sqrt(spread) / len(self.first)
        if after >= FALLEN_SHARE * before or before - after <= FALLEN_ERRORS * error:
            return None
        return (
            f"Training success fell from {before:.0%} in the first {FALLEN_STEPS} steps to "
            f"{after:.0%} in the last {FALLEN_STEPS}: the updates follow noise. Lower "
            "actor_rollout_ref.actor.optim.lr, or raise data.train_batch_size; docs/learning.md "
            "explains how to decide."
        )


@dataclass
class HeldOutPromptsTrain:
    """Training prompts equal held-out prompts except for case and whitespace."""

    def look(self, metrics: Metrics) -> str | None:
        """See Sentinel."""
        count = metrics.get("data/prompts_nearly_held_out", 0.0)
        if not count:
            return None
        return (
            f"{count:.0f} training prompts differ from a held-out prompt only in case or "
            "whitespace, so held-out success is overstated: remove them from "
            "data.train_files, or give data.val_files with other questions."
        )


def dropped_trajectories(metrics: Metrics) -> dict[str, float]:
    """Counts of dropped trajectories by reason, without zeros."""
    prefix = "sampling/dropped_"
    counts = {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix)
    }
    return {
        reason: value for reason, value in counts.items() if isinstance(value, float) and value > 0
    }


OF_TASKS = (UnmixedGroups, UnskilledValue)
"""Sentinels that warn once for each task."""


class Sentinels:
    """All sentinels of a run; each is removed after its warning, except `OF_TASKS`."""

    def __init__(self) -> None:
        self._waiting: list[Sentinel] = [
            ConstantReward(),
            UnchangedWeights(),
            CollapsedEntropy(),
            EveryGroupFiltered(),
            UnmixedGroups(),
            UnrankedFailures(),
            UnskilledValue(),
            FallenSuccess(),
            StalledPolicy(),
            HeldOutPromptsTrain(),
        ]

    def look(self, metrics: Metrics) -> list[str]:
        """New warnings after a training step with these metrics."""
        warnings = {id(sentinel): sentinel.look(metrics) for sentinel in self._waiting}
        self._waiting = [
            sentinel
            for sentinel in self._waiting
            if warnings[id(sentinel)] is None or isinstance(sentinel, OF_TASKS)
        ]
        return [warning for warning in warnings.values() if warning is not None]
