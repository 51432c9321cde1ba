"""Trajectory reward that learns from the run's own episodes how successes end.

An episode is the closer to success, the more likely its last moment is for a success, and the less
likely for a failure: its closeness is the log ratio of two kernel density estimates. So no label
besides success is needed. The densities are those of a task's remembered successes, and of its
failures and of all starts together. Features are whitened, because the arm covers more pixels than
the object that it moves. A failure that ends unlike all others, such as one with a covered camera,
earns 0 and is not remembered.

It learns only from earlier steps, so it never scores an episode that it has learnt from. Its skill
is how often the moment before a success's last one is closer than the end of a failure, both left
out of the densities, less what chance would explain. A failure's reward is multiplied by the skill,
so it is 0 without skill. Features that show nothing have no skill; those that show only the time
have, and the skill does not predict how well failures are ranked. Left out: video encoding, ranks.

`benchmarks/reward_value.py` compares it with `vjepa.reward`.
"""

# Axes: B trajectory of a step, N remembered trajectory, M moment of a trajectory, E channel of a
# moment, F feature [M * E] of a trajectory, P principal component, X and Y rows of moments.

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.special import expit, logsumexp

from vjepa.pooling import MOMENTS
from vjepa.reward import RewardOutput, check_rows, finite_rows, reward_metrics, standardise
from vjepa.reward_settings import FEWEST_SUCCESSES, TrajectoryRewardConfig

Array = NDArray[Any]

COMPONENTS = 32  # whitened; 24 and 48 rank failures a little worse
BANDWIDTH = 0.5  # squared, in medians of the squared distance between ends; 0.25 ranks alike
UNLIKELY = 0.05  # quantile of the failures' own densities that is the floor
STRANGE = 4.0  # of the squared distance
CHANCE = 1.645  # standard errors that are no skill; a guess exceeds them in one step of twenty
SCORED, EARLIER = -1, -2  # moments: what is scored, and what the skill compares with failures
ROUNDED = 6  # digits of a closeness that tell two moments apart
ROUNDING = 1e-10  # share of the largest variance below which a component is none


