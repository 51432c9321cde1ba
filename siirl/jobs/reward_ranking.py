"""Measures how a reward ranks a policy's failures, and how it rewards idle videos.

Implements `siirl reward-check` after argument parsing. The policy plays groups of rollouts from
held-out start states, as many at a time as in a training step. The reward scores a step, then
learns from it, as in training. The first steps only fill its memory; the others are measured:

- Within a group, because an advantage compares only its samples: rank correlation of failures'
  rewards with their true closeness, if the environment reports `info["oracle_distance"]`, and the
  number of groups in which failures have different rewards.
- In the last step, the rewards of idle videos (`siirl.jobs.idle_videos`) beside those of failures.

Left out: training; text (its rewards read one answer at a time).
"""

# B episode of a step, N episode of all measured steps

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from envs.base import ENCODER_STREAM
from siirl import interrupts, stacks
from siirl.dag_worker.assembly import builder_of
from siirl.dag_worker.components import make_pool
from siirl.dag_worker.embodied_components import EmbodiedBuilder
from siirl.dag_worker.rewards import outcomes_to_score
from siirl.data_coordinator.task_stream import EpisodeTask, evaluation_tasks
from siirl.engine.reward_manager import (
    EpisodeOutcomes,
    RewardManager,
    check_own_manager,
)
from siirl.engine.rollout.rollout import check_failures, requests_for_prompts
from siirl.engine.rollout.vla.embodied_rollout import EmbodiedRollout
from siirl.engine.rollout.workflow import Trajectory
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.rank_device import prepare_device
from siirl.errors import ConfigError
from siirl.execution.scheduler.watchdog import OwnWatch
from siirl.jobs.cluster_session import session
from siirl.jobs.idle_videos import IdleVideo, RealEpisode, idle_videos
from siirl.jobs.policy_place import configuration
from siirl.occupation import OCCUPATION
from siirl.params import SiiRLArguments, sizes
from siirl.params.policies import LANGUAGE_MODEL
from siirl.preflight.check_embodied import (
    check_demonstrations,
    check_encoder,
    check_policy,
)
from siirl.preflight.early_checks import check_before_evaluation
from siirl.preflight.machine import check_machine
from siirl.reporting.command_console import CommandConsole
from siirl.reporting.console import cell
from siirl.reporting.progress import Progress
from siirl.reporting.run_folder import run_folder
from vjepa.encoders import VideoEncoder
from vjepa.progress_metrics import grouped_interval, grouped_rank_correlation, rank_correlation

RESULT_FILE = "reward_check.json"
FILLING_STEPS = 2  # fill the reward's memory; not measured
FEWEST_FAILURES = 6  # per task, for a rank correlation
NOTHING_IS_TRAINED = ("trainer.nnodes=1", "trainer.n_gpus_per_node=1")


@dataclass(frozen=True)
class ScoredEpisodes:
    """Episodes [N] and their rewards."""

    task_N: NDArray[np.str_]
    group_N: NDArray[np.int64]
    success_N: NDArray[np.bool_]
    reward_N: NDArray[np.float32]
    left_N: NDArray[np.float32]
    """True distance to success at the end; NaN if the environment does not report it."""

    @classmethod
    def of(cls, outcomes: EpisodeOutcomes, reward_B: NDArray[np.float32]) -> "ScoredEpisodes":
        """The episodes of a step."""
        left_B = outcomes.oracle_distance_B
        return cls(
            task_N=np.array(outcomes.task_name_B),
            group_N=outcomes.index_B,
            success_N=outcomes.complete_B,
            reward_N=reward_B,
            left_N=np.full_like(reward_B, np.nan) if left_B is None else left_B,
        )

    @classmethod
    def joined(cls, steps: Sequence["ScoredEpisodes"]) -> "ScoredEpisodes":
        """The episodes of several steps."""
        names = [field.name for field in fields(cls)]
        return cls(
            **{name: np.concatenate([getattr(step, name) for step in steps]) for name in names}
        )

    def of_task(self, task: str) -> "ScoredEpisodes":
        """The episodes of one task."""
        rows = self.task_N == task
        return ScoredEpisodes(**{name: column[rows] for name, column in vars(self).items()})


