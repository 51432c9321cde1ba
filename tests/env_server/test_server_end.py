"""The end of a server: every environment is closed, whatever one of them does."""

import asyncio
import gc
import socket
import sys
import warnings
from typing import ClassVar

import pytest
from ray._raylet import raise_sys_exit_with_custom_error_message

from siirl.env_server.server import EnvServer, RaisedError, Request
from tests.env_server.probe_envs import WalkEnv


class EndedWhileClosing(WalkEnv):
    """Its `close` meets the end of the process, as after Ctrl-C."""

    async def close(self) -> None:
        raise KeyboardInterrupt


def test_environments_that_were_not_reached_leave_no_warning():
    loop = asyncio.new_event_loop()
    server = EnvServer(env_name=f"{__name__}:EndedWhileClosing", env_kwargs={}, num_envs=3)
    assert loop.run_until_complete(server.open()) is None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
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


class Exiting(WalkEnv):
    """Calls `sys.exit` in the method that `where` names."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self._exit_in("constructor")

    def _exit_in(self, method: str) -> None:
        if self.where == method:
            sys.exit(0)

    async def reset(self, **arguments):
        self._exit_in("reset")
        return await super().reset(**arguments)

    async def step(self, action):
        self._exit_in("step")
        return await super().step(action)

    async def close(self) -> None:
        self._exit_in("close")


def faults_of_a_life(where: str) -> list[str]:
    """Faults that an `Exiting` reports while it is made, reset, stepped and closed."""
    faults: list[str] = []

    def answered(positions, answers) -> None:
        faults.extend(value.summary for value in answers.values if isinstance(value, RaisedError))

    async def life() -> None:
        server = EnvServer(env_name=f"{__name__}:Exiting", env_kwargs={"where": where}, num_envs=1)
        raised = await server.open()
        if raised is not None:
            faults.append(raised.summary)
            return
        await server.handle([Request(0, "reset", (0, {}))], answered)
        await server.handle([Request(0, "step_chunk", ([[0.0]],))], answered)
        await server.close()

    asyncio.run(life())
    return faults


@pytest.mark.parametrize("where", ["constructor", "reset", "step"])
def test_sys_exit_of_an_environment_is_its_fault_and_ends_nothing(where):
    assert faults_of_a_life(where)[0] == (
        "RuntimeError: the environment called sys.exit(0): raise an error that gives the reason "
        "instead"
    )


def test_sys_exit_in_close_is_ignored_as_any_error_there():
    assert faults_of_a_life("close") == []


class Terminated(WalkEnv):
    """Meets the SystemExit of Ray's handler of SIGTERM."""

    async def close(self) -> None:
        raise_sys_exit_with_custom_error_message("The process receives a SIGTERM.", exit_code=1)


def test_the_exit_that_ray_raises_at_sigterm_ends_the_server():
    async def life() -> None:
        server = EnvServer(env_name=f"{__name__}:Terminated", env_kwargs={}, num_envs=1)
        assert await server.open() is None
        await server.close()

    with pytest.raises(SystemExit):
        asyncio.run(life())


class OwnPort(WalkEnv):
    """It listens at a port of its own, by default the one that the first of them got."""

    taken: ClassVar[list[socket.socket]] = []

    def __init__(self) -> None:
        super().__init__()
        port = self.taken[0].getsockname()[1] if self.taken else 0
        self.taken.append(socket.create_server(("127.0.0.1", port)))


class WrappedOwnPort(WalkEnv):
    """The same, where a library raises an error of its own for the system's."""

    def __init__(self) -> None:
        super().__init__()
        try:
            OwnPort()
        except OSError as error:
            raise RuntimeError("the simulator did not start") from error


@pytest.mark.parametrize("name", ["OwnPort", "WrappedOwnPort"])
def test_a_second_environment_that_binds_the_port_of_the_first_is_told_to_bind_port_0(name):
    server = EnvServer(env_name=f"{__name__}:{name}", env_kwargs={}, num_envs=2)
    try:
        raised = asyncio.run(server.open())
    finally:
        while OwnPort.taken:
            OwnPort.taken.pop().close()
    assert raised.summary.endswith(
        ". Environments run side by side and cannot share a port: bind port 0, for which the "
        "system chooses a free one"
    )
