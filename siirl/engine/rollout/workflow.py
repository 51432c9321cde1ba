"""Episodes as coroutines: what one is asked with, what comes of it, and
`RolloutWorkflow.arun_episode(engine, data)` between them.

The workflows of the two domains are `embodied_workflow` and `text_workflow`. In both an episode
asks the engine for an action, hands it to its environment, and goes on until the episode is over.
Nothing is computed for it afterwards. Many run at once; which of them share a forward pass is the
engine's business.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.base import Frames

ENCODER_STREAM, RECORDER_STREAM = "encoder", "recorder"


@dataclass(frozen=True)
class EpisodeRequest:
    """One rollout to be made: which episode, and which random numbers the policy draws in it."""

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
    """One finished episode: the row that training sees, and beside it what training must not carry."""

    row: dict[str, Any]
    """Batch columns of one sample, unpadded (siirl.data_coordinator holds the legend)."""
    instruction: str = ""
    frames: dict[str, Frames] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    """What a person wants to read of it, ready for JSON: messages, turns, verdict, reward parts."""


class RolloutWorkflow(abc.ABC):
    """How an episode of some domain runs. A user's own subclass is a plain coroutine, too."""

    @abc.abstractmethod
    async def arun_episode(
        self, engine: Any, data: Any
    ) -> Trajectory | Sequence[Trajectory] | None:
        """Run one episode; one or more trajectories, or None where the episode is rejected."""