def check_reward(checkpoint: Path, overrides: Sequence[str], *, steps: int) -> None:
    """Measure the configured reward on a policy's episodes, write the results, print them.

    Args:
        checkpoint: Policy folder, checkpoint or run folder.
        overrides: Configuration words of the command line.
        steps: Measured steps.

    Raises:
        ConfigError: A text job, or a reward that is equal for all failures.
    """
    config = configuration(
        checkpoint,
        overrides,
        given=("trainer.experiment_name=reward_check", *NOTHING_IS_TRAINED),
        pipeline="embodied_srpo",
    )
    if config.actor_rollout_ref.model.policy == LANGUAGE_MODEL:
        raise ConfigError(
            f"reward-check compares robots' failures, but env={config.env.name} is a text "
            "environment: its rewards read one answer at a time. siirl report RUN --rollouts shows "
            "them beside the answers."
        )
    spec = check_before_evaluation(config)
    if config.reward.name == "success":
        raise ConfigError(
            "reward=success gives every failure 0, so there is no ranking to check. Choose the "
            "reward that you want to train with, for example reward=srpo or reward=video_value."
        )
    check_machine(config, spec)
    check_policy(config, spec)
    check_own_manager(config.reward)
    check_encoder(config.reward)
    check_demonstrations(config.reward, spec)
    with (
        run_folder(config, needed_bytes=10_000_000, describe=lambda folder: "") as folder,
        interrupts.grace_period(config.trainer.grace_s),
        _started(config, folder) as check,
    ):
        scored, metrics, paid = check.run(steps)
        results = {
            "checkpoint": str(checkpoint),
            "reward": config.reward.name,
            "encoder": config.reward.encoder if sizes.needs_video(config.reward) else None,
            "steps": steps,
            "tasks": {task: ranking(scored.of_task(task)) for task in spec.tasks},
            "idle_videos": paid,
            "metrics": dict(metrics),
        }
        (folder / RESULT_FILE).write_text(json.dumps(results, indent=1) + "\n")
        console = CommandConsole()
        console.print(*tables(results), sep="\n")
        console.print(f"results     {folder / RESULT_FILE}", soft_wrap=True)


@contextmanager
def _started(config: SiiRLArguments, folder: Path) -> Iterator["RewardCheck"]:
    """Start simulators, policy and reward; close them with the context."""
    torch.set_num_threads(1)
    ranks = OneProcess()
    with ExitStack() as stack:
        traces = stack.enter_context(stacks.folder_of(folder))
        stack.enter_context(session(config.cluster, folder=folder))
        stack.enter_context(
            OwnWatch(
                limit_s=sizes.hang_limit_s(config.trainer),
                folder=traces,
                environment=config.env.title,
            )
        )
        with OCCUPATION.doing("starts simulators and loads the policy"):
            pool = make_pool(config.env, cluster=config.cluster.mode, ranks=ranks)
            device = prepare_device(deterministic=config.trainer.deterministic)
            make = builder_of(config, pool.spec, ranks=ranks, device=device)
            assert isinstance(make, EmbodiedBuilder)
            rollouts = make.rollouts(make.evaluated(), pool=pool, ranks=ranks, folder=folder)
            rollout, reward = rollouts.rollout, make.reward()
            assert isinstance(rollout, EmbodiedRollout)
            for part in (rollout, rollouts.episode_log, reward):
                stack.callback(part.close)
            rollout.start()
        with OCCUPATION.doing("plays and scores episodes"):
            yield RewardCheck(config=config, rollout=rollout, reward=reward, encoder=make.encoder)


