"""Evaluation on held-out episodes: successes per task, for sampled actions or for the most likely ones.

Held-out seeds are disjoint from training seeds by construction (`siirl.data_coordinator.loader`), and the same at every evaluation, so that
two of them can be compared. Ranks share the episodes; what each records is added up with the other metrics of the step.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from siirl.dag_worker.domain import share_of
from siirl.dag_worker.metrics import Value, Weighted
from siirl.dag_worker.record import EpisodeRecorder
from siirl.data_coordinator.loader import evaluation_tasks
from siirl.engine.collectives import Collectives
from siirl.engine.rollout.embodied_rollout import EmbodiedRollout
from siirl.engine.rollout.workflow import EpisodeRequest

ALL_TASKS = "all"


class Validator:
    """Evaluates the policy of a rollout.

    Args:
        rollout: Simulators and engine of this rank.
        ranks: The processes that share the episodes.
        recorder: Takes the videos.
        tasks: Names of the tasks, in the order of their ids.
        episodes: Held-out episodes of each task.
        first_seed: Episode i of every task has seed first_seed + i.
        record: Episodes of one evaluation that become videos, over all ranks.
    """

    def __init__(
        self,
        *,
        rollout: EmbodiedRollout,
        ranks: Collectives,
        recorder: EpisodeRecorder,
        tasks: Sequence[str],
        episodes: int,
        first_seed: int,
        record: int,
    ) -> None:
        self.rollout, self.ranks, self.recorder = rollout, ranks, recorder
        self.tasks, self.episodes, self.first_seed, self.record = tuple(tasks), episodes, first_seed, record

    def evaluate(
        self, *, step: int, greedy: bool = False, on_done: Callable[[EpisodeRequest], None] = lambda request: None
    ) -> dict[str, Value]:
        """Run this rank's share of the episodes; `val/<task>/…` of that share."""
        requests = self._requests(step=step, greedy=greedy)
        result, _ = self.rollout.generate(requests, embed=False, on_done=on_done)
        self.recorder.keep(result.trajectories, kind="val", step=step)
        self.recorder.write({})
        outcomes = [(t.row["task_name"], t.row["complete"], t.row["env_return"]) for t in result.trajectories]
        metrics = evaluation_metrics(outcomes, greedy=greedy, reports_success=self.rollout.pool.spec.reports_success)
        return {**metrics, "env/failed_episodes": float(len(result.failed))}

    def _requests(self, *, step: int, greedy: bool) -> list[EpisodeRequest]:
        """This rank's episodes: tasks in turn, so that the recorded ones show different tasks."""
        kind = "argmax" if greedy else "sampled"
        recorded = 0 if greedy else share_of(self.record, self.ranks)
        episodes = evaluation_tasks(
            tasks=self.tasks, episodes_per_task=self.episodes, seed_offset=self.first_seed, rank=self.ranks.rank, ranks=self.ranks.size
        )
        return [
            EpisodeRequest(
                uid=f"val-{step:06d}-{kind}-{episode.group_id:06d}",
                group_id=episode.group_id,
                task=episode.task,
                task_id=episode.task_id,
                trial_id=episode.trial_id,
                seed=episode.seed,
                policy_seed=(self.first_seed, episode.group_id),
                greedy=greedy,
                record=position < recorded,
            )
            for position, episode in enumerate(episodes)
        ]


def evaluation_metrics(outcomes: Sequence[tuple[str, bool, float]], *, greedy: bool, reports_success: bool) -> dict[str, Value]:
    """Count (task, success, return) by task and over all tasks; only the returns where the environment has no flag of success."""
    by_task: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for task, success, env_return in outcomes:
        by_task[task].append((success, env_return))
        by_task[ALL_TASKS].append((success, env_return))
    metrics: dict[str, Value] = {}
    for task, rows in by_task.items():
        successes, count = sum(success for success, _ in rows), float(len(rows))
        prefix = f"val/{task}/{'argmax_' if greedy else ''}"
        metrics[f"{prefix}return"] = Weighted(sum(value for _, value in rows) / count, count)
        if reports_success:
            metrics[f"{prefix}success_rate"] = Weighted(successes / count, count)
            metrics[f"{prefix}successes"] = float(successes)
            metrics[f"{prefix}episodes"] = count
    return metrics
