"""Compares rewards of trajectories that learn while they score: `python -m benchmarks.reward_value`
writes benchmarks/results/reward_value.json.

Episodes of a policy come in steps of four groups of eight rollouts per task, as in training, and
each reward scores a step before it learns from it: SRPO's clusters with the shipped encoder, with
the same network untrained and with pixels, and how successes end (`vjepa.success_value`) from
pixels and from the shipped encoder; two of them also with fifteen demonstrations of each task.
Measured on the failures of the later steps: rank correlation with the true distance at the end,
over the task and within groups, the only part that an advantage uses; the skill that the reward
measured itself; and the share of a step's failures whose reward is below that of a video that
achieves nothing (`siirl.jobs.idle_videos`), or that of an expert which hovers beside the object, or
sweeps through its place. Upper bounds, which are never rewards: a regression of the true distance
that learns from the first two steps' episodes, and the share of failures whose true distance is
above that of an idle video. Policies: the shipped one, and that of `--policy`, with `--tasks`. The
committed result has warm starts of `benchmarks.any_tasks`, made by defaults: four with seed 2 for
the trios that were kept, on which `video_value` was chosen, and five with seed 3 for others; and
checkpoints of one of the former in the middle and at the end of training.
Left out: learning with the reward (benchmarks.embodied_learning).
"""

# Axes: N episode.

import argparse
import asyncio
import copy
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.collect_clips import (
    ADVERSARIES,
    WARM_START_TASKS,
    Clip,
    collect,
    load_clips,
    roll_out,
    save_clips,
)
from benchmarks.measured_on import describe_machine
from benchmarks.reward_ceiling import Features, regressed_distance
from benchmarks.reward_progress import pixels
from envs.metaworld.metaworld_env import MetaWorldEnv
from siirl.jobs.idle_videos import BEST_STOP, IdleVideo, RealEpisode, idle_videos
from vjepa.encoders import VideoEncoder, load_video_encoder
from vjepa.pooling import OVER_TIME
from vjepa.progress_metrics import grouped_rank_correlation, rank_correlation
from vjepa.reward import TrajectoryReward
from vjepa.reward_settings import TrajectoryRewardConfig
from vjepa.success_value import SuccessValueReward

RESULTS = Path(__file__).parent / "results"
FIRST_SEED = 8_200_000  # of start states that nothing was trained or tuned on
GROUPS, ROLLOUTS = 4, 8  # of a task in a step
LEARNING_STEPS = 2  # not measured
FEWEST_FAILURES = 6  # of a task, for a correlation
ADVERSARIES_OF_A_TASK = 4  # of each kind
DEMONSTRATIONS, DEMONSTRATION_SEED = 15, 8_600_000  # of a task
IN_TRUTH = ("nothing moves", BEST_STOP)  # videos whose true distance the real episode has

NOTE = (
    "Rank correlation with the true distance at the end of an episode; mean over tasks with at "
    f"least {FEWEST_FAILURES} judged failures. A task whose value has no skill is not judged: its "
    "failures get 0, as with a 0/1 reward. Last columns: share of a step's failures that a video "
    "which achieves nothing outranks, mean over such videos."
)


@dataclass(frozen=True)
class Contender:
    """A reward as a run would make it."""

    reward: Callable[..., TrajectoryReward | SuccessValueReward]
    encoder: str
    pooling: str | None = None
    demonstrations: bool = False

    def make(self, shown: Sequence[Clip]) -> tuple[VideoEncoder, Any]:
        """Encoder and reward; `shown` are the experts' clips."""
        encoder = load_video_encoder(self.encoder, pooling=self.pooling)
        tasks = sorted({clip.task for clip in shown}) if self.demonstrations else []
        rows = {
            task: encoder.encode([clip.frames for clip in shown if clip.task == task])
            for task in tasks
        }
        return encoder, self.reward(TrajectoryRewardConfig(), demonstrations=rows)


REWARDS = {
    "srpo, shipped encoder": Contender(TrajectoryReward, "tiny"),
    "srpo, shipped encoder, demonstrations": Contender(
        TrajectoryReward, "tiny", demonstrations=True
    ),
    "srpo, untrained encoder": Contender(TrajectoryReward, "random"),
    "srpo, pixels": Contender(TrajectoryReward, "pixels"),
    "video_value, pixels": Contender(SuccessValueReward, "pixels", OVER_TIME),
    "video_value, pixels, demonstrations": Contender(
        SuccessValueReward, "pixels", OVER_TIME, demonstrations=True
    ),
    "video_value, shipped encoder": Contender(SuccessValueReward, "tiny", OVER_TIME),
}


