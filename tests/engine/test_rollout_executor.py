"""Many episodes at once: order, failures, cancellation; and episodes that continue
while the next are requested.
"""

import asyncio
import contextlib
import gc
import itertools
import traceback

import pytest
from scripted_text import ScriptedEngine

from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.errors import ConfigError, SimulationFailed


def request(number: int) -> EpisodeRequest:
    return EpisodeRequest(
        uid=str(number),
        group_id=0,
        task="t",
        task_id=0,
        trial_id=0,
        seed=number,
        policy_seed=(number,),
    )


class Sleepy(RolloutWorkflow):
    """Takes more turns of the event loop for earlier requests, independent of time; some fail."""

    def __init__(self, *, failing=(), breaking=()):
        self.failing, self.breaking, self.cancelled = failing, breaking, []

    async def arun_episode(self, engine, data):
        try:
            for _ in range(10 * (3 - data.seed)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(data.uid)
            raise
        if data.seed in self.failing:
            raise SimulationFailed("the server died three times")
        if data.seed in self.breaking:
            try:
                raise KeyError("its cause")
            except KeyError:
                raise ValueError("a bug")  # noqa: B904 - a user's code
        return Trajectory(row={"uid": data.uid})


def test_trajectories_come_in_the_order_of_the_requests_and_not_of_arrival(inference):
    result = inference.rollout_batch([request(i) for i in range(3)], Sleepy())
    assert [trajectory.row["uid"] for trajectory in result.trajectories] == ["0", "1", "2"]


def test_a_failed_simulation_is_reported_beside_the_others(inference):
    result = inference.rollout_batch([request(i) for i in range(3)], Sleepy(failing=[1]))
    assert [trajectory.row["uid"] for trajectory in result.trajectories] == ["0", "2"]
    assert [(failed.uid, str(reason)) for failed, reason in result.failed] == [
        ("1", "the server died three times")
    ]


def test_any_other_error_ends_the_batch_and_cancels_the_rest(inference):
    workflow = Sleepy(breaking=[2])
    with pytest.raises(ValueError, match="a bug") as caught:
        inference.rollout_batch([request(i) for i in range(3)], workflow)
    assert sorted(workflow.cancelled) == ["0", "1"]
    # a printed trace has the mistake once, not once for every episode
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("ValueError: a bug") == printed.count("KeyError: 'its cause'") == 1
    assert "ExceptionGroup" not in printed


def test_each_episode_is_counted_when_it_is_done(inference):
    done = []
    inference.rollout_batch(
        [request(i) for i in range(3)],
        Sleepy(failing=[0]),
        on_done=lambda request: done.append(request.uid),
    )
    assert done == ["2", "1", "0"]


class Answering(RolloutWorkflow):
    """An episode is `(number, turns)`: it takes so many turns of the loop, and returns `copies`
    trajectories with the engine's version.
    """

    def __init__(self, *, copies=1, rejected=(), failing=(), breaking=()):
        self.copies, self.rejected, self.failing, self.breaking = (
            copies,
            rejected,
            failing,
            breaking,
        )
        self.running, self.most_running, self.cancelled = 0, 0, 0

    async def arun_episode(self, engine, data):
        number, turns = data
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(turns):
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.running -= 1
        if number in self.failing:
            raise SimulationFailed("the server died three times")
        if number in self.breaking:
            raise ValueError("a bug")
        if number in self.rejected:
            return None
        return [
            Trajectory(row={"number": number, "version": engine.policy_version})
            for _ in range(self.copies)
        ]


@pytest.fixture
def inference():
    engine = InferenceEngine(ScriptedEngine(lambda request: ""), at_once=3).initialize()
    yield engine
    engine.destroy()


def numbers(result):
    return [trajectory.row["number"] for trajectory in result.trajectories]


def test_wait_gives_the_oldest_episodes_although_later_ones_are_over(inference):
    workflow = Answering()
    for data in [(0, 9), (1, 1), (2, 5), (3, 1)]:
        inference.submit(data, workflow)
    assert numbers(inference.wait(2)) == [0, 1]
    assert numbers(inference.wait(2)) == [2, 3]


def test_no_more_episodes_run_at_once_than_allowed_and_each_is_counted(inference):
    workflow = Answering()
    inference.rollout_batch([(i, 2) for i in range(7)], workflow)
    assert workflow.most_running == 3
    assert (inference.engine.announced, inference.engine.ended) == (7, 7)


def test_a_wait_that_times_out_keeps_finished_episodes(inference):
    workflow = Answering()
    for data in [(0, 0), (1, 100_000), (2, 1)]:
        inference.submit(data, workflow)
    with pytest.raises(TimeoutError, match="2 submitted episodes continue"):
        # the first ends in the loop's first rounds, the second takes a minute and a half
        inference.wait(2, timeout=2.0)
    assert numbers(inference.wait(1)) == [0]


def test_waiting_for_more_than_was_submitted_is_refused_and_keeps_finished_episodes(inference):
    inference.submit((0, 1), Answering())
    with pytest.raises(RuntimeError, match="submit as many as you need"):
        inference.wait(2)
    assert numbers(inference.wait(1)) == [0]


def test_rejected_and_failed_episodes_do_not_count_but_are_reported(inference):
    workflow = Answering(rejected=[0], failing=[1])
    for i in range(5):
        inference.submit((i, 1), workflow)
    result = inference.wait(
        1, should_accept=lambda trajectories: trajectories[0].row["number"] != 2
    )
    assert numbers(result) == [3]
    assert result.rejected == [(0, 1), (2, 1)]
    assert [(data, str(reason)) for data, reason in result.failed] == [
        ((1, 1), "the server died three times")
    ]


def test_an_episode_may_have_several_trajectories_and_counts_once(inference):
    result = inference.rollout_batch([(0, 1), (1, 1)], Answering(copies=2, rejected=[1]))
    assert numbers(result) == [0, 0]
    assert result.rejected == [(1, 1)]


def test_a_batch_drops_rejected_trajectories(inference):
    result = inference.rollout_batch(
        [(i, 1) for i in range(4)],
        Answering(),
        should_accept=lambda group: group[0].row["number"] % 2 == 1,
    )
    assert numbers(result) == [1, 3]
    assert result.rejected == [(0, 1), (2, 1)]


def test_workflow_that_returns_something_else_is_refused(inference):
    with pytest.raises(
        TypeError,
        match=r"Wrong\.arun_episode must return a Trajectory, several of them, or None; got int",
    ):
        inference.rollout_batch([0], Wrong())


class Wrong(RolloutWorkflow):
    """Returns something other than a trajectory."""

    async def arun_episode(self, engine, data):
        return [1]


def test_a_batch_and_submitted_episodes_share_the_number_that_runs_at_once(inference):
    workflow = Answering()
    for number in range(3):
        inference.submit((number, 9), workflow)
    inference.rollout_batch([(3, 1), (4, 1)], workflow)
    assert workflow.most_running == inference.at_once == 3


def test_error_of_a_later_episode_ends_all_at_once(inference):
    workflow = Answering(breaking=[1])
    for data in [(0, 100_000), (1, 1), (2, 100_000)]:
        inference.submit(data, workflow)
    with pytest.raises(ValueError, match="a bug"):
        inference.wait(1)
    assert workflow.cancelled == 2
    assert inference.engine.ended == 3


def test_prepared_batch_replaces_rejected_episodes(inference):
    data = ((i, 1) for i in range(100))
    result = inference.prepare_batch(data, Answering(rejected=[0, 2], failing=[3]), count=3)
    assert numbers(result) == [1, 4, 5]
    assert numbers(inference.prepare_batch(data, Answering(), count=2)) == [6, 7]


def test_episodes_ahead_continue_with_the_next_batch_under_the_new_weights(inference):
    data, workflow = iter([(0, 1), (1, 1), (2, 50), (3, 50), (4, 1), (5, 1)]), Answering()
    first = inference.prepare_batch(data, workflow, count=2, ahead=2)
    inference.update_weights(1).result()
    second = inference.prepare_batch(data, workflow, count=2, ahead=2)
    assert (numbers(first), numbers(second)) == ([0, 1], [2, 3])
    assert [trajectory.row["version"] for trajectory in second.trajectories] == [1, 1]
    assert inference.engine.interrupts == 1


def test_prepared_batch_ends_with_its_data_and_after_ten_times_as_many_tries(inference):
    assert numbers(inference.prepare_batch(iter([(0, 1)]), Answering(), count=3)) == [0]
    endless = ((i, 0) for i in itertools.count())
    result = inference.prepare_batch(
        endless, Answering(), count=2, should_accept=lambda trajectories: False
    )
    assert (result.trajectories, len(result.rejected)) == ([], 20)


def test_weights_change_without_interruption_if_no_episode_runs(inference):
    inference.update_weights(4)
    assert (inference.engine.policy_version, inference.engine.interrupts) == (4, 0)


def test_episodes_under_way_end_with_the_engine():
    inference, workflow = (
        InferenceEngine(ScriptedEngine(lambda request: ""), at_once=2).initialize(),
        Answering(),
    )
    inference.submit((0, 1), workflow)
    inference.submit((1, 100_000), workflow)
    inference.wait(1)
    inference.destroy()
    inference.destroy()
    assert workflow.cancelled == 1


def test_fewer_than_one_episode_at_once_is_refused():
    with pytest.raises(ConfigError, match="at_once=0 must be at least 1"):
        InferenceEngine(ScriptedEngine(lambda request: ""), at_once=0)


@pytest.mark.parametrize(("error", "told"), [(KeyboardInterrupt, False), (ValueError, True)])
def test_only_ctrl_c_in_an_unawaited_task_is_not_reported(error, told, caplog):
    """The command reports the interrupt itself. Otherwise asyncio reports it again, with a
    traceback, when the task is collected.
    """

    class Leaving(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            async def step():
                raise error

            asyncio.get_running_loop().create_task(step())
            await asyncio.sleep(0.05)

    with InferenceEngine(ScriptedEngine({})) as inference, contextlib.suppress(KeyboardInterrupt):
        inference.rollout_batch([request(0)], Leaving())
    gc.collect()
    assert ("Task exception was never retrieved" in caplog.text) is told
