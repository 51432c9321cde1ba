"""Many episodes at once: order, failures, cancellation."""

import asyncio

import pytest

from siirl.engine.rollout.executor import rollout_batch
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.errors import SimulationFailed


def request(number: int) -> EpisodeRequest:
    return EpisodeRequest(uid=str(number), group_id=0, task="t", task_id=0, trial_id=0, seed=number, policy_seed=(number,))


class Sleepy(RolloutWorkflow):
    """Takes longer for earlier requests; some fail."""

    def __init__(self, *, failing=(), breaking=()):
        self.failing, self.breaking, self.cancelled = failing, breaking, []

    async def arun_episode(self, engine, data):
        try:
            await asyncio.sleep(0.02 * (3 - data.seed))
        except asyncio.CancelledError:
            self.cancelled.append(data.uid)
            raise
        if data.seed in self.failing:
            raise SimulationFailed("the server died three times")
        if data.seed in self.breaking:
            raise ValueError("a bug")
        return Trajectory(row={"uid": data.uid})


def test_trajectories_come_in_the_order_of_the_requests_and_not_of_arrival():
    result = asyncio.run(rollout_batch(Sleepy(), None, [request(i) for i in range(3)]))
    assert [trajectory.row["uid"] for trajectory in result.trajectories] == ["0", "1", "2"]


def test_a_failed_simulation_is_reported_beside_the_others():
    result = asyncio.run(rollout_batch(Sleepy(failing=[1]), None, [request(i) for i in range(3)]))
    assert [trajectory.row["uid"] for trajectory in result.trajectories] == ["0", "2"]
    assert [(failed.uid, str(reason)) for failed, reason in result.failed] == [("1", "the server died three times")]


def test_any_other_error_ends_the_batch_and_cancels_the_rest():
    workflow = Sleepy(breaking=[2])
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(rollout_batch(workflow, None, [request(i) for i in range(3)]))
    assert sorted(workflow.cancelled) == ["0", "1"]


def test_each_episode_is_counted_when_it_is_done():
    done = []
    asyncio.run(rollout_batch(Sleepy(failing=[0]), None, [request(i) for i in range(3)], on_done=lambda request: done.append(request.uid)))
    assert done == ["2", "1", "0"]