@dataclass(frozen=True)
class Columns:
    """Episodes [N] of all tasks."""

    task_N: NDArray[np.str_]
    scene_N: NDArray[np.int64]
    success_N: NDArray[np.bool_]
    left_N: NDArray[np.float64]
    """True distance at the end, in metres."""

    @classmethod
    def of(cls, clips: Sequence[Clip]) -> "Columns":
        """The columns of `clips`."""
        return cls(
            task_N=np.array([clip.task for clip in clips]),
            scene_N=np.array([clip.seed for clip in clips]),
            success_N=np.array([clip.success for clip in clips]),
            left_N=np.array([clip.distances[-1] for clip in clips]),
        )


async def collect_groups(*, folder: Path, tasks: Sequence[str], scenes: int) -> list[Clip]:
    """`ROLLOUTS` episodes of the policy from each of `scenes` start states of each task."""
    from siirl.models.policy_loader import load_policy

    env, policy = MetaWorldEnv(tasks), load_policy(folder).eval()
    clips = [
        await roll_out(
            policy=policy, env=env, task=task, seed=seed, sampling_seed=100 * seed + number
        )
        for task in tasks
        for seed in range(FIRST_SEED, FIRST_SEED + scenes)
        for number in range(ROLLOUTS)
    ]
    await env.close()
    return clips


@dataclass(frozen=True)
class Online:
    """What a reward said of the episodes, step by step."""

    closeness_N: NDArray[np.float64]
    """Of failures; NaN if they were not judged."""
    skills: list[float | None]
    """Of each step."""
    outranked: dict[str, float]
    """Share of failures that an idle video outranks, by kind; mean over videos and later steps."""
    seconds: float
    """Of scoring."""


def score_online(
    *,
    clips: Sequence[Clip],
    adversaries: Sequence[IdleVideo],
    encoder: VideoEncoder,
    reward: Any,
    columns: Columns,
) -> Online:
    """Score the episodes in steps, as training would.

    `adversaries` join each step's idle videos.
    """
    closeness_N = np.full(len(columns.task_N), np.nan)
    embeddings_NE = encoder.encode([clip.frames for clip in clips])
    skills, seconds, shares = [], 0.0, defaultdict[str, list[float]](list)
    scenes = np.unique(columns.scene_N)
    number_N = np.unique(columns.task_N, return_inverse=True)[1]
    for start in range(0, len(scenes), GROUPS):
        rows = np.flatnonzero(np.isin(columns.scene_N, scenes[start : start + GROUPS]))
        inputs = {
            "embeddings_BD": embeddings_NE[rows],
            "success_B": columns.success_N[rows],
            "tasks_B": columns.task_N[rows].tolist(),
            "group_B": columns.scene_N[rows] * len(columns.task_N) + number_N[rows],
        }
        before, begin = copy.deepcopy(reward), time.perf_counter()
        output = reward.score(**inputs)
        seconds += time.perf_counter() - begin
        closeness_N[rows] = -output.distance_B
        skills.append(output.metrics.get("reward/value_skill"))
        if start >= LEARNING_STEPS * GROUPS:
            played = [
                RealEpisode(clip.task, clip.success, clip.frames)
                for clip in map(clips.__getitem__, rows)
            ]
            videos = [*idle_videos(played), *adversaries]
            for kind, share in outranked(videos, encoder, before, inputs):
                shares[kind].append(share)
    means = {kind: float(np.mean(found)) for kind, found in shares.items()}
    return Online(closeness_N, skills, means, seconds)