class RewardCheck:
    """Plays steps and scores them."""

    def __init__(
        self,
        *,
        config: SiiRLArguments,
        rollout: EmbodiedRollout,
        reward: RewardManager,
        encoder: VideoEncoder | None,
    ) -> None:
        self.config = config
        self.rollout = rollout
        self.reward = reward
        self.encoder = encoder
        self.ranks = OneProcess()

    def run(
        self, steps: int
    ) -> tuple[ScoredEpisodes, Mapping[str, float], dict[str, dict[str, float]]]:
        """Measured episodes, the reward's metrics of the last step, and the rewards of idle videos
        in that step, by task and kind.
        """
        measured: list[ScoredEpisodes] = []
        prompts = self._prompts(FILLING_STEPS + steps)
        with Progress("steps", len(prompts)) as progress:
            for step, of_step in enumerate(prompts):
                trajectories, outcomes = self._play(of_step, step=step)
                before = copy.deepcopy(self.reward)
                scores = self.reward.score(outcomes)
                if step >= FILLING_STEPS:
                    measured.append(ScoredEpisodes.of(outcomes, scores.reward_B))
                progress.advance()
        paid = self._pay_idle(before, trajectories, outcomes)
        return ScoredEpisodes.joined(measured), scores.metrics, paid

    def _prompts(self, steps: int) -> list[list[EpisodeTask]]:
        """Held-out start states of each step; the tasks alternate."""
        tasks, count = self.rollout.pool.spec.tasks, self.config.data.train_batch_size
        prompts = evaluation_tasks(
            tasks=tasks,
            episodes_per_task=math.ceil(steps * count / len(tasks)),
            seed_offset=self.config.trainer.val_seed_offset,
        )
        return [prompts[step * count : (step + 1) * count] for step in range(steps)]

    def _play(
        self, prompts: Sequence[EpisodeTask], *, step: int
    ) -> tuple[list[Trajectory], EpisodeOutcomes]:
        """`rollout.n` episodes of each prompt, and the inputs of a reward."""
        requests = requests_for_prompts(
            [prompt.columns() for prompt in prompts],
            rollouts=self.config.actor_rollout_ref.rollout.n,
            run_seed=self.config.trainer.seed,
            step=step,
            record=0,
            noise_correlation=sizes.noise_correlation(self.config.actor_rollout_ref),
        )
        result, _ = self.rollout.generate(requests, embed=True)
        check_failures(
            result,
            episodes=len(requests),
            max_failed_share=self.config.env.max_failed_share,
            ranks=self.ranks,
        )
        outcomes = outcomes_to_score(result.batch(), reward=self.reward, ranks=self.ranks)
        return result.trajectories, outcomes

    def _pay_idle(
        self, reward: RewardManager, trajectories: Sequence[Trajectory], outcomes: EpisodeOutcomes
    ) -> dict[str, dict[str, float]]:
        """Rewards of idle videos among the failures of a step; empty without videos."""
        if self.encoder is None:
            return {}
        videos = list(idle_videos([_played(trajectory) for trajectory in trajectories]))
        if not videos:
            return {}
        embeddings_BD = self.encoder.encode([video.video for video in videos])
        both = with_idle(outcomes, videos, embeddings_BD)
        reward_B = reward.score(both).reward_B
        paid: dict[str, dict[str, float]] = {}
        task_B, real = np.array(both.task_name_B), len(outcomes.uid_B)
        for task in sorted({video.task for video in videos}):
            failed_B = (task_B == task) & ~both.complete_B
            failures = reward_B[:real][failed_B[:real]]
            paid[task] = {
                "median failure": float(np.median(failures)),
                "best failure": float(failures.max()),
            }
        for video, pay in zip(videos, reward_B[real:].tolist(), strict=True):
            of_task = paid[video.task]
            of_task[video.kind] = max(pay, of_task.get(video.kind, pay))
        return paid


def _played(trajectory: Trajectory) -> RealEpisode:
    row = trajectory.row
    return RealEpisode(row["task_name"], row["complete"], trajectory.frames[ENCODER_STREAM].images)


def with_idle(
    outcomes: EpisodeOutcomes, videos: Sequence[IdleVideo], embeddings_BD: NDArray[np.float32]
) -> EpisodeOutcomes:
    """Outcomes of a step with a failure for each idle video, each in a separate group."""
    count = len(videos)
    assert outcomes.video_embedding_BD is not None
    distance_B = outcomes.oracle_distance_B
    return replace(
        outcomes,
        uid_B=[*outcomes.uid_B, *(f"idle-{number:03d}" for number in range(count))],
        task_name_B=[*outcomes.task_name_B, *(video.task for video in videos)],
        index_B=np.concatenate((outcomes.index_B, outcomes.index_B.max() + 1 + np.arange(count))),
        complete_B=np.concatenate((outcomes.complete_B, np.zeros(count, bool))),
        env_return_B=np.concatenate((outcomes.env_return_B, np.zeros(count, np.float32))),
        video_embedding_BD=np.concatenate((outcomes.video_embedding_BD, embeddings_BD)),
        oracle_distance_B=None
        if distance_B is None
        else np.concatenate((distance_B, np.full(count, np.nan, np.float32))),
        total=len(outcomes.uid_B) + count,
    )


