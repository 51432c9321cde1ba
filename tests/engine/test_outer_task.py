"""Code that cancels the tasks of the run, whose event loop it shares, is named."""

import asyncio

import pytest
from scripted_text import ScriptedEngine

from siirl.engine.rollout import outer_task
from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.workflow import RolloutWorkflow
from siirl.errors import RunFailed
from siirl.interrupts import STOP


class CancelsAll(RolloutWorkflow):
    """Cancels every task of the loop, or every one but its own."""

    def __init__(self, *, its_own=True):
        self.its_own = its_own

    async def arun_episode(self, engine, data):
        await asyncio.sleep(0)
        spared = None if self.its_own else asyncio.current_task()
        [task.cancel() for task in asyncio.all_tasks() if task is not spared]
        await asyncio.sleep(0)


SAID = r"^CancelsAll\.arun_episode \(.*test_outer_task\.py, line \d+\) cancelled a task of the run"


@pytest.mark.parametrize("its_own", [True, False])
def test_who_cancels_every_task_of_a_batch_is_named(its_own):
    with (
        InferenceEngine(ScriptedEngine({})) as inference,
        pytest.raises(RunFailed, match=SAID) as said,
    ):
        inference.rollout_batch([1, 2], CancelsAll(its_own=its_own))
    assert said.value.__suppress_context__  # asyncio's traceback says nothing of it


def test_who_cancels_every_task_of_submitted_episodes_is_named():
    with InferenceEngine(ScriptedEngine({})) as inference:
        inference.submit(1, CancelsAll())
        with pytest.raises(RunFailed, match=SAID):
            inference.wait(1)


def test_a_stop_signal_is_no_ones_fault(monkeypatch):
    class Stopped(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            monkeypatch.setattr(type(STOP), "requested", True)
            await CancelsAll().arun_episode(engine, data)

    with InferenceEngine(ScriptedEngine({})) as inference:
        assert inference.rollout_batch([1], Stopped()).trajectories == []


def test_a_cancellation_by_siirl_is_raised_as_it_is():
    async def waits():
        siirls = {"task": asyncio.current_task()}
        exec(compile("task.cancel()", f"{outer_task.OWN}/somewhere.py", "exec"), siirls)
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    with pytest.raises(asyncio.CancelledError):
        outer_task.run(loop, waits())
    loop.close()


def test_a_result_and_an_error_pass():
    async def gives(value):
        return 1 / value

    loop = asyncio.new_event_loop()
    assert outer_task.run(loop, gives(2)) == 0.5
    with pytest.raises(ZeroDivisionError):
        outer_task.run(loop, gives(0))
    loop.close()
