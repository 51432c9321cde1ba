"""Trains a video encoder's read-out, so that distances in its embedding count frames between states
of a task.

The objective has three terms on prefixes of whole episodes. Neighbouring frames of an episode are
at most 1 apart, successes of a task end in the same place, and failures lie as far from there as
the first two terms allow. It learns only from the order in time and the success flag, without
states, actions or an oracle. Left out: quasimetrics (here A is as far from B as B from A).

Source: the constrained maximisation of Wang et al. 2023, "Optimal Goal-Reaching Reinforcement
Learning via Quasimetric Learning", arXiv 2304.01203, with a Euclidean distance, and penalties
instead of multipliers.
"""

# Axes: B drawn sample, N frame of all episodes end to end, F feature, E channel of the embedding.

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vjepa.clips import prepare
from vjepa.pooling import last_grid
from vjepa.readout import ReadOut
from vjepa.vision_transformer import VideoTransformer


@dataclass(frozen=True)
class ReadOutConfig:
    """Settings of the read-out's training, chosen on tuning seeds (`reward_progress`)."""

    steps: int = 1000
    batch_size: int = 128
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    # Of normalised features; without it the read-out memorises its training scenes.
    noise: float = 0.3
    neighbour_weight: float = 5.0
    goal_weight: float = 1.0
    goal_radius: float = 0.5  # frames; successes of a task may end this far apart
    spread_weight: float = 0.3
    spread_limit: float = 15.0  # frames, about an episode; larger distances mean nothing more


@dataclass(frozen=True)
class Draw:
    """Rows of prefixes: a frame, the next one, and two ends of successes of the same task.
    `failed_B` marks failed episodes.
    """

    now_B: NDArray[np.int64]
    next_B: NDArray[np.int64]
    goal_B: NDArray[np.int64]
    other_goal_B: NDArray[np.int64]
    failed_B: NDArray[np.bool_]


class EpisodeIndex:
    """Positions of each episode's prefixes, and the tasks of successful episodes."""

    def __init__(
        self, *, lengths: NDArray[np.int64], success: NDArray[np.bool_], tasks: NDArray[np.str_]
    ) -> None:
        """Keep the episodes of tasks with at least two successes; others have no goal states."""
        starts = np.cumsum(lengths) - lengths
        ends = {
            str(task): (starts + lengths - 1)[success & (tasks == task)]
            for task in np.unique(tasks)
        }
        self.ends_of = {task: rows for task, rows in ends.items() if len(rows) >= 2}
        keep = np.isin(tasks, list(self.ends_of)) & (lengths >= 2)
        if not keep.any():
            raise ValueError(
                "The read-out needs a task with at least two successful clips of two frames; there "
                "is none."
            )
        self.starts = starts[keep]
        self.lengths = lengths[keep]
        self.success = success[keep]
        self.tasks = tasks[keep]

    def draw(self, count: int, rng: np.random.Generator) -> Draw:
        """`count` random frames of random episodes, each with its successor and two goals of its
        task.
        """
        episode = rng.integers(len(self.starts), size=count)
        now_B = self.starts[episode] + (rng.random(count) * (self.lengths[episode] - 1)).astype(
            np.int64
        )
        goals = np.array([rng.choice(self.ends_of[task], size=2) for task in self.tasks[episode]])
        return Draw(now_B, now_B + 1, goals[:, 0], goals[:, 1], ~self.success[episode])


def distance(a_BE: Tensor, b_BE: Tensor) -> Tensor:
    """Euclidean distance [B], with a gradient at 0."""
    return ((a_BE - b_BE).square().sum(1) + 1e-6).sqrt()


def readout_loss(
    *,
    now_BE: Tensor,
    next_BE: Tensor,
    goal_BE: Tensor,
    other_goal_BE: Tensor,
    failed_B: Tensor,
    config: ReadOutConfig,
) -> Tensor:
    """The three terms as penalties; all distances are in frames."""
    neighbours = (distance(now_BE, next_BE) - 1.0).relu().square().mean()
    goals = (distance(goal_BE, other_goal_BE) - config.goal_radius).relu().square().mean()
    spread = (distance(now_BE, goal_BE).clamp(max=config.spread_limit) * failed_B).mean()
    return (
        config.neighbour_weight * neighbours
        + config.goal_weight * goals
        - config.spread_weight * spread
    )


def train_readout(
    *, features_NF: Tensor, index: EpisodeIndex, config: ReadOutConfig, seed: int
) -> ReadOut:
    """Train on features of all prefixes of all episodes; row n is the clip that ends at frame n."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    readout = ReadOut(num_features=features_NF.shape[1])
    readout.fit_normalisation(features_NF)
    optimizer = torch.optim.AdamW(
        readout.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step=step, config=config)
        draw = index.draw(config.batch_size, rng)
        rows = torch.from_numpy(
            np.concatenate((draw.now_B, draw.next_B, draw.goal_B, draw.other_goal_B))
        )
        noise = config.noise * torch.randn(len(rows), features_NF.shape[1], generator=generator)
        now, following, goal, other = readout.embed(features_NF[rows], noise_BF=noise).chunk(4)
        loss = readout_loss(
            now_BE=now,
            next_BE=following,
            goal_BE=goal,
            other_goal_BE=other,
            failed_B=torch.from_numpy(draw.failed_B),
            config=config,
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return readout.requires_grad_(False)


def prefixes(
    frames_NHW3: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> Iterator[list[NDArray[np.uint8]]]:
    """The clips of each episode that end with its first, second, … last frame."""
    for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        yield [frames_NHW3[start : start + count] for count in range(1, length + 1)]


def prefix_features(
    *, model: VideoTransformer, frames_NHW3: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> Tensor:
    """`last_grid` features [N, F] of every prefix of every episode: row n is the clip that ends
    with frame n.
    """
    config, rows = model.config, []
    for clips in prefixes(frames_NHW3, lengths):
        video = prepare(
            clips, frames_per_clip=config.frames_per_clip, image_size=config.image_size, crop=False
        )
        with torch.no_grad():
            rows.append(last_grid(model(video).unflatten(1, config.grid)))
    return torch.cat(rows)


def learning_rate(*, step: int, config: ReadOutConfig) -> float:
    """Linear warm-up, then half a cosine to nearly 0."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warm * 0.5 * (1.0 + math.cos(math.pi * step / config.steps))
