"""Measures how well the trajectory reward ranks failures by their progress.

`python -m benchmarks.reward_progress` writes into benchmarks/results/.

First on failures of a policy (`--policy FOLDER`) and of disturbed experts: rank correlation of the
reward with the simulator's true distance to the goal. Then on held-out expert clips cut at known
fractions: correlation with progress, monotonicity, separation of successes from failures, and two
controls that must score lower, clips run backwards and clips with their frames shuffled. Beside the
shipped encoder: raw pixels, the same network untrained, and both with a read-out trained like the
shipped one (`--training-clips`). Seeds here were never used for training or tuning. Left out:
learning with the reward (benchmarks.embodied_learning).
"""

# Axes: N clip, C held-out expert clip, K cut, E embedding channel.

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.collect_clips import (
    FAILING_KINDS,
    WARM_START_TASKS,
    Clip,
    collect,
    collect_policy,
    load_clips,
    save_clips,
)
from benchmarks.measured_on import describe_machine
from benchmarks.progress_picture import draw
from vjepa.clips import prepare
from vjepa.encoders import RawPixelEncoder, VideoEncoder, load_video_encoder, random_network, wrap
from vjepa.latent_encoder import ON_CPU
from vjepa.progress_metrics import (
    histogram_divergence,
    mean_discrepancy,
    monotonicity,
    progress_correlation,
    rank_correlation,
    separation_auc,
)
from vjepa.readout import ReadOut
from vjepa.reward import TrajectoryReward
from vjepa.reward_settings import TrajectoryRewardConfig
from vjepa.train_readout import EpisodeIndex, ReadOutConfig, prefixes, train_readout
from vjepa.train_tiny import Clips
from vjepa.train_tiny import load_clips as load_training_clips

RESULTS = Path(__file__).parent / "results"
REFERENCE_SEED, HELD_OUT_SEED, POLICY_SEED = (
    7_000_000,
    7_500_000,
    8_000_000,
)  # training has 1 and 2 million, tuning 3 to 5
FRACTIONS = np.arange(1, 9) / 8  # an expert clip has nine frames or more, so the cuts differ

Encode = Callable[[Sequence[NDArray[np.uint8]]], NDArray[np.float32]]


@dataclass(frozen=True)
class Material:
    """The clips of one run: successes to compare with, expert clips to cut, failures of disturbed
    experts, episodes of a policy.
    """

    references: list[Clip]
    experts: list[Clip]
    failures: list[Clip]
    policy: list[Clip]


def gather(
    *, folder: Path, policy: Path | None, experts: int, failures: int, episodes: int
) -> Material:
    """Collect what is not yet in `folder`."""

    def clips(name: str, job: Callable[[], Any]) -> list[Clip]:
        file = folder / f"{name}.npz"
        if not file.exists():
            save_clips(file, asyncio.run(job()))
        return list(load_clips(file))

    held_out = {"expert": experts, **dict.fromkeys(FAILING_KINDS, failures)}
    references = clips(
        "references",
        lambda: collect(
            tasks=WARM_START_TASKS, counts={"expert": 2 * experts}, first_seed=REFERENCE_SEED
        ),
    )
    mixed = clips(
        "held_out",
        lambda: collect(tasks=WARM_START_TASKS, counts=held_out, first_seed=HELD_OUT_SEED),
    )
    own: list[Clip] = []
    if policy is not None:
        own = clips(
            "policy",
            lambda: collect_policy(
                folder=policy, tasks=WARM_START_TASKS, count=episodes, first_seed=POLICY_SEED
            ),
        )
    return Material(
        references=[clip for clip in references if clip.success],
        experts=[clip for clip in mixed if clip.kind == "expert" and clip.success],
        failures=[clip for clip in mixed if not clip.success],
        policy=own,
    )


def encode_with(encoder: VideoEncoder) -> Encode:
    """The encoder's own embeddings."""
    return encoder.encode


def encode_with_readout(
    features: Callable[[Sequence[NDArray[np.uint8]]], torch.Tensor], clips: Clips
) -> Encode:
    """A read-out on other features, trained exactly as the shipped encoder's: the baseline given
    our own trick.
    """
    parts = [features(part) for part in prefixes(clips.frames_NHW3, clips.lengths)]
    index = EpisodeIndex(lengths=clips.lengths, success=clips.success, tasks=clips.tasks)
    readout: ReadOut = train_readout(
        features_NF=torch.cat(parts), index=index, config=ReadOutConfig(), seed=0
    )
    return lambda rows: readout.embed(features(rows)).numpy()


