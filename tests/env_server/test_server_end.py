"""A server whose process is ended while it closes its environments."""

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
