"""Compares ways to order a policy's failures without knowing how close they came:
`python -m benchmarks.reward_candidates` writes benchmarks/results/reward_candidates.json.

The episodes are those that `benchmarks.reward_value` has collected in its folder. A candidate
learns from the episodes of a task's first eight start states and from fifteen clips of its expert,
and orders failures from the other start states by their last frame. All see frames of 16 x 16
pixels:

- *time to success*: a regression of the frames left in a success; with failures, whose frames get
  the longest time; and with experts that were disturbed and still succeeded.
- *shortest path*: over all frames to the end of a success. A step along an episode costs 1, a jump
  to a similar frame of another episode its distance in steps, to the power of `JUMP`. That is the
  quasi-metric that temporal differences would converge to on these frames.
- *nearest success*: distance to the nearest end of a success, in pixels and in whitened pixels.
- *logistic regression* between the whitened ends of successes and of failures.
- *ratio of densities*: `vjepa.success_value.Ends`, the reward `video_value`.
- *true distance*: a regression that knows it, for comparison.

Measured: rank correlation with the true distance within groups. Left out: adversaries, and rewards
that learn while they score (benchmarks.reward_value).
"""

# Axes: N episode, X frame of all episodes end to end, E channel of a frame, Z judged failure.

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression

from benchmarks.collect_clips import FAILING_KINDS, Clip, collect, load_clips, save_clips
from benchmarks.measured_on import describe_machine
from benchmarks.reward_ceiling import kernel_ridge
from benchmarks.reward_value import DEMONSTRATION_SEED, FEWEST_FAILURES, GROUPS, LEARNING_STEPS
from vjepa.encoders import load_video_encoder
from vjepa.pooling import OVER_TIME
from vjepa.progress_metrics import grouped_rank_correlation
from vjepa.success_value import Ends, whitening

RESULTS = Path(__file__).parent / "results"
EXPERTS, DISTURBED = 15, 12  # clips of a task; of each kind of disturbance
LONGEST = 15.0  # frames that a failure counts as before success; an episode has sixteen
NEIGHBOURS = 8  # of a frame, in other episodes
JUMP = 2.0  # so that a path follows the frames instead of jumping over them
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """What a candidate may learn from, for one task."""

    own: list[Clip]
    experts: list[Clip]
    disturbed: list[Clip]

    @property
    def successes(self) -> list[Clip]:
        return [clip for clip in (*self.own, *self.experts) if clip.success]

    @property
    def failures(self) -> list[Clip]:
        return [clip for clip in self.own if not clip.success]


def pixels(clip: Clip) -> Array:
    """Frames [F, E] at 16 x 16."""
    frames = torch.from_numpy(clip.frames).float().permute(0, 3, 1, 2) / 255
    small = torch.nn.functional.adaptive_avg_pool2d(frames, 16)
    return small.flatten(1).double().numpy()


def rows(clips: Sequence[Clip]) -> Array:
    """Frames [X, E] of all clips."""
    return np.concatenate([pixels(clip) for clip in clips])


def ends(clips: Sequence[Clip]) -> Array:
    """Last frames [N, E]."""
    return np.stack([pixels(clip)[-1] for clip in clips])


def left(clip: Clip) -> Array:
    """Frames before the end [F]; of a failure the longest time."""
    count = len(clip.frames)
    return np.arange(count)[::-1].astype(float) if clip.success else np.full(count, LONGEST)


def regression(clips: Sequence[Clip], judged: Sequence[Clip], of: Callable[[Clip], Array]) -> Array:
    """`of` a frame, predicted at the end of the judged [Z]."""
    target_X = np.concatenate([of(clip) for clip in clips])
    return kernel_ridge(train_XE=rows(clips), target_X=target_X, test_YE=ends(judged))


def shortest_path(clips: Sequence[Clip], judged: Sequence[Clip]) -> Array:
    """Cost [Z] of the cheapest way from the end of the judged to the end of a success."""
    rows_XE, lengths = rows(clips), [len(clip.frames) for clip in clips]
    episode_X = np.repeat(np.arange(len(clips)), lengths)
    last_N = np.cumsum(lengths) - 1
    forward = np.setdiff1d(np.arange(len(rows_XE)), last_N)
    distance_XX = cdist(rows_XE, rows_XE)
    step = np.median(distance_XX[forward, forward + 1])
    distance_XX[episode_X[:, None] == episode_X] = np.inf
    near = np.argpartition(distance_XX, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    origin = np.repeat(np.arange(len(rows_XE)), NEIGHBOURS)
    jumps = (distance_XX[origin, near.ravel()] / step) ** JUMP
    costs = np.concatenate((jumps, np.ones(len(forward)))) + 1e-9  # 0 would be no edge
    edges = (np.concatenate((origin, forward)), np.concatenate((near.ravel(), forward + 1)))
    graph = csr_matrix((costs, edges), shape=(len(rows_XE),) * 2)
    goals = last_N[[clip.success for clip in clips]]
    way_X = dijkstra(graph.T, indices=goals, min_only=True)
    return np.asarray(((cdist(ends(judged), rows_XE) / step) ** JUMP + way_X).min(1))


def whitened(known: Known) -> Callable[[Sequence[Clip]], Array]:
    """Maps clips to their whitened ends."""
    rows_XE = rows([*known.own, *known.experts])
    mean_E = rows_XE.mean(0)
    matrix_EP = whitening(rows_XE - mean_E)
    return lambda clips: (ends(clips) - mean_E) @ matrix_EP


def logistic(known: Known, judged: Sequence[Clip]) -> Array:
    """Negative log odds [Z] of success."""
    of = whitened(known)
    won = [True] * len(known.successes) + [False] * len(known.failures)
    model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000)
    model.fit(of([*known.successes, *known.failures]), won)
    return np.asarray(-model.decision_function(of(judged)))


