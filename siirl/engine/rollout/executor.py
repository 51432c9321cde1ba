"""Runs many episodes at once and returns their results in the order of the requests.

A step trains on a fixed list of episodes: taking those that finish first would favour short ones.
Episodes that could not be simulated are reported as failed and never scored. Episodes that the
workflow rejects are reported as rejected. Left out: episodes that continue while the next ones are
requested (`siirl.engine.rollout.inference_engine`).
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
"""Result of an episode: its trajectories (none if rejected), or why its simulation failed."""
Accept = Callable[[Sequence[Trajectory]], bool]
"""Decides from the trajectories of one episode whether to accept it."""


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
        """Rows of the finished episodes as a padded batch for training."""
        return Samples2Dict([Sample(trajectory.row) for trajectory in self.trajectories])

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


async def run_episode(workflow: RolloutWorkflow, engine: Any, data: Any) -> Outcome:
    """Run one episode; a failed simulation is a result, any other error is raised."""
    try:
        return trajectories_of(workflow, await workflow.arun_episode(engine, data))
    except SimulationFailed as failure:
        return failure


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

    async def run(request: Any) -> Outcome:
        try:
            async with permits:
                return accepted(await run_episode(workflow, engine, request), should_accept)
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
