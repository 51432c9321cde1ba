"""Runs many episodes at once and sorts their results by request, never by who came first.

A step trains on a fixed list of episodes: taking whichever finish first would favour short ones. An
episode that could not be simulated is reported as failed, beside the finished ones; it is never
scored. One that its workflow rejects is reported, too. Left out: episodes that go on while the next
ones are asked for (`siirl.engine.rollout.inference_engine`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDict

from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.engine.rollout.workflow import RolloutWorkflow, Trajectory
from siirl.errors import SimulationFailed

Outcome = list[Trajectory] | SimulationFailed
"""What came of an episode: its trajectories (none where it was rejected), or why it could not be
simulated.
"""


@dataclass(frozen=True)
class RolloutResult:
    """What became of a list of requests."""

    trajectories: list[Trajectory] = field(default_factory=list)
    """Of the finished episodes, in the order of the requests; several of one episode stand
    together.
    """
    failed: list[tuple[Any, SimulationFailed]] = field(default_factory=list)
    """Episodes that could not be simulated, with the reason."""
    rejected: list[Any] = field(default_factory=list)
    """Episodes for which the workflow, or whoever asked, had no use."""
    broken_off: int = 0
    """Number of the signal that broke the episodes off (siirl.interrupts): nothing else is known
    then. 0: none.
    """

    def batch(self) -> TensorDict:
        """The finished episodes' rows as a batch, padded; for training."""
        return Samples2Dict([Sample(trajectory.row) for trajectory in self.trajectories])

    def add(self, data: Any, outcome: Outcome) -> None:
        """Sort in what came of the episode that `data` asked for."""
        if isinstance(outcome, SimulationFailed):
            self.failed.append((data, outcome))
        elif outcome:
            self.trajectories.extend(outcome)
        else:
            self.rejected.append(data)


async def run_episode(workflow: RolloutWorkflow, engine: Any, data: Any) -> Outcome:
    """Run one episode; a simulation that failed is a result, any other error is raised.

    Raises:
        TypeError: The workflow returned something else than trajectories or None.
    """
    try:
        found = await workflow.arun_episode(engine, data)
    except SimulationFailed as failure:
        return failure
    trajectories = (
        [] if found is None else [found] if isinstance(found, Trajectory) else list(found)
    )
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            got = type(trajectory).__name__
            raise TypeError(
                f"{type(workflow).__name__}.arun_episode must return a Trajectory, several of them, or None; got {got}."
            )
    return trajectories


async def rollout_batch(
    workflow: RolloutWorkflow,
    engine: Any,
    requests: Sequence[Any],
    *,
    at_once: int | None = None,
    on_done: Callable[[Any], None] = lambda request: None,
) -> RolloutResult:
    """Run all `requests` concurrently; `on_done` is called after each.

    Args:
        workflow: How an episode runs.
        engine: Handed to the workflow.
        requests: What `arun_episode` gets as data, one an episode.
        at_once: Episodes that may run at the same time; None: as many as the workflow's own pool
            has slots.
        on_done: Called with each request when its episode is over.

    Any error but SimulationFailed ends the batch: the other episodes are cancelled, and the error
    is raised.
    """
    permits = asyncio.Semaphore(at_once or len(requests) or 1)

    async def run(request: Any) -> Outcome:
        try:
            async with permits:
                return await run_episode(workflow, engine, request)
        finally:
            on_done(request)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(request)) for request in requests]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    result = RolloutResult()
    for request, task in zip(requests, tasks, strict=True):
        result.add(request, task.result())
    return result
