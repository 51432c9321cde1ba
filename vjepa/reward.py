"""Trajectory reward: the closer a failure's video came to its task's successes, the more reward it
gets.

As in the paper, a success gets 1 and a failure alpha * sigmoid(-z), where z is the standardised
distance to the nearest cluster centre of successes (SRPO, "Self-Referential Policy Optimization for
Vision-Language-Action Models", arXiv 2511.15605). siiRL's published form, which differs, is in
`vjepa.released_reward`.

References are the successes in the given rows (a caller passes the rows of all ranks), a bounded
bank of earlier successes, and demonstrations. z is standardised by a window of the task's earlier
failures: their distances to this step's centres, frozen for the step. Left out: video encoding,
advantages, communication between ranks.
"""

# Axes: B trajectory, D channel of the embedding.

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from vjepa.clustering import Clusters, canonical_order, cluster, nearest_centre_distance
from vjepa.reward_settings import TrajectoryRewardConfig

logger = logging.getLogger(__name__)

Array = NDArray[Any]

# of the mean distance; failures closer together than this differ only by float noise
SPREAD_FLOOR = 1e-3
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the failures' rewards, as a coarse histogram


@dataclass(frozen=True)
class RewardOutput:
    """Rewards of one step.

    `reward_B` is float32. `defined_B` is False for failures of a task without references: their
    reward is 0, as with a 0/1 reward, and their distance and z are NaN. A success always has reward
    1.
    """

    reward_B: NDArray[np.float32]
    defined_B: NDArray[np.bool_]
    distance_B: NDArray[np.float64]
    z_B: NDArray[np.float64]
    metrics: dict[str, float]


