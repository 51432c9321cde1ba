"""Evaluation on held-out episodes: successes per task, for sampled actions or for the most likely
ones, and pass@k.

Held-out seeds are disjoint from training seeds by construction
(`siirl.data_coordinator.task_stream`), and so are held-out questions; they are the same at every
evaluation, so that two of them can be compared. Ranks share the prompts; what each records is added
up with the other metrics of the step.

With several samples a prompt, the interval of `success_rate` is one for these prompts (it is then
rather too wide: answers to one prompt vary less than answers to different ones). Whoever wants to
know about prompts not asked takes one sample of more prompts.

Rows that the environment cannot grade have no success. The job's own reward says what it thinks of
these episodes, and of no others.

What an episode saw is let go as soon as it is over: the pictures in memory are those of the
episodes that run, and of the few videos that wait to be written.
"""

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from siirl.dag_worker.domain import share_of
from siirl.dag_worker.no_rows import with_columns_of_all
from siirl.dag_worker.outcomes import check_reward_failures, score_rows
from siirl.data_coordinator.prompts.dataset import task_name
from siirl.data_coordinator.task_stream import EpisodeTask, evaluation_tasks
from siirl.engine.reward_manager import RewardManager
from siirl.engine.rollout.executor import RolloutResult, trajectories_of
from siirl.engine.rollout.failures import check_failures
from siirl.engine.rollout.rollout import Rollout, reset_options
from siirl.engine.rollout.workflow import (
    RECORDER_STREAM,
    EpisodeRequest,
    RolloutWorkflow,
    Trajectory,
)
from siirl.engine.training.collectives import Collectives
from siirl.reporting.finished_episodes import Recorder
from siirl.reporting.metrics import Value, Weighted
from siirl.reporting.statistics import pass_at_k

ALL_TASKS = "all"
Thing = TypeVar("Thing")


class Outcome(NamedTuple):
    """How a held-out episode went."""

    prompt: int
    task: str
    success: bool
    env_return: float
    graded: bool = True
    """Whether the environment says so; where not, the two mean nothing."""