def ratio(known: Known, judged: Sequence[Clip]) -> Array:
    """Negative closeness [Z] of `video_value`."""
    encode = load_video_encoder("pixels", pooling=OVER_TIME).encode
    successes, failures, judged_ = (
        encode([clip.frames for clip in clips])
        for clips in (known.successes, known.failures, judged)
    )
    return -Ends(successes_NF=successes, failures_NF=failures).closeness(judged_)


CANDIDATES: dict[str, Callable[[Known, Sequence[Clip]], Array]] = {
    "time to success": lambda known, judged: regression(known.successes, judged, left),
    "time to success, with failures": lambda known, judged: regression(
        [*known.own, *known.experts], judged, left
    ),
    "time to success, with disturbed experts": lambda known, judged: regression(
        [*known.successes, *(clip for clip in known.disturbed if clip.success)], judged, left
    ),
    "shortest path": lambda known, judged: shortest_path([*known.own, *known.experts], judged),
    "shortest path, with disturbed experts": lambda known, judged: shortest_path(
        [*known.own, *known.experts, *known.disturbed], judged
    ),
    "nearest success, pixels": lambda known, judged: cdist(ends(judged), ends(known.successes)).min(
        1
    ),
    "nearest success, whitened pixels": lambda known, judged: cdist(
        whitened(known)(judged), whitened(known)(known.successes)
    ).min(1),
    "logistic regression": logistic,
    "ratio of densities": ratio,
    "true distance": lambda known, judged: regression(
        known.own, judged, lambda clip: clip.distances
    ),
}
"""Distance [Z] of the judged failures, by name."""


def experts_of(file: Path, tasks: Sequence[str]) -> list[Clip]:
    """Clips of the tasks' experts, undisturbed and disturbed; collected once."""
    if not file.is_file():
        kinds = {"expert": EXPERTS, **dict.fromkeys(FAILING_KINDS, DISTURBED)}
        job = collect(tasks=tasks, counts=kinds, first_seed=DEMONSTRATION_SEED)
        save_clips(file, asyncio.run(job))
    return list(load_clips(file))


def measured(episodes: Sequence[Clip], shown: Sequence[Clip]) -> Iterator[tuple[str, dict]]:
    """Each task with enough failures, and the correlation of each candidate."""
    for task in sorted({clip.task for clip in episodes}):
        of_task = [clip for clip in episodes if clip.task == task]
        first = sorted({clip.seed for clip in of_task})[: LEARNING_STEPS * GROUPS]
        experts = [clip for clip in shown if clip.task == task]
        known = Known(
            own=[clip for clip in of_task if clip.seed in first],
            experts=[clip for clip in experts if clip.kind == "expert" and clip.success],
            disturbed=[clip for clip in experts if clip.kind != "expert"],
        )
        judged = [clip for clip in of_task if clip.seed not in first and not clip.success]
        if len(judged) < FEWEST_FAILURES or len(known.failures) < FEWEST_FAILURES:
            continue
        near_Z = -np.array([clip.distances[-1] for clip in judged])
        group_Z = np.array([clip.seed for clip in judged])
        yield (
            task,
            {
                name: grouped_rank_correlation(-order(known, judged), near_Z, group_Z)
                for name, order in CANDIDATES.items()
            },
        )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("outputs/benchmarks/reward_value"),
        help="of the episodes of benchmarks.reward_value",
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "reward_candidates.json")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for file in sorted(flags.folder.glob("*.npz")):
        episodes = list(load_clips(file))
        tasks = sorted({clip.task for clip in episodes})
        shown = experts_of(flags.folder / "experts" / f"{'_'.join(tasks)}.npz", tasks)
        runs.append({"episodes": file.stem, "within_groups": dict(measured(episodes, shown))})
        print(json.dumps(runs[-1]))
    means = {
        name: float(
            np.nanmean([found[name] for run in runs for found in run["within_groups"].values()])
        )
        for name in CANDIDATES
    }
    report = {
        "command": "python -m benchmarks.reward_candidates",
        "machine": describe_machine(),
        "mean": means,
        "runs": runs,
    }
    flags.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(means, indent=1))


if __name__ == "__main__":
    main()