class Ends:
    """Densities of the ends of a task's successes and failures.

    Args:
        successes_NF: Features of remembered successes.
        failures_NF: Of remembered failures; at least two.
    """

    def __init__(self, *, successes_NF: Array, failures_NF: Array) -> None:
        rows_XE = moments_of(np.concatenate((successes_NF, failures_NF))).astype(np.float64)
        self.rows_XE, self.seen = rows_XE, self._seen(rows_XE)
        self.mean_E = rows_XE.mean(0)
        self.whitening_EP = whitening(rows_XE - self.mean_E)
        won_NMP, lost_NMP = self._whiten(successes_NF), self._whiten(failures_NF)
        self.won_NP, self.lost_NP = won_NMP[:, SCORED], lost_NMP[:, SCORED]
        self.earlier_NP = won_NMP[:, EARLIER]
        self.starts_NP = np.concatenate((won_NMP[:, 0], lost_NMP[:, 0]))
        ends_NP = np.concatenate((self.won_NP, self.lost_NP))
        median = float(np.median(squared_distances(ends_NP, ends_NP)))
        self.width = BANDWIDTH * median or 1.0  # 0: all ends are equal
        own_N = self._density(self.lost_NP, self.lost_NP, left_out=True)
        self.floor = float(np.quantile(own_N, UNLIKELY))
        failure_N = self._ratio(
            self.lost_NP, won=self._density(self.lost_NP, self.won_NP), lost=own_N
        )
        self.lowest = float(failure_N.min())
        self.skill = self._skill(failure_N)

    def closeness(self, rows_BF: Array) -> NDArray[np.float64]:
        """Log ratio [B] of the densities at the end of each trajectory."""
        ends_BP = self._whiten(rows_BF)[:, SCORED]
        return self._ratio(
            ends_BP,
            won=self._density(ends_BP, self.won_NP),
            lost=self._density(ends_BP, self.lost_NP),
        )

    def strange(self, rows_BF: Array) -> NDArray[np.bool_]:
        """Whether [B] an end differs from all remembered moments by twice as much as any of them.

        The components need not show that difference.
        """
        ends_BE = rows_BF.reshape(len(rows_BF), MOMENTS, -1)[:, SCORED]
        nearest_B = squared_distances(ends_BE, self.rows_XE).min(1)
        return np.asarray(nearest_B > STRANGE * self.seen)

    @staticmethod
    def _seen(rows_XE: NDArray[np.float64]) -> float:
        """Largest squared distance from an episode's end to the nearest moment of another."""
        ends_NE = rows_XE[MOMENTS + SCORED :: MOMENTS]
        squared_NX = squared_distances(ends_NE, rows_XE)
        episode_X = np.arange(len(rows_XE)) // MOMENTS
        squared_NX[np.arange(len(ends_NE))[:, None] == episode_X] = np.inf
        return float(squared_NX.min(1).max()) or 1.0  # 0: all ends are equal

    def _skill(self, failure_N: NDArray[np.float64]) -> float:
        """Somers' D between success and closeness, less `CHANCE` standard errors; at least 0.

        The error counts successes and failures as drawn (DeLong et al. 1988).
        """
        success_N = self._ratio(
            self.earlier_NP,
            won=self._density(self.earlier_NP, self.won_NP, left_out=True),
            lost=self._density(self.earlier_NP, self.lost_NP),
        )
        ahead_NN = np.subtract.outer(success_N, failure_N).round(ROUNDED)
        order_NN = np.sign(ahead_NN)
        variance = sum(order_NN.mean(axis).var() / order_NN.shape[1 - axis] for axis in (0, 1))
        return max(0.0, float(order_NN.mean() - CHANCE * np.sqrt(variance)))

    def _whiten(self, rows_NF: Array) -> NDArray[np.float64]:
        """Whitened moments [N, M, P]."""
        rows_XP = (moments_of(rows_NF).astype(np.float64) - self.mean_E) @ self.whitening_EP
        return rows_XP.reshape(len(rows_NF), MOMENTS, -1)

    def _ratio(self, rows_BP: Array, *, won: Array, lost: Array) -> NDArray[np.float64]:
        against = (lost, self._density(rows_BP, self.starts_NP), np.full(len(rows_BP), self.floor))
        return np.asarray(won - logsumexp(against, axis=0), np.float64)

    def _density(
        self, rows_YP: Array, of_NP: Array, *, left_out: bool = False
    ) -> NDArray[np.float64]:
        """Log density [Y] up to a constant; `left_out`: of row y without the n of the same
        number.
        """
        exponent_YN = -squared_distances(rows_YP, of_NP) / self.width
        if left_out:
            np.fill_diagonal(exponent_YN, -np.inf)
        return np.asarray(
            logsumexp(exponent_YN, axis=1) - np.log(len(of_NP) - left_out), np.float64
        )


