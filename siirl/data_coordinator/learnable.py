"""Samples training prompts by learnability: prefers tasks that the policy solves sometimes.

A group of rollouts that all succeed, or all fail, has no advantage under a 0/1 reward. If a task
succeeds with probability p, the variance of its outcome is p (1 - p). Rutherford et al. (2024,
https://arxiv.org/abs/2408.15099) call it learnability. Here a step's prompts are divided in
proportion to it: a task at 95 % gets about a fifth of the prompts of one at 50 %. `ALIKE` of the
prompts are divided by task weight alone, so that a regression of a solved task is observed.

Left out: the difficulty of single start states. The seeds of a task come from the same stream as in
`TaskLoader`.
"""

# T task

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siirl.data_coordinator.task_stream import EpisodeTask, Outcomes, TaskLoader

ALIKE = 0.25  # share of the prompts divided by weights alone
# decay of observed counts per step: about the last five steps count, some hundred episodes of a
# laptop's job
REMEMBERED = 0.8


class LearnableTaskLoader(TaskLoader):
    """`TaskLoader` that gives more prompts to tasks of higher learnability; takes the same
    arguments.

    Every rank must `observe` the same outcomes, those of all ranks, at the same points between
    draws, so that all ranks draw the same stream.
    """

    sampling = "learnable"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._drawn_T = np.zeros(len(self.tasks), np.int64)
        self._successes_T, self._episodes_T = np.zeros(len(self.tasks)), np.zeros(len(self.tasks))

    def observe(self, outcomes: Sequence[Outcomes]) -> None:
        """See `Loader.observe`; later draws use the observed outcomes."""
        self._successes_T *= REMEMBERED
        self._episodes_T *= REMEMBERED
        for of_rank in outcomes:
            for task, (successes, episodes) in of_rank.items():
                place = self.tasks.index(task)
                self._successes_T[place] += successes
                self._episodes_T[place] += episodes

    def shares(self) -> NDArray[np.float64]:
        """Expected share of the next prompts, by task; they add to one. A task of weight 0 has
        share 0.
        """
        # an unseen task counts as one half
        success_T = (self._successes_T + 1) / (self._episodes_T + 2)
        weight_T = np.asarray(self.weights, np.float64)
        learnable_T = weight_T * success_T * (1 - success_T)
        shares_T: NDArray[np.float64] = (
            ALIKE * weight_T / weight_T.sum() + (1 - ALIKE) * learnable_T / learnable_T.sum()
        )
        return shares_T

    def draw(self, count: int) -> list[EpisodeTask]:
        """See `TaskLoader.draw`. Each task has its share of `count` prompts, rounded up or down at
        random.
        """
        first, self.position = self.position, self.position + count
        random = np.random.default_rng([self.seed, first])
        places = (random.random() + np.arange(count)) / count
        chosen = np.minimum(
            np.searchsorted(np.cumsum(self.shares()), places, side="right"), self._last_task
        )
        prompts = [
            self._take(int(task), number)
            for number, task in enumerate(random.permutation(chosen), start=first)
        ]
        return prompts[self.rank :: self.ranks]

    def metrics(self) -> dict[str, float]:
        """Expected share of the prompts, by task."""
        return {
            f"data/{task}/share": float(share)
            for task, share in zip(self.tasks, self.shares(), strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """See `TaskLoader.state_dict`; also has the observed outcomes of the tasks."""
        seen = {
            "drawn": self._drawn_T,
            "successes": self._successes_T,
            "episodes": self._episodes_T,
        }
        return {**super().state_dict(), **{name: values.tolist() for name, values in seen.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `TaskLoader.load_state_dict`."""
        super().load_state_dict(state)
        self._drawn_T = np.array(state["drawn"], np.int64)
        self._successes_T, self._episodes_T = (
            np.array(state["successes"]),
            np.array(state["episodes"]),
        )

    @property
    def _last_task(self) -> int:
        """The last task that may be drawn: rounding can leave the sum of the shares a little below
        one.
        """
        return int(np.flatnonzero(self.weights)[-1])

    def _take(self, task_id: int, number: int) -> EpisodeTask:
        trial = int(self._drawn_T[task_id])
        self._drawn_T[task_id] += 1
        return self._episode(task_id=task_id, trial_id=trial, number=number)
