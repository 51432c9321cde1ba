"""The end of a server: every environment is closed, whatever one of them does."""

import asyncio
import gc
import warnings

import pytest

from siirl.env_server.server import EnvServer
from tests.env_server.probe_envs import WalkEnv


class EndedWhileClosing(WalkEnv):
    """Its `close` meets the end of the process, as after SIGTERM."""

    async def close(self) -> None:
        raise SystemExit


def test_environments_that_were_not_reached_leave_no_warning():
    loop = asyncio.new_event_loop()
    server = EnvServer(env_name=f"{__name__}:EndedWhileClosing", env_kwargs={}, num_envs=3)
    assert loop.run_until_complete(server.open()) is None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            loop.run_until_complete(server.close())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()
        del server, loop, task
        gc.collect()
    assert [
        str(warning.message) for warning in told if "never awaited" in str(warning.message)
    ] == []


CLOSED = []


class ClosedInAnotherWay(WalkEnv):
    """Its `close` is no coroutine function: it raises at once, or returns a future."""

    def close(self):
        CLOSED.append(self)
        if len(CLOSED) == 1:
            raise OSError("the connection is gone")
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future


def test_a_close_that_raises_at_once_or_returns_a_future_leaves_no_environment_open():
    CLOSED.clear()

    async def life():
        server = EnvServer(env_name=f"{__name__}:ClosedInAnotherWay", env_kwargs={}, num_envs=3)
        assert await server.open() is None
        await server.close()

    asyncio.run(life())
    assert len(CLOSED) == 3
