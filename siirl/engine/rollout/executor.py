"""Runs many episodes at once and sorts their results by request, never by who came first.

A step trains on a fixed list of episodes: taking whichever finish first would favour short ones. An episode that could not be
simulated is reported as failed, beside the finished ones; it is never scored.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from siirl.engine.rollout.workflow import EmbodiedWorkflow, EpisodeRequest, Trajectory
from siirl.errors import SimulationFailed


@dataclass(frozen=True)
class RolloutResult:
    """What became of a list of requests."""

    trajectories: list[Trajectory]
    """Of the finished episodes, in the order of the requests."""
    failed: list[tuple[EpisodeRequest, SimulationFailed]]
    """Episodes that could not be simulated, with the reason."""


async def rollout_batch(
    workflow: EmbodiedWorkflow,
    engine: Any,
    requests: Sequence[EpisodeRequest],
    *,
    on_done: Callable[[EpisodeRequest], None] = lambda request: None,
) -> RolloutResult:
    """Run all `requests` concurrently, as many at a time as the workflow's pool has slots; `on_done` is called after each.

    Any error but SimulationFailed ends the batch: the other episodes are cancelled, and the error is raised.
    """

    async def run(request: EpisodeRequest) -> Trajectory | SimulationFailed:
        try:
            return await workflow.arun_episode(engine, request)
        except SimulationFailed as failure:
            return failure
        finally:
            on_done(request)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(request)) for request in requests]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    results = [task.result() for task in tasks]
    return RolloutResult(
        trajectories=[result for result in results if not isinstance(result, SimulationFailed)],
        failed=[(request, result) for request, result in zip(requests, results, strict=True) if isinstance(result, SimulationFailed)],
    )
