"""Trajectory reward from a value function of frames that the run learns from its own episodes.

A frame's value is GAMMA to the power of the moments left until success, and 0 in a failed episode.
A kernel ridge regression predicts it for each task. The higher the predicted value of a failure's
best moments, the more reward it gets. So no label besides success is needed, and a failure that
came close only in the middle also counts. The two best moments are averaged, so freezing at the
best one counts it twice. Frames unlike all others have the value 0.

The regression learns only from earlier steps, so it never scores an episode that it has learnt
from. Its skill is how often it ranks the first half of a success above that of a failure from the
same start state, in episodes that it has not learnt from, less what chance would explain if it
guessed anew in each start state. A failure's reward is multiplied by the skill, so it is 0 without
skill. Left out: video encoding, ranks.

`benchmarks/reward_value.py` compares it with `vjepa.reward`.
"""

# Axes: B trajectory of a step, N remembered trajectory, M moment of a trajectory, E channel of a
# moment, F feature [M * E] of a trajectory, X and Y rows of moments.

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from vjepa.pooling import MOMENTS
from vjepa.reward import RewardOutput, check_rows, finite_rows, reward_metrics, standardise
from vjepa.reward_settings import TrajectoryRewardConfig

Array = NDArray[Any]

GAMMA = 0.8  # per moment: half an episode before success counts 0.4; 0.6 to 0.9 rank equally well
RIDGE = 0.1  # added to the kernel's diagonal of 1; 0.01 and 1 rank worse
FEWEST_SUCCESSES = 2  # to learn from; one success shows its scene, not its task
SKILL_DECAY = 0.9  # weight of earlier pairs in the skill, per step
CHANCE = 1.645  # standard errors that are no skill; a guess exceeds them in one step of twenty
LATER_NAMES = {"variance", "waiting_NF", "waiting_success_N"}  # not in checkpoints before them
BEST_MOMENTS = 2  # moments of an episode whose values are averaged; see `closeness`


class ValueRegression:
    """Kernel ridge regression with a Gaussian kernel as wide as the median distance of its rows.

    Far from all rows it predicts 0. A covered camera still gets some reward, that of a failure
    whose value is low beside the task's others.

    Args:
        rows_XE: Moments of all remembered trajectories.
        target_X: Their values.
    """

    def __init__(self, *, rows_XE: Array, target_X: Array) -> None:
        self.rows_XE = rows_XE
        squared_XX = squared_distances(rows_XE, rows_XE)
        self.width = float(np.median(squared_XX)) or 1.0  # 0: all rows are equal
        kernel_XX = np.exp(-squared_XX / self.width)
        kernel_XX[np.diag_indices(len(kernel_XX))] += RIDGE
        self.weights_X = cho_solve(cho_factor(kernel_XX, overwrite_a=True), target_X)

    def values(self, rows_YE: Array) -> NDArray[np.float64]:
        """Predicted values [Y]."""
        kernel_YX = np.exp(-squared_distances(rows_YE, self.rows_XE) / self.width)
        return np.asarray(kernel_YX @ self.weights_X, np.float64)


def closeness(value_BM: NDArray[np.float64]) -> NDArray[np.float64]:
    """How close [B] an episode came: the mean of its `BEST_MOMENTS` highest values.

    The mean of all moments would reward hesitation: a video without motion then outranked more of
    the failures.
    """
    return np.sort(value_BM, axis=1)[:, -BEST_MOMENTS:].mean(1)


def squared_distances(left_XE: Array, right_YE: Array) -> NDArray[np.float64]:
    """Squared Euclidean distances [X, Y] by one matrix product."""
    left, right = left_XE.astype(np.float64), right_YE.astype(np.float64)
    sums = (left**2).sum(1)[:, None] + (right**2).sum(1)[None]
    return np.maximum(sums - 2 * left @ right.T, 0.0)


