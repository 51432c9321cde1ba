"""Evaluation on held-out episodes: success per task for sampled or greedy actions, and pass@k.

Held-out seeds and questions are disjoint from training by construction
(`siirl.data_coordinator.task_stream`) and the same in every evaluation, so that evaluations are
comparable. Ranks share the prompts; their counts are summed with the other metrics of the step.

With several samples per prompt, the interval of `success_rate` holds for these prompts; it is
slightly too wide, because answers to one prompt vary less than answers to different prompts. To
estimate success on other prompts, evaluate more prompts with one sample each.

Ungraded rows have no success. The job's reward scores only these episodes.

Images of an episode are freed when it ends: memory holds only images of running episodes and of the
few videos that wait to be written.
"""

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from envs import perturbations
from envs.base import RECORDER_STREAM
from siirl.dag_worker.empty_ranks import with_columns_of_all
from siirl.dag_worker.rewards import check_reward_failures, score_rows
from siirl.dag_worker.rollout_collector import share_of
from siirl.data_coordinator.prompts.dataset import ALL_TASKS, task_name
from siirl.data_coordinator.task_stream import EpisodeTask, evaluation_tasks
from siirl.engine.reward_manager import RewardManager
from siirl.engine.rollout.rollout import Rollout, check_failures, reset_options
from siirl.engine.rollout.workflow import (
    EpisodeRequest,
    RolloutResult,
    RolloutWorkflow,
    Trajectory,
    trajectories_of,
)
from siirl.engine.training.collectives import Collectives
from siirl.params.agents import rows_per_episode
from siirl.reporting.finished_episodes import Recorder
from siirl.reporting.metrics import Value, Weighted
from siirl.reporting.statistics import pass_at_k

Thing = TypeVar("Thing")


class Outcome(NamedTuple):
    """Result of a held-out episode."""

    prompt: int
    task: str
    success: bool
    env_return: float
    graded: bool = True
    """Whether the environment graded the episode; if not, success and return are meaningless."""


class Validator:
    """Evaluates the policy of a rollout.

    Args:
        rollout: Environments and engine of this rank.
        ranks: The processes that share the episodes.
        recorder: Records some of the episodes.
        tasks: Names of the tasks, in the order of their ids.
        episodes: Held-out prompts per task.
        first_seed: Prompt i of every task has seed first_seed + i.
        record: Episodes per evaluation that are written as videos, over all ranks.
        max_failed_share: Largest share of an evaluation's episodes, over all ranks, that may fail
            to simulate.
        prompts: This rank's held-out prompts from files; None: `episodes` prompts per task, made
            from seeds.
        options: Reset options of every episode, for example `{"split": "heldout"}`.
        samples: Sampled episodes per prompt; greedy actions need one.
        kinds: Evaluations in a training run: sampled (False), greedy (True), or both.
        reward: Scores ungraded episodes; None if the environment grades all. Its creator closes it.
        max_unscored_share: Largest share of an evaluation's episodes, over all ranks, that the
            reward may fail to score.
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
        self.rollout = rollout
        self.ranks = ranks
        self.recorder = recorder
        self.tasks = tuple(tasks)
        self.episodes = episodes
        self.first_seed = first_seed
        self.record = record
        self.max_failed_share = max_failed_share
        self.prompts = prompts
        self.options = dict(options or {})
        self.samples = samples
        self.kinds = tuple(kinds)
        self.reward = reward
        self.max_unscored_share = max_unscored_share

    def evaluate(
        self,
        *,
        step: int,
        greedy: bool = False,
        record: bool = True,
        perturb: Sequence[str] | None = None,
        on_done: Callable[[EpisodeRequest], None] = lambda request: None,
    ) -> dict[str, Value]:
        """Run this rank's share of the episodes, with videos if `record`; return its metrics.

        `perturb` selects among the environment's perturbations; None: all.
        """
        requests = self._requests(
            step=step,
            greedy=greedy,
            recorded=share_of(self.record, self.ranks) if record else 0,
            perturb=perturb,
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
        outcomes = [
            _outcome(trajectory)
            for trajectory in result.trajectories
            if trajectory.row.get("agent", 0) == 0  # only the first of agents with roles
        ]
        metrics = evaluation_metrics(
            outcomes, greedy=greedy, reports_success=self.rollout.pool.spec.reports_success
        )
        if self.samples > 1 and not greedy and self.rollout.pool.spec.reports_success:
            graded = [outcome for outcome in outcomes if outcome.graded]
            metrics |= pass_at_k_metrics(
                graded, samples=self.samples * rows_per_episode(self.rollout.pool.spec)
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
        """Write an episode's video, without a reward: episodes with images are always graded."""
        self.recorder.keep([trajectory], kind="val", step=step)
        self.recorder.write({})

    def _rewards(self, result: RolloutResult, reward: RewardManager) -> Mapping[str, float]:
        """Rewards of all ranks' scored episodes by uid; collective."""
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

    def _requests(
        self, *, step: int, greedy: bool, recorded: int, perturb: Sequence[str] | None
    ) -> list[EpisodeRequest]:
        """This rank's episodes, with tasks alternating so that the recorded ones differ in task."""
        kind = "argmax" if greedy else "sampled"
        options = self.options
        if perturb is not None:
            kind += "-" + ("+".join(perturb) or "standard")
            options = options | {perturbations.OPTION: tuple(perturb)}
        several = self.samples > 1 and not greedy
        requests = []
        for place, prompt in enumerate(self._prompts()):
            for sample in range(1 if greedy else self.samples):
                uid = f"val-{step:06d}-{kind}-{prompt.group_id:06d}"
                request = EpisodeRequest(
                    uid=f"{uid}-{sample:03d}" if several else uid,
                    group_id=prompt.group_id,
                    task=prompt.task,
                    task_id=prompt.task_id,
                    trial_id=prompt.trial_id,
                    seed=prompt.seed,
                    policy_seed=(self.first_seed, prompt.group_id, sample),
                    greedy=greedy,
                    record=sample == 0 and place < recorded,
                    options=options | reset_options(prompt.columns()),
                )
                requests.append(request)
        return requests

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
    """Workflow that drops images of finished trajectories after `show` saw the recorded ones."""

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
    """Success counts (or only returns) and counts of ungraded episodes, per task and overall."""
    metrics: dict[str, Value] = {}
    for task, all_found in _by_task(outcomes, task=_task).items():
        prefix = f"val/{task}/{'argmax_' if greedy else ''}"
        found = [outcome for outcome in all_found if outcome.graded]
        if len(found) < len(all_found):
            metrics[f"{prefix}ungraded_episodes"] = float(len(all_found) - len(found))
        if not found:
            continue
        successes = sum(outcome.success for outcome in found)
        count = float(len(found))
        metrics[f"{prefix}return"] = Weighted(
            sum(outcome.env_return for outcome in found) / count, count
        )
        if reports_success:
            metrics[f"{prefix}success_rate"] = Weighted(successes / count, count)
            metrics[f"{prefix}successes"] = float(successes)
            metrics[f"{prefix}episodes"] = count
    return metrics


def pass_at_k_metrics(outcomes: Sequence[Outcome], *, samples: int) -> dict[str, Value]:
    """pass@k for k = 2, 4, 8, … and `samples`, and prompts with any success, per task and overall.

    A prompt with some failed simulations counts for every k up to its number of samples.
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
    """Mean and standard deviation of the job's reward, per task and over all tasks.

    Args:
        scores: Task and reward (None if scoring failed) of all ranks' episodes, so that results are
            equal on all ranks.
        greedy: Whether actions were greedy.
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
