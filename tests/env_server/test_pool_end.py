"""The end of a pool while its servers start or end: none is started, none is left."""

import asyncio
import gc

import numpy as np
import pytest
from probe_envs import FaultyEnv, WalkEnv
from virtual_time import run_in_virtual_time

from siirl.env_server import transports
from siirl.env_server.pool import EnvPool
from siirl.env_server.server_supervisor import ServerSupervisor
from siirl.env_server.transports import LocalTransport
from siirl.errors import SimulationFailed


class NeverReady:
    """A server whose start ends only when it is killed."""

    def __init__(self):
        self._opening = asyncio.get_running_loop().create_future()

    def open(self):
        return self._opening

    def kill(self):
        self._opening.cancel()
        return asyncio.gather(self._opening, return_exceptions=True)


def test_a_pool_that_is_closed_while_episodes_wait_for_a_server_starts_no_further_server():
    made = []

    def make_transport():
        made.append(NeverReady())
        return made[-1]

    async def life():
        supervisor = ServerSupervisor(
            name="1 of 1",
            make_transport=make_transport,
            num_envs=3,
            deadline_s=60.0,
            start_deadline_s=180.0,
        )
        episodes = [asyncio.ensure_future(supervisor.start()) for _ in range(3)]
        await asyncio.sleep(0)
        begin = asyncio.get_running_loop().time()
        await supervisor.close()
        seconds = asyncio.get_running_loop().time() - begin
        return seconds, await asyncio.gather(*episodes, return_exceptions=True)

    seconds, errors = run_in_virtual_time(life())
    assert (len(made), seconds) == (1, 0.0)
    assert [str(error) for error in errors] == ["The pool is closed."] * 3


CLOSES = []


class RecordingEnv(WalkEnv):
    """Records that it is closed."""

    async def close(self):
        CLOSES.append("closed")


class EndlessClosing(WalkEnv):
    """Its `close` ends only when it is cancelled."""

    async def close(self):
        CLOSES.append("begins")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            CLOSES.append("ends")


def test_a_pool_whose_close_is_cancelled_kills_its_servers():
    CLOSES.clear()

    async def life():
        pool = EnvPool(f"{__name__}:EndlessClosing", {}, cluster="local")
        await pool.start()
        closing = asyncio.ensure_future(pool.close())
        while not CLOSES:
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        for _ in range(10):  # a cancelled task ends in one of the loop's next iterations
            await asyncio.sleep(0)
        return list(CLOSES)

    assert asyncio.run(life()) == ["begins", "ends"]


class SlowClosing(FaultyEnv):
    """Closing it takes a second."""

    async def close(self):
        await asyncio.sleep(1.0)
        CLOSES.append("closed")


def test_a_pool_that_closes_after_a_fault_waits_for_the_environments_of_the_killed_server(tmp_path):
    CLOSES.clear()

    async def life():
        pool = EnvPool(
            f"{__name__}:SlowClosing",
            {"fault": "hang_awaiting", "ledger": str(tmp_path), "at_step": 1},
            cluster="local",
            max_replays=0,
        )
        async with pool, pool.slot() as slot:
            await slot.reset(seed=1)
            with pytest.raises(SimulationFailed, match="hung"):
                await slot.step_chunk(np.zeros((1, 1), np.float32))
        return list(CLOSES)

    assert run_in_virtual_time(life()) == ["closed"]


class OneReady(LocalTransport):
    """Only server number 0 gets ready."""

    def __init__(self, *, number, **settings):
        super().__init__(number=number, **settings)
        self._number = number

    def open(self):
        if self._number == 0:
            return super().open()
        return asyncio.get_running_loop().create_future()


def test_a_loop_that_cancels_all_tasks_leaves_no_server_of_a_pool_that_starts(monkeypatch):
    CLOSES.clear()
    monkeypatch.setitem(transports.TRANSPORTS, "one ready", f"{__name__}:OneReady")

    async def life():
        pool = EnvPool(f"{__name__}:RecordingEnv", {}, 2, cluster="one ready")
        starting = asyncio.ensure_future(pool.start())
        for _ in range(10):  # until server 0 is ready, and server 1 starts
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task(), starting}
        for task in (*tasks, starting):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(life())
    assert CLOSES == ["closed"]


@pytest.mark.filterwarnings("always:coroutine")
def test_a_request_that_is_cancelled_before_its_start_is_no_forgotten_coroutine(recwarn):
    async def life():
        transport = LocalTransport(env_name=f"{__name__}:RecordingEnv", env_kwargs={}, num_envs=1)
        await transport.open()
        transport.send([], lambda positions, answers: None)
        await transport.kill()

    asyncio.run(life())
    gc.collect()
    messages = [str(warning.message) for warning in recwarn]
    assert [message for message in messages if "coroutine" in message] == []