def outranked_in_truth(
    clips: Sequence[Clip], played: Sequence[Clip], columns: Columns
) -> dict[str, float]:
    """Share of a later step's failures that are farther than an idle video, by kind."""
    shares, scenes = defaultdict[str, list[float]](list), np.unique(columns.scene_N)
    for start in range(LEARNING_STEPS * GROUPS, len(scenes), GROUPS):
        rows = np.flatnonzero(np.isin(columns.scene_N, scenes[start : start + GROUPS]))
        # distances instead of frames; the last one counts
        real = [
            RealEpisode(clip.task, clip.success, clip.distances)
            for clip in map(clips.__getitem__, rows)
        ]
        videos = [video for video in idle_videos(real) if video.kind in IN_TRUTH]
        videos += [IdleVideo(clip.kind, clip.task, clip.distances) for clip in played]
        left_B = np.where(columns.success_N[rows], np.nan, columns.left_N[rows])
        left_V = np.array([video.video[-1] for video in videos])
        for kind, share in shares_outranked(videos, left_V, left_B, columns.task_N[rows]):
            shares[kind].append(share)
    return {kind: float(np.mean(found)) for kind, found in shares.items()}


def regress(clips: Sequence[Clip], features: Features, columns: Columns) -> NDArray[np.float64]:
    """Closeness [N] by a regression of the true distance; NaN for the episodes it learns from."""
    learning = np.unique(columns.scene_N)[: LEARNING_STEPS * GROUPS]
    later_N = ~np.isin(columns.scene_N, learning)
    closeness_N = np.full(len(clips), np.nan)
    closeness_N[later_N] = -regressed_distance(
        features=features,
        training=[clip for clip, later in zip(clips, later_N, strict=True) if not later],
        clips=[clip for clip, later in zip(clips, later_N, strict=True) if later],
    )
    return closeness_N


def outranked(
    videos: Sequence[IdleVideo], encoder: VideoEncoder, reward: Any, inputs: Mapping[str, Any]
) -> Iterator[tuple[str, float]]:
    """Kind of each idle video, and the share of its task's failures in the step that it outranks;
    of the videos that stop one failure, only the best.

    Tasks whose failures are not judged are left out.
    """
    real, count = len(inputs["tasks_B"]), len(videos)
    tasks = [*inputs["tasks_B"], *(video.task for video in videos)]
    output = reward.score(
        embeddings_BD=np.concatenate(
            (inputs["embeddings_BD"], encoder.encode([video.video for video in videos]))
        ),
        success_B=np.concatenate((inputs["success_B"], np.zeros(count, bool))),
        tasks_B=tasks,
        group_B=np.concatenate((inputs["group_B"], inputs["group_B"].max() + 1 + np.arange(count))),
    )
    failed_B = np.where(inputs["success_B"], np.nan, output.distance_B[:real])
    return shares_outranked(videos, output.distance_B[real:], failed_B, np.array(tasks[:real]))


def shares_outranked(
    videos: Sequence[IdleVideo],
    distance_V: NDArray[np.float64],
    failed_B: NDArray[np.float64],
    task_B: NDArray[np.str_],
) -> Iterator[tuple[str, float]]:
    """Kind and share for each of `videos`; `failed_B` are the distances of failures, else NaN."""
    best: dict[tuple[str, str, int], float] = {}
    for number, (video, distance) in enumerate(zip(videos, distance_V, strict=True)):
        if np.isfinite(distance):
            of_one = video.original if video.kind == BEST_STOP else number
            key = (video.kind, video.task, of_one)
            best[key] = min(distance, best.get(key, np.inf))
    for (kind, task, _), distance in best.items():
        failures = failed_B[(task_B == task) & np.isfinite(failed_B)]
        if len(failures):
            yield kind, float(np.mean(distance < failures))


