"""Plays groups of rollouts with a warm start, to see whether reinforcement learning can use it.

A 0/1 reward learns from groups with a success and a failure, not from success as such: a policy
that succeeds from half of the start states with every rollout gives no signal. Groups are played as
in training, from held-out start states.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from siirl.dag_worker.rollout_collector import groups_by_task
from siirl.data_coordinator.prompts.dataset import task_name
from siirl.data_coordinator.task_stream import evaluation_tasks
from siirl.engine.rollout.rollout import check_failures, requests_for_prompts
from siirl.engine.training.collectives import OneProcess
from siirl.jobs.evaluation import NOTHING_IS_TRAINED, started
from siirl.jobs.policy_place import configuration
from siirl.params import sizes
from siirl.reporting.progress import Progress
from siirl.reporting.sentinels import UNMIXED_SHARE


@dataclass(frozen=True)
class TaskGroups:
    """Groups of rollouts of one task."""

    mixed: int
    """Groups with a success and a failure."""
    groups: int
    successes: int
    episodes: int


def report_groups(
    policy: Path, overrides: Sequence[str], *, groups: int, alone: Sequence[str]
) -> None:
    """Play `groups` groups of each task, note what was found in the policy's config.json, print it.

    Args:
        policy: Policy folder.
        overrides: Configuration words of the command line.
        groups: Start states of each task.
        alone: Further words, by which one process plays.

    Raises:
        TooManyFailures: The simulation failed in more than `env.max_failed_share` of the episodes.
    """
    found = play_groups(policy, [*overrides, *alone], groups=groups)
    file = policy / "config.json"
    content = json.loads(file.read_text())
    content["notes"]["groups"] = {task: vars(of_task) for task, of_task in found.items()}
    file.write_text(json.dumps(content, indent=1) + "\n")
    print(*describe_groups(found), sep="\n")


def play_groups(policy: Path, words: Sequence[str], *, groups: int) -> dict[str, TaskGroups]:
    """Outcomes of `groups` groups of each task, played as in training."""
    config = configuration(policy, words, given=NOTHING_IS_TRAINED, pipeline="grpo")
    actor = config.actor_rollout_ref
    with TemporaryDirectory() as folder, started(config, Path(folder)) as evaluation:
        prompts = evaluation_tasks(
            tasks=evaluation.rollout.pool.spec.tasks,
            episodes_per_task=groups,
            seed_offset=config.trainer.val_seed_offset,
        )
        requests = requests_for_prompts(
            [prompt.columns() for prompt in prompts],
            rollouts=actor.rollout.n,
            run_seed=config.trainer.seed,
            step=0,
            record=0,
            noise_correlation=sizes.noise_correlation(actor),
        )
        with Progress("groups of rollouts", len(requests)) as progress:
            result, _ = evaluation.rollout.generate(requests, on_done=lambda _: progress.advance())
    check_failures(
        result,
        episodes=len(requests),
        max_failed_share=config.env.max_failed_share,
        ranks=OneProcess(),
    )
    rows = [trajectory.row for trajectory in result.trajectories]
    success: dict[str, list[bool]] = {}
    for row in rows:
        success.setdefault(task_name(row["task_name"]), []).append(bool(row["complete"]))
    return {
        task: TaskGroups(sum(mixed), len(mixed), sum(success[task]), len(success[task]))
        for task, mixed in groups_by_task(rows).items()
    }


def describe_groups(found: Mapping[str, TaskGroups]) -> list[str]:
    """A line for each task, and one with what to do about tasks without signal."""
    lines = [
        f"{task}: {of_task.successes} of {of_task.episodes} rollouts succeed; {of_task.mixed} of "
        f"{of_task.groups} groups have a success and a failure"
        for task, of_task in found.items()
    ]
    few = {task: it for task, it in found.items() if it.mixed < UNMIXED_SHARE * it.groups}
    failing = [task for task, it in few.items() if not it.successes]
    decided = [task for task, it in few.items() if it.successes]
    if failing:
        lines.append(
            f"No success: {', '.join(failing)}. Reinforcement learning has little to learn from "
            "there: give more --demonstrations and --updates (docs/learning.md, step 1)."
        )
    if decided:
        lines.append(
            f"No group with both: {', '.join(decided)}. A 0/1 reward learns only from such groups "
            "(docs/learning.md, step 2)."
        )
    return lines