def whitening(centred_XE: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matrix [E, P] to the first principal components, each with variance 1; at most
    `COMPONENTS`, and none without variance.
    """
    rows = len(centred_XE)
    first = max(0, rows - COMPONENTS)
    squared_P, rows_XP = eigh(centred_XE @ centred_XE.T, subset_by_index=(first, rows - 1))
    varies_P = squared_P > ROUNDING * max(float(squared_P[-1]), ROUNDING)
    squared_P, rows_XP = squared_P[varies_P], rows_XP[:, varies_P]
    return np.asarray(centred_XE.T @ rows_XP * (np.sqrt(rows) / squared_P), np.float64)


def squared_distances(left_XE: Array, right_YE: Array) -> NDArray[np.float64]:
    """Squared Euclidean distances [X, Y] by one matrix product."""
    left, right = left_XE.astype(np.float64), right_YE.astype(np.float64)
    sums = (left**2).sum(1)[:, None] + (right**2).sum(1)[None]
    return np.maximum(sums - 2 * left @ right.T, 0.0)


class TaskMemory:
    """Remembered episodes of one task."""

    def __init__(self) -> None:
        self.successes_NF = np.zeros((0, 0), np.float32)
        self.failures_NF = np.zeros((0, 0), np.float32)
        self.scores_N = np.zeros(0)
        """Closeness of earlier failures, each predicted before it was learnt from."""
        self.waiting_NF = np.zeros((0, 0), np.float32)
        """Trajectories of this step that are learnt from after it is scored."""
        self.waiting_success_N = np.zeros(0, bool)
        self.ends: Ends | None = None
        """Densities of what is remembered; None if it is too little."""

    @property
    def skill(self) -> float | None:
        """Of the next step's rewards; None while the failures are too few to be ranked."""
        if len(self.successes_NF) < FEWEST_SUCCESSES:
            return 0.0
        return None if self.ends is None else self.ends.skill

    def wait(self, rows_BF: Array, success_B: NDArray[np.bool_]) -> None:
        """Keep trajectories for `learn`."""
        self.waiting_NF = joined(self.waiting_NF, rows_BF)
        self.waiting_success_N = np.concatenate((self.waiting_success_N, success_B))

    def learn(self, *, limit: int, fewest_failures: int) -> None:
        """Remember what waits, and forget the oldest beyond `limit` of each kind.

        A strange failure is not remembered; otherwise the next one would be usual.
        """
        if len(self.waiting_NF) == 0:
            return
        rows_NF, success_N = self.waiting_NF, self.waiting_success_N
        if self.ends is not None:
            usual_N = success_N | ~self.ends.strange(rows_NF)
            rows_NF, success_N = rows_NF[usual_N], success_N[usual_N]
        self.successes_NF = last(joined(self.successes_NF, rows_NF[success_N]), limit)
        self.failures_NF = last(joined(self.failures_NF, rows_NF[~success_N]), limit)
        self.waiting_NF, self.waiting_success_N = rows_NF[:0], success_N[:0]
        self.fit(fewest_failures=fewest_failures)

    def fit(self, *, fewest_failures: int) -> None:
        """Estimate the densities of the remembered episodes."""
        enough = len(self.successes_NF) >= FEWEST_SUCCESSES
        enough = enough and len(self.failures_NF) >= max(2, fewest_failures)
        rows = {"successes_NF": self.successes_NF, "failures_NF": self.failures_NF}
        self.ends = Ends(**rows) if enough else None


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
    """Scores the trajectories of a step by how they end, and learns from them.

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
        self._learn()

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
        for task in sorted(set(tasks_B)):
            of_task_B = task_B == task
            memory = self.memory.setdefault(task, TaskMemory())
            ends = memory.ends
            if ends is not None:
                failed = np.flatnonzero(of_task_B & ~success_B)
                usual = failed[~ends.strange(rows_BF[failed])] if len(failed) else failed
                score_N = ends.closeness(rows_BF[usual]) if len(usual) else np.zeros(0)
                window = np.concatenate((memory.scores_N, score_N))
                if ends.skill > 0:
                    distance_B[failed] = 1.0 - ends.lowest  # of those that are strange
                if ends.skill > 0 and len(usual):
                    distance_B[usual] = -score_N
                    z_B[usual] = standardise(distance=-score_N, window=-window)
                    reward_B[usual] = self.config.alpha * ends.skill * expit(-z_B[usual])
                memory.scores_N = last(window, self.config.failure_window)
            memory.wait(rows_BF[of_task_B], success_B[of_task_B])
        skills = {
            task: memory.skill for task, memory in self.memory.items() if memory.skill is not None
        }
        self._learn()
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
        return memory is not None and bool(memory.skill)

    def _learn(self) -> None:
        for memory in self.memory.values():
            memory.learn(
                limit=self.config.success_bank_size,
                fewest_failures=self.config.min_failure_window,
            )

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The memory by task, for a checkpoint."""
        return {
            task: {name: value for name, value in vars(memory).items() if name != "ends"}
            for task, memory in self.memory.items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the result of `state_dict`, bit for bit.

        Raises:
            ValueError: Not a state of this class.
        """
        self.memory.clear()
        for task, stored in state.items():
            if not {"successes_NF", "failures_NF"} <= set(stored):
                raise ValueError(
                    f"A memory of {task!r} has successes_NF and failures_NF; got {sorted(stored)}."
                )
            memory = self.memory[task] = TaskMemory()
            memory.successes_NF = finite_rows(stored["successes_NF"], what=f"successes of {task!r}")
            memory.failures_NF = finite_rows(stored["failures_NF"], what=f"failures of {task!r}")
            memory.fit(fewest_failures=self.config.min_failure_window)
            if "pairs" in stored:
                continue  # an earlier version: its scores have another scale
            memory.scores_N = np.asarray(stored["scores_N"], np.float64)
            memory.waiting_NF = finite_rows(stored["waiting_NF"], what=f"step of {task!r}")
            memory.waiting_success_N = np.asarray(stored["waiting_success_N"], bool)


def moments_of(rows_NF: Array) -> Array:
    """Moments [N * M, E] of trajectories [N, M * E]."""
    return rows_NF.reshape(len(rows_NF) * MOMENTS, -1)
