"""Episodes as coroutines: `EpisodeRequest` in, `Trajectory` out, run by
`RolloutWorkflow.arun_episode(engine, data)`.

The workflows of the two domains are `embodied_workflow` and `text_workflow`. In both an episode
requests an action from the engine and passes it to its environment until the episode is over.
Nothing is computed for it afterwards. Many episodes run at once; the engine decides which of them
share a forward pass.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.base import Frames

ENCODER_STREAM = "encoder"
RECORDER_STREAM = "recorder"


@dataclass(frozen=True)
class EpisodeRequest:
    """One requested rollout: the episode, and the seed of the policy in it."""

    uid: str
    """Unique over the whole run."""
    group_id: int
    """Rollouts of one prompt (task and seed) share it."""
    task: str
    task_id: int
    trial_id: int
    seed: int
    """Fixes the environment; the same for all rollouts of a group."""
    policy_seed: tuple[int, ...]
    """Fixes the sampled actions; unique to this rollout."""
    greedy: bool = False
    """Take the most likely tokens instead of sampling."""
    record: bool = False
    """Whether a video is wanted."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the environment's reset, such as `split` or a whole `row`."""


@dataclass
class Trajectory:
    """One finished episode: the row for training, and data that training batches do not carry."""

    row: dict[str, Any]
    """Batch columns of one sample, unpadded (legend: siirl.data_coordinator)."""
    instruction: str = ""
    frames: dict[str, Frames] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    """For human readers, as JSON values: messages, turns, verdict, reward parts."""


class RolloutWorkflow(abc.ABC):
    """Runs the episodes of a domain; users may subclass it."""

    @abc.abstractmethod
    async def arun_episode(
        self, engine: Any, data: Any
    ) -> Trajectory | Sequence[Trajectory] | None:
        """Run one episode; returns its trajectories, or None if the episode is rejected."""
