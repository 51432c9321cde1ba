"""Episodes as coroutines: `EpisodeRequest` in, `Trajectory` out, run by
`RolloutWorkflow.arun_episode(engine, data)`; many at once by `run_episodes`.

The workflows of the two domains are `embodied_workflow` and `text_workflow`. In both an episode
requests an action from the engine and passes it to its environment until the episode is over.
Nothing is computed for it afterwards. Many episodes run at once; the engine decides which of them
share a forward pass.
"""

import abc
import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDict

from envs.base import Frames
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.errors import InvariantError, SimulationFailed

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
    noise_correlation: float = 0.0
    """Robots: correlation of the random numbers of successive actions, for exploration."""
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
    changed_instruction: str = ""
    """How a robot's instruction changed within a row that has place for one
    (`EnvSpec.instruction_changes`); such a row cannot be trained on.
    """


class RolloutWorkflow(abc.ABC):
    """Runs the episodes of a domain; users may subclass it."""

    @abc.abstractmethod
    async def arun_episode(
        self, engine: Any, data: Any
    ) -> Trajectory | Sequence[Trajectory] | None:
        """Run one episode; returns its trajectories, or None if the episode is rejected."""


Accept = Callable[[Sequence[Trajectory]], bool]
"""Decides from the trajectories of one episode whether to accept it."""
Outcome = list[Trajectory] | SimulationFailed
"""Result of an episode: its trajectories (none if rejected), or why its simulation failed."""


@dataclass(frozen=True)
class RolloutResult:
    """Results of a list of requests."""

    trajectories: list[Trajectory] = field(default_factory=list)
    """Rows of finished episodes, in the order of the requests; an episode's rows are adjacent."""
    failed: list[tuple[Any, SimulationFailed]] = field(default_factory=list)
    """Episodes that could not be simulated, with the reason."""
    rejected: list[Any] = field(default_factory=list)
    """Episodes that the workflow or the caller rejected."""
    broken_off: int = 0
    """Signal number that stopped the episodes (siirl.interrupts), 0 for none; if set, the other
    fields are empty.
    """

    def batch(self) -> TensorDict:
        """Rows of the finished episodes as a padded batch."""
        return Samples2Dict([Sample(trajectory.row) for trajectory in self.trajectories])

    def training_batch(self) -> TensorDict:
        """As `batch`, for training.

        Raises:
            InvariantError: The instruction of a row changed and it has place for one: its later
                actions would be scored under another text than they were chosen by.
        """
        for trajectory in self.trajectories:
            if trajectory.changed_instruction:
                raise InvariantError(
                    f"The instruction of task {trajectory.row['task_name']!r} changed within an "
                    f"episode ({trajectory.changed_instruction}), and its environment does not say "
                    "so: set instruction_changes=True in its EnvSpec, or keep the text the same "
                    "until the episode ends."
                )
        return self.batch()

    def add(self, data: Any, outcome: Outcome) -> None:
        """Add the outcome of the episode requested by `data`."""
        if isinstance(outcome, SimulationFailed):
            self.failed.append((data, outcome))
        elif outcome:
            self.trajectories.extend(outcome)
        else:
            self.rejected.append(data)


def trajectories_of(workflow: RolloutWorkflow, returned: Any) -> list[Trajectory]:
    """The value returned by `arun_episode` as a list; empty if the episode was rejected.

    Raises:
        TypeError: The workflow returned something else than trajectories or None.
    """
    if returned is None:
        return []
    trajectories = [returned] if isinstance(returned, Trajectory) else list(returned)
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            got = type(trajectory).__name__
            raise TypeError(
                f"{type(workflow).__name__}.arun_episode must return a Trajectory, several of "
                f"them, or None; got {got}."
            )
    return trajectories


async def run_episode(
    workflow: RolloutWorkflow,
    engine: Any,
    data: Any,
    *,
    permits: asyncio.Semaphore,
    on_done: Callable[[Any], None] = lambda data: None,
) -> Outcome:
    """Run one episode when `permits` allows it, then call `on_done`.

    A failed simulation is a result; any other error is raised.
    """
    try:
        async with permits:
            return trajectories_of(workflow, await workflow.arun_episode(engine, data))
    except SimulationFailed as failure:
        return failure
    finally:
        on_done(data)


def accepted(outcome: Outcome, should_accept: Accept | None) -> Outcome:
    """`outcome`, or no trajectories if `should_accept` rejects them; None accepts all."""
    if isinstance(outcome, SimulationFailed) or not outcome or should_accept is None:
        return outcome
    return outcome if should_accept(outcome) else []


async def run_episodes(
    workflow: RolloutWorkflow,
    engine: Any,
    requests: Sequence[Any],
    *,
    at_once: int | None = None,
    permits: asyncio.Semaphore | None = None,
    should_accept: Accept | None = None,
    on_done: Callable[[Any], None] = lambda request: None,
) -> RolloutResult:
    """Run all `requests` concurrently; `on_done` is called after each.

    Any error but SimulationFailed ends the batch: the other episodes are cancelled, and the error
    is raised.

    Args:
        workflow: Runs an episode.
        engine: Passed to the workflow.
        requests: Passed to `arun_episode` as data, one per episode.
        at_once: Episodes that may run at the same time; None: limited by the workflow's pool.
        permits: Bounds episodes over several calls, instead of `at_once`.
        should_accept: Decides by an episode's trajectories; None accepts all.
        on_done: Called with each request when its episode is over.
    """
    permits = permits or asyncio.Semaphore(at_once or len(requests) or 1)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    run_episode(workflow, engine, request, permits=permits, on_done=on_done)
                )
                for request in requests
            ]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    result = RolloutResult()
    for request, task in zip(requests, tasks, strict=True):
        result.add(request, accepted(task.result(), should_accept))
    return result