class TaskMemory:
    """Remembered episodes of one task, and the value fitted to them."""

    def __init__(self) -> None:
        self.successes_NF = np.zeros((0, 0), np.float32)
        self.failures_NF = np.zeros((0, 0), np.float32)
        self.scores_N = np.zeros(0)
        """Closeness of earlier failures, each predicted before it was learnt from."""
        self.waiting_NF = np.zeros((0, 0), np.float32)
        """Trajectories of this step that are learnt from after it is scored."""
        self.waiting_success_N = np.zeros(0, bool)
        self.won = 0.0
        """Number of `pairs` in which the success ranks higher, minus those in which it ranks
        lower."""
        self.pairs = 0.0
        self.variance = 0.0
        """Of `won`, if the value guessed in each group: the sum of the groups' squares."""

    @property
    def skill(self) -> float:
        """Somers' D between success and value within groups, less what guesses would reach.

        1: perfect in many groups, 0: none or unknown; two groups never suffice. Steps share pairs
        (`SKILL_DECAY`), so half of the runs with a value that guesses have a little skill at some
        point in 60 steps.
        """
        surely_won = self.won - CHANCE * math.sqrt(self.variance)
        return max(0.0, surely_won / self.pairs) if self.pairs else 0.0

    def wait(self, rows_BF: Array, success_B: NDArray[np.bool_]) -> None:
        """Keep trajectories for `learn`."""
        self.waiting_NF = joined(self.waiting_NF, rows_BF)
        self.waiting_success_N = np.concatenate((self.waiting_success_N, success_B))

    def learn(self, *, limit: int) -> None:
        """Remember what waits, and forget the oldest beyond `limit` of each kind."""
        rows_NF, success_N = self.waiting_NF, self.waiting_success_N
        self.successes_NF = last(joined(self.successes_NF, rows_NF[success_N]), limit)
        self.failures_NF = last(joined(self.failures_NF, rows_NF[~success_N]), limit)
        self.waiting_NF, self.waiting_success_N = rows_NF[:0], success_N[:0]

    def regression(self, *, fewest_failures: int) -> ValueRegression | None:
        """Fit the remembered episodes; None if they are too few."""
        successes, failures = len(self.successes_NF), len(self.failures_NF)
        if successes < FEWEST_SUCCESSES or failures < fewest_failures:
            return None
        of_success_M = GAMMA ** np.arange(MOMENTS)[::-1]
        target_NM = np.zeros((successes + failures, MOMENTS))
        target_NM[:successes] = of_success_M
        rows_NF = np.concatenate((self.successes_NF, self.failures_NF))
        return ValueRegression(rows_XE=moments_of(rows_NF), target_X=target_NM.ravel())


def joined(before_NF: Array, rows_BF: Array) -> Array:
    """The rows of both.

    Raises:
        ValueError: They have different numbers of features.
    """
    if len(before_NF) == 0 or len(rows_BF) == 0:
        return rows_BF if len(rows_BF) else before_NF
    if before_NF.shape[1] != rows_BF.shape[1]:
        raise ValueError(
            f"Embeddings have {rows_BF.shape[1]} channels, the remembered ones "
            f"{before_NF.shape[1]}: they come from another encoder. Use that one, or start without "
            "its memory."
        )
    return np.concatenate((before_NF, rows_BF))


def last(rows: Array, limit: int) -> Array:
    """The last `limit` of `rows`; none if it is 0."""
    return rows[max(0, len(rows) - limit) :]


