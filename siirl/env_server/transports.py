"""Transports to a server: in this process (`LocalTransport`) or a Ray actor (`RayTransport`).

A transport only forwards requests and kills its server. It is looked up by cluster mode, so that
Ray is imported only when needed.
"""

import asyncio
import logging
import os
import pkgutil
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from envs.render_devices import choose_render_device, own_egl_devices
from siirl.env_server.server import Answered, EnvServer, RaisedError, Request
from siirl.errors import UnknownNameError

logger = logging.getLogger(__name__)

TRANSPORTS: dict[str, str] = {
    "local": "siirl.env_server.transports:LocalTransport",
    "ray": "siirl.env_server.ray_transport:RayTransport",
}
"""Transport class of each cluster mode, as `module:name`."""


class Transport(Protocol):
    """Starts, calls and kills one server; `number` counts the servers of a pool.

    The futures raise only if the server is lost; exceptions of environments are in the answers.
    """

    def __init__(
        self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int, number: int
    ) -> None: ...

    def open(self) -> "asyncio.Future[RaisedError | None]":
        """Make the environments; must be the first call."""

    def send(self, requests: Sequence[Request], answered: Answered) -> "asyncio.Future[None]":
        """Execute requests; `answered` gets each answer when it is ready, the future completes at
        the end.

        The server begins calls in the order of sending; those that await overlap.
        """

    def shut(self) -> "asyncio.Future[None]":
        """Close the environments; must be the last call before `kill`."""

    def kill(self) -> "asyncio.Future[Any]":
        """End the server by force; the future completes when nothing of it is left in this
        process.
        """


def transport_class(cluster: str) -> type[Transport]:
    """The transport class of a cluster mode."""
    if cluster not in TRANSPORTS:
        raise UnknownNameError.of(kind="cluster mode", name=cluster, known=TRANSPORTS)
    found: type[Transport] = pkgutil.resolve_name(TRANSPORTS[cluster])
    return found


class LocalTransport:
    """A server in this process, awaited directly, so that breakpoints in an environment work.

    An environment that hangs without awaiting hangs this process: deadlines need another process.
    """

    def __init__(
        self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int, number: int = 0
    ) -> None:
        gpus = own_egl_devices()
        choose_render_device(number=number, gpus=gpus, machine=os.uname().nodename)
        self._server = EnvServer(env_name=env_name, env_kwargs=env_kwargs, num_envs=num_envs)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shut = False
        self._env_name = env_kwargs.get("id", env_name)  # of a collection, such as env=gymnasium
        self._folder, self._identity = os.getcwd(), os.stat(".")
        self._told_folder = False

    def open(self) -> "asyncio.Future[RaisedError | None]":
        """See `Transport.open`."""
        return self._run(self._server.open())

    def send(self, requests: Sequence[Request], answered: Answered) -> "asyncio.Future[None]":
        """See `Transport.send`."""
        return self._run(self._server.handle(requests, answered))

    def shut(self) -> "asyncio.Future[None]":
        """See `Transport.shut`."""
        self._shut = True
        return self._run(self._server.close())

    def kill(self) -> "asyncio.Future[Any]":
        """Cancel running requests and close the environments in the background."""
        for task in self._tasks:
            task.cancel()
        if not self._shut:
            self.shut()
        return asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(self._and_go_back(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: coroutine.close())  # if it was cancelled before its start
        return task

    async def _and_go_back(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await `coroutine`, and undo any change of the working directory."""
        try:
            return await coroutine
        finally:
            if not os.path.samestat(os.stat("."), self._identity):
                os.chdir(self._folder)
                if not self._told_folder:
                    logger.warning(
                        "Environment %r changed the working directory; it was reset to %s, because "
                        "with cluster=local the run writes its files relative to it.",
                        self._env_name,
                        self._folder,
                    )
                self._told_folder = True
