"""Measures what limits the reward's ranking of failures: `python -m benchmarks.reward_ceiling`
writes benchmarks/results/reward_ceiling.json.

On failures of the shipped policy, several from each scene as in a GRPO group, it measures the
ranking that the reward's form could reach if part of it were perfect. *Perfect state*: positions of
hand and object instead of an embedding, in world coordinates or relative to the object's start,
with the reward's own clusters and distances. *Supervised*: a kernel regression of the oracle's
distance, an upper bound for the information in frames or latents; never a reward. For comparison:
the shipped encoder and raw pixels. Every row has two correlations with the oracle's distance at the
end of the episode: over all failures of a task, and within scenes, the only part that a group's
advantage uses. Left out: expert clips and controls (benchmarks.reward_progress), learning with the
reward (benchmarks.embodied_learning).
"""

# Axes: N episode, M failed episode, F frame of all episodes end to end, E channel.

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from benchmarks.collect_clips import WARM_START_TASKS, Clip, load_clips, roll_out, save_clips
from benchmarks.measured_on import describe_machine
from benchmarks.reward_progress import pixels
from envs.metaworld.metaworld_env import MetaWorldEnv
from vjepa.clustering import cluster, nearest_centre_distance
from vjepa.encoders import load_video_encoder
from vjepa.progress_metrics import grouped_rank_correlation, rank_correlation
from vjepa.reward_settings import TrajectoryRewardConfig

RESULTS = Path(__file__).parent / "results"
TEST_SEED, TRAINING_SEED = (
    8_100_000,
    2_100_000,
)  # scenes of the failures, and of the episodes that the supervised rows learn from
HAND, OBJECT = slice(0, 3), slice(4, 7)  # of Meta-World's observation, in metres
RIDGE = 0.01  # beside the kernel's diagonal of 1; not tuned

Features = Callable[[Sequence[NDArray[np.uint8]]], NDArray[np.floating]]
"""Maps each clip to a row of features."""


@dataclass(frozen=True)
class Episodes:
    """Episodes with what the simulator knew: positions [N, 3] of hand and object at the end, and of
    the object at the start.
    """

    clips: list[Clip]
    hand_N3: NDArray[np.float64]
    object_N3: NDArray[np.float64]
    start_N3: NDArray[np.float64]

    @property
    def tasks(self) -> NDArray[np.str_]:
        return np.array([clip.task for clip in self.clips])

    @property
    def scenes(self) -> NDArray[np.int64]:
        return np.array([clip.seed for clip in self.clips])

    @property
    def success(self) -> NDArray[np.bool_]:
        return np.array([clip.success for clip in self.clips])

    @property
    def left(self) -> NDArray[np.float64]:
        """The oracle's distance at the end."""
        return np.array([clip.distances[-1] for clip in self.clips])

    @property
    def least(self) -> NDArray[np.float64]:
        """The oracle's least distance."""
        return np.array([clip.distances.min() for clip in self.clips])


async def collect_scenes(*, folder: Path, first_seed: int, scenes: int, rollouts: int) -> Episodes:
    """`rollouts` episodes of the policy from each of `scenes` initial states of each task."""
    from siirl.models.policy_loader import load_policy

    env, policy = MetaWorldEnv(WARM_START_TASKS), load_policy(folder).eval()
    clips, ends, starts = [], [], []
    for task in WARM_START_TASKS:
        for seed in range(first_seed, first_seed + scenes):
            await env.reset(seed=seed, options={"task": task})
            starts += [env.state[OBJECT]] * rollouts
            for number in range(rollouts):
                clips.append(
                    await roll_out(
                        policy=policy,
                        env=env,
                        task=task,
                        seed=seed,
                        sampling_seed=100 * seed + number,
                    )
                )
                ends.append(env.state)
        print(f"{task}: {scenes} scenes, {rollouts} episodes each")
    await env.close()
    return Episodes(clips, np.stack(ends)[:, HAND], np.stack(ends)[:, OBJECT], np.stack(starts))