class SuccessValueReward:
    """Scores the trajectories of a step by the value of their frames, and learns from them.

    Args:
        config: Settings; `success_bank_size` limits a task's successes, and likewise its failures.
        demonstrations: Embeddings [N, F] of successful demonstrations by task. They are learnt from
            before the first step, and forgotten like other successes.
    """

    def __init__(
        self, config: TrajectoryRewardConfig, *, demonstrations: Mapping[str, Array] | None = None
    ) -> None:
        self.config = config
        self.memory: dict[str, TaskMemory] = {}
        for task, rows_NF in (demonstrations or {}).items():
            won = np.ones(len(rows_NF), bool)
            self.remember(task=task, embeddings_BF=rows_NF, success_B=won)
            self.memory[task].learn(limit=config.success_bank_size)

    def score(
        self, *, embeddings_BD: Array, success_B: Array, tasks_B: Sequence[str], group_B: Array
    ) -> RewardOutput:
        """Reward every trajectory of a step, then learn from the step.

        Args:
            embeddings_BD: Features [B, M * E] of all ranks' trajectories, moment by moment.
            success_B: The benchmark's own flag.
            tasks_B: Name of each trajectory's task.
            group_B: Id of each trajectory's group (rollouts of one prompt).

        Returns:
            Rewards; `distance_B` is the negative closeness.

        Raises:
            ValueError: An embedding that is not finite, or columns of different lengths.
        """
        rows_BF = finite_rows(embeddings_BD, what="embeddings", tasks=tasks_B)
        success_B, group_B = np.asarray(success_B, dtype=bool), np.asarray(group_B)
        check_rows(embeddings_BD=rows_BF, success_B=success_B, tasks_B=tasks_B, group_B=group_B)
        task_B = np.asarray(tasks_B, dtype=str)
        reward_B = success_B.astype(np.float64)
        distance_B, z_B = np.full(len(task_B), np.nan), np.full(len(task_B), np.nan)
        skills: dict[str, float] = {}
        for task in sorted(set(tasks_B)):
            of_task_B = task_B == task
            memory = self.memory.setdefault(task, TaskMemory())
            value_BM = self._values(memory, rows_BF[of_task_B])
            if value_BM is not None:
                count_pairs(
                    memory,
                    value_BM=value_BM,
                    success_B=success_B[of_task_B],
                    group_B=group_B[of_task_B],
                )
                skills[task] = memory.skill
                failed = of_task_B & ~success_B
                score_N = closeness(value_BM)[~success_B[of_task_B]]
                if memory.skill > 0 and len(score_N):
                    window = np.concatenate((memory.scores_N, score_N))
                    distance_B[failed] = -score_N
                    z_B[failed] = standardise(distance=-score_N, window=-window)
                    reward_B[failed] = self.config.alpha * memory.skill * expit(-z_B[failed])
                recent = np.concatenate((memory.scores_N, score_N))
                memory.scores_N = last(recent, self.config.failure_window)
            memory.wait(rows_BF[of_task_B], success_B[of_task_B])
        for memory in self.memory.values():
            memory.learn(limit=self.config.success_bank_size)
        defined_B = success_B | np.isfinite(distance_B)
        metrics = reward_metrics(
            reward_B=reward_B,
            success_B=success_B,
            defined_B=defined_B,
            distance_B=distance_B,
            group_B=group_B,
        )
        if skills:
            metrics["reward/value_skill"] = float(np.mean(list(skills.values())))
        metrics |= {f"reward/{task}/value_skill": skill for task, skill in skills.items()}
        return RewardOutput(reward_B.astype(np.float32), defined_B, distance_B, z_B, metrics)

    def remember(self, *, task: str, embeddings_BF: Array, success_B: NDArray[np.bool_]) -> None:
        """Learn from trajectories that are not scored, such as those of dropped groups.

        It happens after the next `score`, so what scores a step is the same for all its groups.
        """
        rows_BF = finite_rows(embeddings_BF, what=f"trajectories of {task!r}")
        self.memory.setdefault(task, TaskMemory()).wait(rows_BF, success_B)

    def judges(self, task: str) -> bool:
        """Whether failures of the task get different rewards."""
        memory = self.memory.get(task)
        return memory is not None and memory.skill > 0

    def _values(self, memory: TaskMemory, rows_BF: Array) -> NDArray[np.float64] | None:
        regression = memory.regression(fewest_failures=self.config.min_failure_window)
        if regression is None:
            return None
        return regression.values(moments_of(rows_BF)).reshape(-1, MOMENTS)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The memory by task, for a checkpoint."""
        return {task: dict(vars(memory)) for task, memory in self.memory.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the result of `state_dict`, bit for bit.

        Raises:
            ValueError: Not a state of this class.
        """
        names = set(vars(TaskMemory()))
        self.memory.clear()
        for task, stored in state.items():
            if set(stored) not in (names, names - LATER_NAMES):
                raise ValueError(f"A value's memory has {sorted(names)}; got {sorted(stored)}.")
            memory = self.memory[task] = TaskMemory()
            memory.successes_NF = finite_rows(stored["successes_NF"], what=f"successes of {task!r}")
            memory.failures_NF = finite_rows(stored["failures_NF"], what=f"failures of {task!r}")
            memory.scores_N = np.asarray(stored["scores_N"], np.float64)
            if "variance" not in stored:
                continue  # the skill is measured again
            memory.waiting_NF = finite_rows(stored["waiting_NF"], what=f"step of {task!r}")
            memory.waiting_success_N = np.asarray(stored["waiting_success_N"], bool)
            memory.won, memory.pairs = float(stored["won"]), float(stored["pairs"])
            memory.variance = float(stored["variance"])


def count_pairs(
    memory: TaskMemory, *, value_BM: Array, success_B: NDArray[np.bool_], group_B: Array
) -> None:
    """Count the pairs of a success and a failure in a group, and which of the two has the higher
    value.

    Only first halves are compared, because the end of a success shows the success itself.
    """
    half_B = value_BM[:, : MOMENTS // 2].mean(1)
    memory.won, memory.pairs = SKILL_DECAY * memory.won, SKILL_DECAY * memory.pairs
    memory.variance *= SKILL_DECAY**2
    for group in np.unique(group_B):
        successes = half_B[(group_B == group) & success_B]
        failures = half_B[(group_B == group) & ~success_B]
        order = np.sign(np.subtract.outer(successes, failures))
        memory.won += float(order.sum())
        memory.pairs += order.size
        memory.variance += float(order.sum()) ** 2


def moments_of(rows_NF: Array) -> Array:
    """Moments [N * M, E] of trajectories [N, M * E]."""
    return rows_NF.reshape(len(rows_NF) * MOMENTS, -1)