def pixels(rows: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
    """The last frame at 16 x 16."""
    return prepare(rows, frames_per_clip=2, image_size=RawPixelEncoder.image_size, crop=False)[
        :, :, -1
    ].flatten(1)


def encoders(training_clips: Path | None) -> dict[str, Encode]:
    """Compared rewards by name."""
    compared = {
        "tiny": encode_with(load_video_encoder("tiny")),
        "tiny, no read-out": encode_with(load_video_encoder("tiny", pooling="last_grid")),
        "random": encode_with(load_video_encoder("random")),
        "pixels": encode_with(load_video_encoder("pixels")),
    }
    if training_clips is not None:
        clips, untrained = load_training_clips(training_clips), random_network()
        grid = wrap(untrained, name="random", pooling="last_grid", crop=False, placement=ON_CPU)
        compared["random + read-out"] = encode_with_readout(
            lambda rows: torch.from_numpy(grid.encode(rows)), clips
        )
        compared["pixels + read-out"] = encode_with_readout(pixels, clips)
    return compared


def scored(
    encode: Encode,
    material: Material,
    clips: dict[str, list[NDArray[np.uint8]]],
    task_of: dict[str, list[str]],
) -> dict[str, Any]:
    """Rewards of sets of clips as if none had succeeded, all by one memory: expert references, the
    window filled by the failures.
    """
    references = _by_task(material.references)
    reward = TrajectoryReward(
        TrajectoryRewardConfig(),
        demonstrations={
            task: encode([clip.frames for clip in rows]) for task, rows in references.items()
        },
    )
    score(
        reward,
        encode,
        [clip.frames for clip in material.failures],
        [clip.task for clip in material.failures],
    )
    state, rewards = reward.state_dict(), {}
    for name, rows in clips.items():
        reward.load_state_dict(state)
        rewards[name] = score(reward, encode, rows, task_of[name])
    return rewards


def score(
    reward: TrajectoryReward,
    encode: Encode,
    rows: Sequence[NDArray[np.uint8]],
    tasks: Sequence[str],
) -> NDArray[np.float32]:
    """Rewards of clips that count as failures."""
    output = reward.score(
        embeddings_BD=encode(rows),
        success_B=np.zeros(len(rows), bool),
        tasks_B=tasks,
        group_B=np.arange(len(rows)),
    )
    return output.reward_B


def failure_ranking(
    encode: Encode, material: Material, failures: Sequence[Clip], successes: Sequence[Clip]
) -> dict[str, Any]:
    """Rank correlation, for each task, of the reward with the true distance left; `successes` are
    references beside the experts'.
    """
    ranking: dict[str, Any] = {}
    references = _by_task([*material.references, *successes])
    for task, rows in _by_task(failures).items():
        embeddings = encode([clip.frames for clip in rows])
        reward = TrajectoryReward(
            TrajectoryRewardConfig(),
            demonstrations={task: encode([clip.frames for clip in references[task]])},
        )
        output = reward.score(
            embeddings_BD=embeddings,
            success_B=np.zeros(len(rows), bool),
            tasks_B=[task] * len(rows),
            group_B=np.arange(len(rows)),
        )
        left = np.array([clip.distances[-1] for clip in rows])
        low, high = _correlation_interval(output.reward_B, -left)
        ranking[task] = {
            "rank_correlation": rank_correlation(output.reward_B, -left),
            "low": low,
            "high": high,
            "failures": len(rows),
        }
    if ranking:
        ranking["mean"] = float(
            np.mean([result["rank_correlation"] for result in ranking.values()])
        )
    return ranking


def progress(
    encode: Encode, material: Material
) -> tuple[dict[str, float], dict[str, NDArray[np.float32]]]:
    """Measures on held-out expert clips cut at known fractions, against failures and controls; and
    the rewards for the picture.
    """
    experts, rng = material.experts, np.random.default_rng(0)
    whole = [clip.frames for clip in experts]
    cuts = [
        frames[: max(1, round(fraction * len(frames)))]
        for frames in whole
        for fraction in FRACTIONS
    ]
    sets = {
        "cut": cuts,
        "whole": whole,
        "failures": [clip.frames for clip in material.failures],
        "reversed": [frames[::-1] for frames in whole],
        "shuffled": [frames[rng.permutation(len(frames))] for frames in whole],
    }
    tasks = [clip.task for clip in experts]
    task_of = dict.fromkeys(("whole", "reversed", "shuffled"), tasks)
    task_of |= {
        "cut": [task for task in tasks for _ in FRACTIONS],
        "failures": [clip.task for clip in material.failures],
    }
    rewards = scored(encode, material, sets, task_of)
    scores_CK = rewards["cut"].reshape(len(experts), len(FRACTIONS))
    measures = {
        "progress_correlation": progress_correlation(scores_CK, FRACTIONS),
        "monotonicity": monotonicity(scores_CK),
        "auc": separation_auc(rewards["whole"], rewards["failures"]),
        "mmd": mean_discrepancy(rewards["whole"], rewards["failures"]),
        "jsd": histogram_divergence(rewards["whole"], rewards["failures"]),
        "mean_reward": float(rewards["whole"].mean()),
    }
    for control in ("reversed", "shuffled"):
        measures[f"mean_reward_{control}"] = float(rewards[control].mean())
        measures[f"share_above_{control}"] = float(np.mean(rewards["whole"] > rewards[control]))
    return measures, {**rewards, "cut": scores_CK}


def _by_task(clips: Sequence[Clip]) -> dict[str, list[Clip]]:
    return {
        task: [clip for clip in clips if clip.task == task]
        for task in dict.fromkeys(clip.task for clip in clips)
    }


def _correlation_interval(
    a_N: NDArray[np.floating], b_N: NDArray[np.floating], *, draws: int = 1000
) -> tuple[float, float]:
    """95 % interval of the rank correlation by resampling clips."""
    rng = np.random.default_rng(0)
    rows = rng.integers(len(a_N), size=(draws, len(a_N)))
    low, high = np.nanquantile(
        [rank_correlation(a_N[row], b_N[row]) for row in rows], (0.025, 0.975)
    )
    return float(low), float(high)


def encode_milliseconds(encode: Encode, material: Material) -> float:
    """Time a clip on one thread, in a batch of 96."""
    rows = [clip.frames for clip in (material.failures * 96)[:96]]
    started = time.perf_counter()
    encode(rows)
    return 1000 * (time.perf_counter() - started) / len(rows)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--policy",
        type=Path,
        help="policy folder whose failures are ranked, for example assets/tiny_vla",
    )
    parser.add_argument(
        "--training-clips",
        type=Path,
        help="clips of the shipped encoder's training, to give the baselines a read-out",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("outputs/reward_progress"),
        help="where clips are kept between runs",
    )
    parser.add_argument(
        "--experts",
        type=int,
        default=15,
        help="held-out expert clips a task; twice as many are references",
    )
    parser.add_argument("--failures", type=int, default=10, help="clips a task of each disturbance")
    parser.add_argument("--episodes", type=int, default=60, help="episodes a task of the policy")
    parser.add_argument("--output", type=Path, default=RESULTS / "reward_progress.json")
    return parser.parse_args()


