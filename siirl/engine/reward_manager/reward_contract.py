"""Inputs, results and interface of a reward manager."""

# B episode (of all ranks), D channel of the video embedding

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from siirl.errors import ConfigError


@dataclass(frozen=True)
class EpisodeOutcomes:
    """Inputs of a reward; a column is None if it was not provided."""

    uid_B: list[str]
    task_name_B: list[str]
    index_B: NDArray[np.int64]
    complete_B: NDArray[np.bool_]
    env_return_B: NDArray[np.float32]
    video_embedding_BD: NDArray[np.float32] | None
    oracle_distance_B: NDArray[np.float32] | None
    texts_B: dict[str, list[str]] = field(default_factory=dict)
    """Columns of strings from the rollout, for a text's reward (`text_rewards`)."""
    response_length_B: NDArray[np.int64] | None = None
    """Tokens after the prompt, including those of tools; None for robots."""
    graded_B: NDArray[np.bool_] | None = None
    """Whether the environment reports success and return; None: always."""
    total: int = 0
    """Number of episodes of all ranks; these outcomes may be a part of them."""


@dataclass(frozen=True)
class RewardScores:
    """Rewards float32 [B] of the outcomes, and metrics that are the same on every rank."""

    reward_B: NDArray[np.float32]
    metrics: dict[str, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    """Reason for each episode, by position, that could not be scored.

    These are dropped, and their entry of `reward_B` is not read.
    """
    penalty_B: NDArray[np.float32] | None = None
    """Added to the training reward, but not to the score (DAPO's, for long responses)."""
    env_weight_B: NDArray[np.float32] | None = None
    """Weight of the environment's return in `reward_B`; None: 0.

    That share of the environment's rewards is placed at the tokens that earned them (the column
    `env_rewards`); the rest of `reward_B` is placed at the end.
    """
    parts: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Summands and further numbers, by name, for logs; NaN for episodes without one."""


@runtime_checkable
class RewardManager(Protocol):
    """Scores the episodes of a step; its memory is part of the checkpoint.

    Optional: `only_waits`, true if `score` only waits for other processes and so may run in a
    thread beside other work.
    """

    ranks_failures: bool
    """Whether failures of a task get different rewards once the task has a reference."""
    looks_at_all_ranks: bool
    """Whether it needs the episodes of all ranks, as clusters of successes do.

    Otherwise each rank scores its own, and nothing is transferred.
    """

    def score(self, outcomes: EpisodeOutcomes) -> RewardScores:
        """Rewards of all outcomes."""

    def remember(self, dropped: EpisodeOutcomes) -> None:
        """Learn from episodes of the step that a filter dropped.

        They are not scored, but their successes are references.
        """

    def has_reference(self, task_name: str) -> bool:
        """Whether this task has a reference other than this step's successes."""

    def state_dict(self) -> dict[str, Any]:
        """State that the next step's rewards depend on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint."""

    def close(self) -> None:
        """End processes; safe to call twice."""


class Memoryless:
    """A reward that depends on its own episode only."""

    looks_at_all_ranks = True  # cheap for scalars; every rank then logs the same

    def remember(self, dropped: EpisodeOutcomes) -> None:
        """Do nothing."""

    def has_reference(self, task_name: str) -> bool:
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ConfigError(
                f"The checkpoint holds reward state ({sorted(state)}) that "
                f"{type(self).__name__} does not have."
            )

    def close(self) -> None:
        """Do nothing: there are no processes."""