def ranking(scored: ScoredEpisodes) -> dict[str, Any]:
    """The reward's ranking of a task's failures.

    `within_groups` [correlation, low, high] and `over_task` are None without true distances, with
    fewer than `FEWEST_FAILURES` failures, or if reward or distance is constant.
    """
    success_N, failed_N = scored.success_N, ~scored.success_N
    groups = [scored.group_N == group for group in np.unique(scored.group_N)]
    several = [scored.reward_N[rows & failed_N] for rows in groups if (rows & failed_N).sum() > 1]
    result: dict[str, Any] = {
        "episodes": len(success_N),
        "successes": int(success_N.sum()),
        "groups": len(groups),
        "mixed_groups": sum(int(0 < success_N[rows].mean() < 1) for rows in groups),
        "groups_with_failures": len(several),
        "ranked_groups": sum(int(np.ptp(rewards) > 0) for rewards in several),
        "within_groups": None,
        "over_task": None,
    }
    near_N = -scored.left_N[failed_N]
    reward_N = scored.reward_N[failed_N]
    group_N = scored.group_N
    if failed_N.sum() < FEWEST_FAILURES or np.isnan(near_N).any():
        return result
    within = grouped_rank_correlation(reward_N, near_N, group_N[failed_N])
    if not math.isnan(within):
        interval = grouped_interval(reward_N, near_N, group_N[failed_N])
        result["within_groups"] = [within, *interval]
        result["over_task"] = rank_correlation(reward_N, near_N)
    return result


def tables(results: Mapping[str, Any]) -> list[Table | str]:
    """The ranking of failures, and rewards of idle videos, one row per task."""
    reward, encoder = results["reward"], results["encoder"]
    place = f"reward={reward}" + ("" if encoder is None else f" reward.encoder={encoder}")
    ranks = _table(
        f"ranking of failures by {place}",
        *("success", "mixed\ngroups", "ranked\ngroups", "correlation\nwithin groups"),
        "over\ntask",
    )
    for task, found in results["tasks"].items():
        within, over = found["within_groups"], found["over_task"]
        ranks.add_row(
            cell(task),
            f"{found['successes'] / max(found['episodes'], 1):.0%}",
            f"{found['mixed_groups']}/{found['groups']}",
            f"{found['ranked_groups']}/{found['groups_with_failures']}",
            "-" if within is None else "{:.2f} [{:.2f}, {:.2f}]".format(*within),
            "-" if over is None else f"{over:.2f}",
        )
    shown: list[Table | str] = [
        ranks,
        "ranked groups: of those with at least two failures. correlation: reward and true",
        'closeness at the end (info["oracle_distance"]), 95 % interval over groups.',
    ]
    skills = {
        task: results["metrics"].get(f"reward/{task}/value_skill") for task in results["tasks"]
    }
    if found := [f"{task} {skill:.2f}" for task, skill in skills.items() if skill is not None]:
        shown.append(
            f"skill of the value at the end: {', '.join(found)}. At 0 failures earn 0, as with "
            "reward=success."
        )
    if results["idle_videos"]:
        paid = results["idle_videos"]
        kinds = list(dict.fromkeys(kind for of_task in paid.values() for kind in of_task))
        idle = _table(
            "\nrewards of failures, and of videos that achieve nothing",
            *(kind.replace(" ", "\n", 1) for kind in kinds),
        )
        for task, of_task in paid.items():
            cells = (f"{of_task[kind]:.3f}" if kind in of_task else "-" for kind in kinds)
            idle.add_row(cell(task), *cells)
        shown.append(idle)
    return shown


def _table(title: str, *columns: str) -> Table:
    """An empty table with a row per task, within 80 columns."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("task", overflow="fold", vertical="bottom")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