def gather(file: Path, **job: Any) -> Episodes:
    """The episodes in `file` and the positions beside it; collected first if they are missing."""
    places = file.with_suffix(".places.npz")
    if not places.exists():
        episodes = asyncio.run(collect_scenes(**job))
        save_clips(file, episodes.clips)
        np.savez(places, hand=episodes.hand_N3, object=episodes.object_N3, start=episodes.start_N3)
    with np.load(places) as data:
        return Episodes(list(load_clips(file)), data["hand"], data["object"], data["start"])


def distance_to_success(
    *, embeddings_NE: NDArray[np.floating], episodes: Episodes
) -> NDArray[np.float64]:
    """The reward's distance [N], which orders failures as the reward does: to the nearest cluster
    of the task's own successes.
    """
    settings, distance_N = TrajectoryRewardConfig(), np.full(len(embeddings_NE), np.nan)
    for task in np.unique(episodes.tasks):
        of_task = episodes.tasks == task
        clusters = cluster(
            references_ND=embeddings_NE[of_task & episodes.success],
            min_samples=settings.dbscan_min_samples,
            eps_scale=settings.dbscan_eps_scale,
        )
        distance_N[of_task] = nearest_centre_distance(
            embeddings_BD=embeddings_NE[of_task], clusters=clusters
        )
    return distance_N


def regressed_distance(
    *, features: Features, training: Sequence[Clip], clips: Sequence[Clip]
) -> NDArray[np.float64]:
    """The oracle's distance [N] of `clips` as a regression from frames tells it, trained for each
    task on the cuts of `training`.
    """
    distance_N, tasks = np.full(len(clips), np.nan), np.array([clip.task for clip in clips])
    for task in np.unique(tasks):
        cuts = [
            (clip.frames[: end + 1], clip.distances[end])
            for clip in training
            if clip.task == task
            for end in range(len(clip.frames))
        ]
        rows = np.flatnonzero(tasks == task)
        distance_N[rows] = kernel_ridge(
            train_XE=features([frames for frames, _ in cuts]),
            target_X=np.array([distance for _, distance in cuts]),
            test_YE=features([clips[row].frames for row in rows]),
        )
    return distance_N


def kernel_ridge(
    *, train_XE: NDArray[Any], target_X: NDArray[Any], test_YE: NDArray[Any]
) -> NDArray[np.float64]:
    """Predictions [Y]; Gaussian kernel as wide as the median distance between training rows."""
    train_XE, test_YE = train_XE.astype(np.float64), test_YE.astype(np.float64)
    squared_XX = cdist(train_XE, train_XE, "sqeuclidean")
    width = np.median(squared_XX)
    kernel_XX = np.exp(-squared_XX / width) + RIDGE * np.eye(len(train_XE))
    weights_X = cho_solve(cho_factor(kernel_XX), target_X - target_X.mean())
    return np.exp(-cdist(test_YE, train_XE, "sqeuclidean") / width) @ weights_X + target_X.mean()


def ranking(
    distance_N: NDArray[np.float64], episodes: Episodes, target_N: NDArray[np.float64]
) -> dict[str, Any]:
    """Rank correlation of two distances among failures: by task, and within the scenes of each
    task.
    """
    result: dict[str, Any] = {}
    for kind in ("task", "scene"):
        values = {}
        for task in WARM_START_TASKS:
            failed = (episodes.tasks == task) & ~episodes.success
            if kind == "task":
                values[task] = rank_correlation(distance_N[failed], target_N[failed])
            else:
                values[task] = grouped_rank_correlation(
                    distance_N[failed], target_N[failed], episodes.scenes[failed]
                )
        result[kind] = {"mean": float(np.mean(list(values.values()))), **values}
    return result