def correlations(closeness_N: NDArray[np.float64], columns: Columns) -> dict[str, Any]:
    """Rank correlations of closeness and true closeness by task; None: not judged, or too few."""
    later = np.unique(columns.scene_N)[LEARNING_STEPS * GROUPS :]
    measured_N = ~columns.success_N & np.isin(columns.scene_N, later)
    result: dict[str, Any] = {}
    for task in np.unique(columns.task_N):
        rows = measured_N & (columns.task_N == task) & np.isfinite(closeness_N)
        failures = int((measured_N & (columns.task_N == task)).sum())
        entry: dict[str, Any] = {"failures": failures, "judged": int(rows.sum())}
        if rows.sum() >= FEWEST_FAILURES:
            near_N, far_N = closeness_N[rows], columns.left_N[rows]
            entry["over_task"] = rank_correlation(near_N, -far_N)
            entry["within_groups"] = grouped_rank_correlation(near_N, -far_N, columns.scene_N[rows])
        result[str(task)] = entry
    return result


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", type=Path, default=Path("assets/tiny_vla"))
    parser.add_argument("--tasks", nargs="+", default=list(WARM_START_TASKS))
    parser.add_argument("--scenes", type=int, default=20, help="start states a task")
    parser.add_argument("--folder", type=Path, default=Path("outputs/benchmarks/reward_value"))
    parser.add_argument("--output", type=Path, default=RESULTS / "reward_value.json")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    file = flags.folder / f"{flags.policy.name}_{'_'.join(flags.tasks)}_{flags.scenes}.npz"
    if not file.exists():
        save_clips(
            file,
            asyncio.run(
                collect_groups(folder=flags.policy, tasks=flags.tasks, scenes=flags.scenes)
            ),
        )
    clips = list(load_clips(file))
    columns = Columns.of(clips)
    counts = dict.fromkeys(ADVERSARIES, ADVERSARIES_OF_A_TASK)
    collected = asyncio.run(collect(tasks=flags.tasks, counts=counts, first_seed=FIRST_SEED))
    played = [clip for clip in collected if not clip.success]
    adversaries = [IdleVideo(clip.kind, clip.task, clip.frames) for clip in played]
    shown = asyncio.run(
        collect(tasks=flags.tasks, counts={"expert": DEMONSTRATIONS}, first_seed=DEMONSTRATION_SEED)
    )
    results = {}
    for name, contender in REWARDS.items():
        encoder, reward = contender.make([clip for clip in shown if clip.success])
        online = score_online(
            clips=clips, adversaries=adversaries, encoder=encoder, reward=reward, columns=columns
        )
        results[name] = {
            "tasks": correlations(online.closeness_N, columns),
            "skill_by_step": online.skills,
            "idle_videos_outrank": online.outranked,
            "milliseconds_per_episode": round(1000 * online.seconds / len(clips), 2),
        }
        print(name, json.dumps(results[name]))
    latents = load_video_encoder("tiny", pooling="last_grid").encode
    for name, features in (
        ("true distance from pixels", lambda videos: pixels(videos).numpy()),
        ("true distance from the shipped encoder", latents),
    ):
        found = correlations(regress(clips, features, columns), columns)
        results[name] = {"tasks": found, "skill_by_step": [None], "idle_videos_outrank": {}}
        print(name, json.dumps(results[name]))
    results["true distance"] = {
        "tasks": {},
        "skill_by_step": [None],
        "idle_videos_outrank": outranked_in_truth(clips, played, columns),
    }
    report = json.loads(flags.output.read_text()) if flags.output.is_file() else {"runs": []}
    command = (
        f"python -m benchmarks.reward_value --policy {flags.policy.name} "
        f"--tasks {' '.join(flags.tasks)} --scenes {flags.scenes}"
    )
    kept = [run for run in report["runs"] if run["command"] != command]
    summary: dict[str, Any] = {
        "command": "python -m benchmarks.reward_value",
        "machine": describe_machine(),
        "runs": [*kept, {"command": command, "results": results}],
    }
    flags.output.write_text(json.dumps(summary, indent=1) + "\n")
    flags.output.with_suffix(".md").write_text(markdown(summary["runs"]))


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """A row for each reward of each run: means over tasks with a correlation."""
    kinds = list(
        dict.fromkeys(
            kind
            for run in runs
            for result in run["results"].values()
            for kind in result["idle_videos_outrank"]
        )
    )
    head = ["policy, tasks", "reward", "within groups", "over a task", "judged failures"]
    head += ["own skill at the end", *kinds]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for run in runs:
        for reward, result in run["results"].items():
            tasks = list(result["tasks"].values())
            skill = result["skill_by_step"][-1]
            cells = [run["command"].partition("--policy ")[2].partition(" --scenes")[0], reward]
            cells += [
                _mean([task.get(name) for task in tasks]) for name in ("within_groups", "over_task")
            ]
            cells += [
                "{} of {}".format(
                    *(sum(task[name] for task in tasks) for name in ("judged", "failures"))
                )
            ]
            cells += ["" if skill is None else f"{skill:.2f}"]
            shares = result["idle_videos_outrank"]
            cells += [f"{shares[kind]:.0%}" if kind in shares else "" for kind in kinds]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", NOTE, ""])


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return f"{np.mean(known):.2f}" if known else ""


if __name__ == "__main__":
    main()