class Validator:
    """Evaluates the policy of a rollout.

    Args:
        rollout: Environments and engine of this rank.
        ranks: The processes that share the episodes.
        recorder: Shows some of the episodes.
        tasks: Names of the tasks, in the order of their ids.
        episodes: Held-out prompts of each task.
        first_seed: Prompt i of every task has seed first_seed + i.
        record: Episodes of one evaluation that become videos, over all ranks.
        max_failed_share: Share of an evaluation's episodes, over all ranks, that may fail to
            simulate.
        prompts: This rank's held-out prompts where they come from files; None: `episodes` of each
            task, made up from their seeds.
        options: For every episode's reset, for example `{"split": "heldout"}` where the environment
            asks different questions then.
        samples: Sampled episodes of each prompt; most likely actions need no more than one.
        kinds: The evaluations of a training run: sampled actions (False), the most likely ones
            (True), or both.
        reward: Scores the episodes that the environment does not grade; None: it grades them all.
            Closed by whoever made it.
        max_unscored_share: Share of an evaluation's episodes, over all ranks, that the reward may
            fail to score.
    """

    def __init__(
        self,
        *,
        rollout: Rollout,
        ranks: Collectives,
        recorder: Recorder,
        tasks: Sequence[str],
        episodes: int,
        first_seed: int,
        record: int,
        max_failed_share: float,
        prompts: Sequence[EpisodeTask] | None = None,
        options: Mapping[str, Any] | None = None,
        samples: int = 1,
        kinds: Sequence[bool] = (False,),
        reward: RewardManager | None = None,
        max_unscored_share: float = 0.0,
    ) -> None:
        self.rollout, self.ranks, self.recorder = rollout, ranks, recorder
        self.tasks, self.episodes, self.first_seed, self.record = (
            tuple(tasks),
            episodes,
            first_seed,
            record,
        )
        self.max_failed_share, self.prompts, self.options = (
            max_failed_share,
            prompts,
            dict(options or {}),
        )
        self.samples, self.kinds = samples, tuple(kinds)
        self.reward, self.max_unscored_share = reward, max_unscored_share

    def evaluate(
        self,
        *,
        step: int,
        greedy: bool = False,
        record: bool = True,
        on_done: Callable[[EpisodeRequest], None] = lambda request: None,
    ) -> dict[str, Value]:
        """Run this rank's share of the episodes, with videos of some unless `record` is false;
        `val/<task>/…` of that share.
        """
        requests = self._requests(
            step=step, greedy=greedy, recorded=share_of(self.record, self.ranks) if record else 0
        )
        light = _WithoutPictures(
            self.rollout.workflow, show=lambda trajectory: self._show(trajectory, step=step)
        )
        result, _ = self.rollout.generate(requests, embed=False, workflow=light, on_done=on_done)
        check_failures(
            result, episodes=len(requests), max_failed_share=self.max_failed_share, ranks=self.ranks
        )
        self.recorder.keep(result.trajectories, kind="val", step=step)
        ungraded = [
            trajectory for trajectory in result.trajectories if not _outcome(trajectory).graded
        ]
        rewards = {} if self.reward is None else self._rewards(RolloutResult(ungraded), self.reward)
        self.recorder.write(rewards)
        outcomes = [_outcome(trajectory) for trajectory in result.trajectories]
        metrics = evaluation_metrics(
            outcomes, greedy=greedy, reports_success=self.rollout.pool.spec.reports_success
        )
        if self.samples > 1 and not greedy and self.rollout.pool.spec.reports_success:
            graded = [outcome for outcome in outcomes if outcome.graded]
            metrics |= pass_at_k_metrics(
                graded, samples=self.samples * self.rollout.pool.spec.num_agents
            )
        if self.reward is not None:
            scores = [
                (trajectory.row["task_name"], rewards.get(trajectory.row["uid"]))
                for trajectory in ungraded
            ]
            metrics |= score_metrics(
                list(itertools.chain(*self.ranks.gather_objects(scores))), greedy=greedy
            )
        return {**metrics, "env/failed_episodes": float(len(result.failed))}

    def _show(self, trajectory: Trajectory, *, step: int) -> None:
        """Have the video of an episode made; no reward will stand in it, because what brings
        pictures is graded by the environment.
        """
        self.recorder.keep([trajectory], kind="val", step=step)
        self.recorder.write({})

    def _rewards(self, result: RolloutResult, reward: RewardManager) -> Mapping[str, float]:
        """Rewards of all ranks' episodes by uid, without those that could not be scored; every rank
        calls it.
        """
        if not any(self.ranks.gather_objects(len(result.trajectories))):
            return {}
        rows = with_columns_of_all(result.batch(), ranks=self.ranks)
        scores = score_rows(rows, reward=reward, ranks=self.ranks)
        check_reward_failures(
            scores.failed,
            rows=len(rows),
            max_failed_share=self.max_unscored_share,
            ranks=self.ranks,
        )
        return scores.reward_by_uid

    def _requests(self, *, step: int, greedy: bool, recorded: int) -> list[EpisodeRequest]:
        """This rank's episodes: tasks in turn, so that the recorded ones show different tasks."""
        kind = "argmax" if greedy else "sampled"
        return [
            EpisodeRequest(
                uid=f"val-{step:06d}-{kind}-{prompt.group_id:06d}{f'-{sample:03d}' if self.samples > 1 and not greedy else ''}",
                group_id=prompt.group_id,
                task=prompt.task,
                task_id=prompt.task_id,
                trial_id=prompt.trial_id,
                seed=prompt.seed,
                policy_seed=(self.first_seed, prompt.group_id, sample),
                greedy=greedy,
                record=sample == 0 and place < recorded,
                options=self.options | reset_options(prompt.columns()),
            )
            for place, prompt in enumerate(self._prompts())
            for sample in range(1 if greedy else self.samples)
        ]

    def _prompts(self) -> Sequence[EpisodeTask]:
        if self.prompts is not None:
            return self.prompts
        return evaluation_tasks(
            tasks=self.tasks,
            episodes_per_task=self.episodes,
            seed_offset=self.first_seed,
            rank=self.ranks.rank,
            ranks=self.ranks.size,
        )


class _WithoutPictures(RolloutWorkflow):
    """A workflow whose trajectories have no pictures when it returns them: `show` was given those
    with a video's frames before.
    """

    def __init__(self, workflow: RolloutWorkflow, *, show: Callable[[Trajectory], None]) -> None:
        self._workflow, self._show = workflow, show

    async def arun_episode(self, engine: Any, data: EpisodeRequest) -> Sequence[Trajectory]:
        """See `RolloutWorkflow.arun_episode`."""
        returned = await self._workflow.arun_episode(engine, data)
        trajectories = trajectories_of(self._workflow, returned)
        for trajectory in trajectories:
            trajectory.row.pop("pixel_values", None)
            if RECORDER_STREAM in trajectory.frames:
                self._show(trajectory)
            trajectory.frames = {}
        return trajectories