def main() -> None:
    """Run the benchmark as the command line says."""
    arguments = read_arguments()
    torch.set_num_threads(1)
    material = gather(
        folder=arguments.folder,
        policy=arguments.policy,
        experts=arguments.experts,
        failures=arguments.failures,
        episodes=arguments.episodes,
    )
    results, pictures = {}, {}
    for name, encode in encoders(arguments.training_clips).items():
        measures, pictures[name] = progress(encode, material)
        own_failures = [clip for clip in material.policy if not clip.success]
        results[name] = {
            "policy_failures": failure_ranking(
                encode, material, own_failures, [clip for clip in material.policy if clip.success]
            ),
            "disturbed_experts": failure_ranking(encode, material, material.failures, []),
            "progress": measures,
            "encode_milliseconds_per_clip": round(encode_milliseconds(encode, material), 2),
        }
        print(name, json.dumps(results[name]))
    command = (
        f"python -m benchmarks.reward_progress --policy {arguments.policy} --training-clips "
        f"{arguments.training_clips}"
    )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "command": command,
        "machine": describe_machine(),
        "fractions": FRACTIONS.tolist(),
        "results": results,
    }
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    draw(
        results=results,
        rewards=pictures,
        fractions_K=FRACTIONS,
        file=arguments.output.with_suffix(".png"),
    )


if __name__ == "__main__":
    main()