def srpo_failure_reward(*, z: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """SRPO's alpha * sigmoid(-z), which falls with distance; the mean failure gets alpha / 2."""
    return alpha * expit(-z)


def standardise(
    *, distance: NDArray[np.float64], window: NDArray[np.float64]
) -> NDArray[np.float64]:
    """z of each distance, by the window's mean and deviation; 0 if it has neither."""
    mean = window.mean()
    spread = max(window.std(), SPREAD_FLOOR * abs(mean))
    return (distance - mean) / spread if spread > 0 else np.zeros_like(distance)


class TrajectoryReward:
    """Scores the trajectories of a step, and remembers successes and failures for later steps."""

    def __init__(
        self, config: TrajectoryRewardConfig, *, demonstrations: Mapping[str, Array] | None = None
    ) -> None:
        """Start with an empty memory.

        Args:
            config: Settings.
            demonstrations: Embeddings [N, D] of successful demonstrations for each task; they
                always stay references.
        """
        self.config = config
        self.demonstrations = {
            task: finite_rows(rows, what=f"demonstrations of {task!r}")
            for task, rows in (demonstrations or {}).items()
        }
        self.bank: dict[str, NDArray[np.float32]] = {}
        self.failures: dict[str, NDArray[np.float32]] = {}

    def score(
        self, *, embeddings_BD: Array, success_B: Array, tasks_B: Sequence[str], group_B: Array
    ) -> RewardOutput:
        """Reward every trajectory of a step, then remember the step.

        Args:
            embeddings_BD: Embeddings of the trajectories of all ranks, in any order.
            success_B: The benchmark's own flag.
            tasks_B: Name of each trajectory's task; references are never shared between tasks.
            group_B: Id of each trajectory's group (rollouts of one prompt); a group has one task.

        Raises:
            ValueError: An embedding that is not finite or has a new size, columns of different
                lengths, or a group with two tasks.
        """
        embeddings_BD = finite_rows(embeddings_BD, what="embeddings", tasks=tasks_B)
        success_B, group_B = np.asarray(success_B, dtype=bool), np.asarray(group_B)
        check_rows(
            embeddings_BD=embeddings_BD, success_B=success_B, tasks_B=tasks_B, group_B=group_B
        )
        self._check_channels(embeddings_BD)
        task_B = np.asarray(tasks_B, dtype=str)
        reward_B = success_B.astype(np.float64)
        distance_B = np.full(len(success_B), np.nan)
        z_B = np.full(len(success_B), np.nan)
        clusters: dict[str, Clusters] = {}
        for task in sorted(set(tasks_B)):
            rows_B = task_B == task
            failed_B = rows_B & ~success_B
            references_ND = self.references(task, embeddings_BD[rows_B & success_B])
            if len(references_ND) == 0:
                logger.warning(
                    "Task %r has had neither a success nor a demonstration: its %d failures get 0.",
                    task,
                    failed_B.sum(),
                )
                continue
            clusters[task] = cluster(
                references_ND=references_ND,
                min_samples=self.config.dbscan_min_samples,
                eps_scale=self.config.dbscan_eps_scale,
            )
            distance_B[rows_B] = nearest_centre_distance(
                embeddings_BD=embeddings_BD[rows_B], clusters=clusters[task]
            )
            if failed_B.any():
                window = self._window(task, embeddings_BD[failed_B], clusters[task])
                z_B[rows_B] = standardise(distance=distance_B[rows_B], window=window)
                reward_B[failed_B] = srpo_failure_reward(z=z_B[failed_B], alpha=self.config.alpha)
        self._remember_step(embeddings_BD, success_B=success_B, task_B=task_B)
        defined_B = success_B | np.isfinite(distance_B)
        metrics = {
            **reward_metrics(
                reward_B=reward_B,
                success_B=success_B,
                defined_B=defined_B,
                distance_B=distance_B,
                group_B=group_B,
            ),
            **cluster_metrics(clusters),
            "reward/bank": float(sum(map(len, self.bank.values()))),
            "reward/window": float(sum(map(len, self.failures.values()))),
        }
        return RewardOutput(reward_B.astype(np.float32), defined_B, distance_B, z_B, metrics)

    def _remember_step(self, embeddings_BD: Array, *, success_B: Array, task_B: Array) -> None:
        """Keep the step's successes and failures, up to the configured numbers."""
        for task in sorted(set(task_B)):
            self._remember(
                self.bank,
                task,
                embeddings_BD[(task_B == task) & success_B],
                limit=self.config.success_bank_size,
            )
            self._remember(
                self.failures,
                task,
                embeddings_BD[(task_B == task) & ~success_B],
                limit=self.config.failure_window,
            )

    def remember_successes(self, *, task: str, embeddings_ND: Array) -> None:
        """Add successes that are not scored, for example of groups that a filter dropped."""
        self._remember(
            self.bank,
            task,
            finite_rows(embeddings_ND, what=f"successes of {task!r}"),
            limit=self.config.success_bank_size,
        )

    def references(self, task: str, successes_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reference embeddings [N, D] of `task`: demonstrations, the bank and this step's
        successes.
        """
        parts = [
            part
            for part in (self.demonstrations.get(task), self.bank.get(task))
            if part is not None
        ]
        return np.concatenate([*parts, successes_ND])

    def state_dict(self) -> dict[str, dict[str, NDArray[np.float32]]]:
        """The memory, for a checkpoint, without demonstrations, which are configuration."""
        return {
            name: {task: rows.copy() for task, rows in memory.items()}
            for name, memory in self._memories().items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Array]]) -> None:
        """Restore the result of `state_dict`, bit for bit.

        Raises:
            ValueError: Not a state of this class.
        """
        if set(state) != set(self._memories()):
            raise ValueError(
                f"A trajectory reward's state has {sorted(self._memories())}; got {sorted(state)}."
            )
        for name, memory in self._memories().items():
            memory.clear()
            memory.update(
                {
                    task: finite_rows(rows, what=f"{name} of {task!r}").copy()
                    for task, rows in state[name].items()
                }
            )

    def _memories(self) -> dict[str, dict[str, NDArray[np.float32]]]:
        return {"bank": self.bank, "failures": self.failures}

    def _window(
        self, task: str, failures_ND: NDArray[np.float32], clusters: Clusters
    ) -> NDArray[np.float64]:
        """Distances of the task's earlier failures to this step's centres; while there are few, the
        step's own failures are included.
        """
        remembered = self.failures.get(task, failures_ND[:0])
        counted = (
            remembered
            if len(remembered) >= self.config.min_failure_window
            else np.concatenate((remembered, failures_ND))
        )
        return nearest_centre_distance(
            embeddings_BD=counted[canonical_order(counted)], clusters=clusters
        )

    def _check_channels(self, embeddings_BD: Array) -> None:
        for name, memory in {**self._memories(), "demonstrations": self.demonstrations}.items():
            for task, rows in memory.items():
                if rows.shape[1] != embeddings_BD.shape[1]:
                    raise ValueError(
                        f"Embeddings have {embeddings_BD.shape[1]} channels, the {name} of "
                        f"{task!r} {rows.shape[1]}: they come from "
                        f"another encoder. Use that one, or start without its memory."
                    )

    @staticmethod
    def _remember(
        memory: dict[str, NDArray[np.float32]],
        task: str,
        rows_ND: NDArray[np.float32],
        *,
        limit: int,
    ) -> None:
        """Append the step's rows in canonical order and drop the oldest; if the step has more than
        `limit`, keep evenly spaced rows.
        """
        if limit == 0 or len(rows_ND) == 0:
            return
        rows_ND = rows_ND[canonical_order(rows_ND)]
        if len(rows_ND) > limit:
            rows_ND = rows_ND[np.linspace(0, len(rows_ND) - 1, limit).round().astype(np.int64)]
        memory[task] = np.concatenate((memory.get(task, rows_ND[:0]), rows_ND))[-limit:]


def check_rows(
    *, embeddings_BD: Array, success_B: Array, tasks_B: Sequence[str], group_B: Array
) -> None:
    """Raise ValueError if the columns of a step differ in length, or a group has two tasks."""
    lengths = {
        "embeddings": len(embeddings_BD),
        "success": len(success_B),
        "tasks": len(tasks_B),
        "groups": len(group_B),
    }
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "Every trajectory needs an embedding, a success flag, a task and a group; got "
            f"{lengths}."
        )
    task_of: dict[int, str] = {}
    for group, task in zip(group_B.tolist(), tasks_B, strict=True):
        if task_of.setdefault(group, task) != task:
            raise ValueError(
                f"Group {group} has the tasks {task_of[group]!r} and {task!r}; a group is one "
                "prompt of one task."
            )


def reward_metrics(
    *,
    reward_B: Array,
    success_B: NDArray[np.bool_],
    defined_B: NDArray[np.bool_],
    distance_B: Array,
    group_B: Array,
) -> dict[str, float]:
    """Counts, mean reward, and quantiles of the failures' rewards and distances; a metric without
    rows is left out.
    """
    told_B = defined_B & ~success_B
    metrics = {
        "reward/trajectories": float(len(reward_B)),
        "reward/successes": float(success_B.sum()),
        "reward/failures": float((~success_B).sum()),
        "reward/undefined": float((~defined_B).sum()),
    }
    if len(reward_B):
        metrics |= {
            "reward/mean_score": float(reward_B.mean()),
            "reward/success_rate": float(success_B.mean()),
        }
    if told_B.any():
        metrics |= {
            f"reward/failure_q{round(100 * level):02d}": float(value)
            for level, value in zip(
                QUANTILES, np.quantile(reward_B[told_B], QUANTILES), strict=True
            )
        }
        spreads = [
            np.ptp(reward_B[told_B & (group_B == group)]) for group in np.unique(group_B[told_B])
        ]
        metrics |= {
            "reward/failure_distance_mean": float(distance_B[told_B].mean()),
            "reward/failure_distance_std": float(distance_B[told_B].std()),
            "reward/group_failure_spread": float(np.mean(spreads)),
        }
    measured_B = success_B & np.isfinite(distance_B)
    if measured_B.any():
        metrics["reward/success_distance_mean"] = float(distance_B[measured_B].mean())
    return metrics


def cluster_metrics(clusters: Mapping[str, Clusters]) -> dict[str, float]:
    """Number of clusters and references over all tasks, and the mean share of references that are
    noise.
    """
    metrics = {
        "reward/clusters": float(sum(len(found.centres_KD) for found in clusters.values())),
        "reward/references": float(sum(found.num_references for found in clusters.values())),
    }
    if clusters:
        metrics["reward/noise_share"] = float(
            np.mean([found.noise_share for found in clusters.values()])
        )
    return metrics


def finite_rows(
    rows: Array, *, what: str, tasks: Sequence[str] | None = None
) -> NDArray[np.float32]:
    """`rows` as float32 [B, D]; refuses other shapes, and values that are not finite (names the
    row).
    """
    rows = np.asarray(rows, dtype=np.float32)
    if rows.ndim != 2:
        raise ValueError(f"The {what} must be [rows, channels]; got shape {list(rows.shape)}.")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        of_task = f" (task {tasks[bad[0]]!r})" if tasks is not None and bad[0] < len(tasks) else ""
        raise ValueError(
            f"Row {bad[0]}{of_task} of the {what} is not finite, {len(bad)} rows in all: the "
            "encoder failed on that clip."
        )
    return rows