def evaluation_metrics(
    outcomes: Sequence[Outcome], *, greedy: bool, reports_success: bool
) -> dict[str, Value]:
    """Counts by task and over all tasks, or only returns where there is no flag of success; what
    could not be graded is just counted.
    """
    metrics: dict[str, Value] = {}
    for task, all_found in _by_task(outcomes, task=_task).items():
        prefix = f"val/{task}/{'argmax_' if greedy else ''}"
        found = [outcome for outcome in all_found if outcome.graded]
        if len(found) < len(all_found):
            metrics[f"{prefix}ungraded_episodes"] = float(len(all_found) - len(found))
        if not found:
            continue
        successes, count = sum(outcome.success for outcome in found), float(len(found))
        metrics[f"{prefix}return"] = Weighted(
            sum(outcome.env_return for outcome in found) / count, count
        )
        if reports_success:
            metrics[f"{prefix}success_rate"] = Weighted(successes / count, count)
            metrics[f"{prefix}successes"] = float(successes)
            metrics[f"{prefix}episodes"] = count
    return metrics


def pass_at_k_metrics(outcomes: Sequence[Outcome], *, samples: int) -> dict[str, Value]:
    """pass@k for k = 2, 4, 8, … and `samples`, by task and over all; and in how many prompts any of
    the samples succeeded.

    A prompt of which some episodes could not be simulated still counts for the k that it has enough
    of.
    """
    metrics: dict[str, Value] = {}
    for task, found in _by_task(outcomes, task=_task).items():
        drawn = Counter(outcome.prompt for outcome in found)
        right = Counter(outcome.prompt for outcome in found if outcome.success)
        for k in _ks(samples):
            chances = [
                pass_at_k(samples=count, successes=right[prompt], k=k)
                for prompt, count in drawn.items()
                if count >= k
            ]
            metrics[f"val/{task}/pass_at_{k}"] = Weighted(
                sum(chances) / max(len(chances), 1), float(len(chances))
            )
        whole = [prompt for prompt, count in drawn.items() if count == samples]
        metrics[f"val/{task}/any_successes"] = float(sum(right[prompt] > 0 for prompt in whole))
        metrics[f"val/{task}/any_episodes"] = float(len(whole))
    return metrics


def score_metrics(scores: Sequence[tuple[str, float | None]], *, greedy: bool) -> dict[str, Value]:
    """Mean and spread of the job's reward by task and over all tasks.

    Args:
        scores: Of all ranks' episodes, so that the numbers are the same on every rank: the task,
            and the reward or None where it failed.
        greedy: Whether the actions were the most likely ones.
    """
    metrics: dict[str, Value] = {}
    for task, found in _by_task(scores, task=lambda score: score[0]).items():
        prefix = f"val/{task}/{'argmax_' if greedy else ''}"
        known = [reward for _, reward in found if reward is not None]
        metrics[f"{prefix}scored_episodes"] = float(len(known))
        if len(known) < len(found):
            metrics[f"{prefix}unscored_episodes"] = float(len(found) - len(known))
        if known:
            metrics[f"{prefix}mean_score"] = statistics.fmean(known)
        if len(known) > 1:
            metrics[f"{prefix}score_std"] = statistics.stdev(known)
    return metrics


def _ks(samples: int) -> list[int]:
    powers = [2**power for power in range(1, samples.bit_length()) if 2**power < samples]
    return [*powers, samples]


def _by_task(things: Sequence[Thing], *, task: Callable[[Thing], str]) -> dict[str, list[Thing]]:
    by_task: dict[str, list[Thing]] = defaultdict(list)
    for thing in things:
        by_task[task_name(task(thing))].append(thing)
        by_task[ALL_TASKS].append(thing)
    return by_task


def _task(outcome: Outcome) -> str:
    return outcome.task


def _outcome(trajectory: Trajectory) -> Outcome:
    row = trajectory.row
    return Outcome(
        row["index"],
        row["task_name"],
        row["complete"],
        row["env_return"],
        graded=row.get("graded", True),
    )