def spread(episodes: Episodes) -> dict[str, Any]:
    """What there is to rank, by task, in metres: the oracle's distance among failures, and its
    deviation within scenes.
    """
    facts = {}
    for task in WARM_START_TASKS:
        failed = (episodes.tasks == task) & ~episodes.success
        left, scenes = episodes.left[failed], episodes.scenes[failed]
        deviations = [
            left[scenes == scene].std()
            for scene in np.unique(scenes)
            if (scenes == scene).sum() > 1
        ]
        facts[task] = {
            "failures": int(failed.sum()),
            "episodes": int((episodes.tasks == task).sum()),
            "start_median": float(
                np.median([clip.distances[0] for clip in episodes.clips if clip.task == task])
            ),
            "left_quantiles": np.quantile(left, (0.1, 0.5, 0.9)).round(3).tolist(),
            "deviation": float(left.std()),
            "deviation_within_scenes": float(np.mean(deviations)),
        }
    return facts


def rows(
    episodes: Episodes, training: Sequence[Clip], disturbed: Sequence[Clip]
) -> dict[str, NDArray[np.float64]]:
    """The distances that are compared, by name."""
    frames = [clip.frames for clip in episodes.clips]
    room_NE = np.concatenate((episodes.hand_N3, episodes.object_N3), axis=1)
    scene_NE = room_NE - np.tile(episodes.start_N3, 2)
    latents = load_video_encoder("tiny", pooling="last_grid").encode
    # a name for the reader
    last_frame: Features = lambda clips: pixels(clips).numpy()  # noqa: E731
    compared = {
        name: distance_to_success(
            embeddings_NE=load_video_encoder(name).encode(frames), episodes=episodes
        )
        for name in ("tiny", "pixels")
    }
    compared["perfect state, in the room"] = distance_to_success(
        embeddings_NE=room_NE, episodes=episodes
    )
    compared["perfect state, relative to the scene"] = distance_to_success(
        embeddings_NE=scene_NE, episodes=episodes
    )
    for name, features, clips in (
        ("supervised, pixels, own episodes", last_frame, training),
        ("supervised, pixels, disturbed experts", last_frame, disturbed),
        ("supervised, tiny's latents, own episodes", latents, training),
    ):
        if clips:
            compared[name] = regressed_distance(
                features=features, training=clips, clips=episodes.clips
            )
    compared["oracle's least distance"] = episodes.least
    return compared


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--policy",
        type=Path,
        default=Path("assets/tiny_vla"),
        help="policy folder whose failures are ranked",
    )
    parser.add_argument(
        "--training-clips",
        type=Path,
        help="clips of the shipped encoder's training, for the row of disturbed experts",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("outputs/reward_ceiling"),
        help="where episodes are kept between runs",
    )
    parser.add_argument(
        "--scenes", type=int, default=16, help="initial states a task, eight episodes each"
    )
    parser.add_argument(
        "--training-scenes",
        type=int,
        default=30,
        help="of the episodes for the supervised rows, four each",
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "reward_ceiling.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    test = {"first_seed": TEST_SEED, "scenes": arguments.scenes, "rollouts": 8}
    own = {"first_seed": TRAINING_SEED, "scenes": arguments.training_scenes, "rollouts": 4}
    episodes = gather(arguments.folder / "test.npz", folder=arguments.policy, **test)
    training = gather(arguments.folder / "training.npz", folder=arguments.policy, **own).clips
    disturbed = list(load_clips(arguments.training_clips)) if arguments.training_clips else []
    results = {
        name: ranking(distance, episodes, episodes.left)
        for name, distance in rows(episodes, training, disturbed).items()
    }
    for name, result in results.items():
        print(
            f"{name:42s} by task {result['task']['mean']:+.2f}   within scenes "
            f"{result['scene']['mean']:+.2f}"
        )
    clips = f" --training-clips {arguments.training_clips.name}" if arguments.training_clips else ""
    command = (
        f"python -m benchmarks.reward_ceiling --scenes {arguments.scenes} --training-scenes "
        f"{arguments.training_scenes}{clips}"
    )
    report = {
        "command": command,
        "machine": describe_machine(),
        "spread": spread(episodes),
        "rank_correlation": results,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
