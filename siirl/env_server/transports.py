"""Where a server runs: in this process (`LocalTransport`) or, through `siirl.env_server.ray_transport`, as a
Ray actor.

A host passes requests on and can be killed; nothing else. It is looked up by the name of the
cluster, so that Ray is imported only where it is used.
"""

import asyncio
import pkgutil
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from siirl.env_server.server import Answers, EnvServer, Raised, Request
from siirl.errors import UnknownNameError

TRANSPORTS: dict[str, str] = {
    "local": "siirl.env_server.transports:LocalTransport",
    "ray": "siirl.env_server.ray_transport:RayTransport",
}
"""Cluster mode to the class of its hosts."""


class Transport(Protocol):
    """One server. The futures carry an exception only if the server itself is lost; what
    environments raise is in the answer.
    """

    def __init__(self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None: ...

    def open(self) -> "asyncio.Future[Raised | None]":
        """Make the environments; the first call."""

    def send(self, requests: Sequence[Request]) -> "asyncio.Future[Answers]":
        """Carry out requests; calls are worked on in the order of sending."""

    def shut(self) -> "asyncio.Future[None]":
        """Close the environments; the last call before `kill`."""

    def kill(self) -> None:
        """End the server with force, whatever it is doing."""


def transport_class(cluster: str) -> type[Transport]:
    """The class of hosts for a cluster mode."""
    if cluster not in TRANSPORTS:
        raise UnknownNameError.of(kind="cluster mode", name=cluster, known=TRANSPORTS)
    found: type[Transport] = pkgutil.resolve_name(TRANSPORTS[cluster])
    return found


class LocalTransport:
    """A server in this process, awaited directly: breakpoints in an environment work.

    An environment that hangs without awaiting hangs this process: only other processes can be given
    a deadline.
    """

    def __init__(self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None:
        self._server = EnvServer(env_name=env_name, env_kwargs=env_kwargs, num_envs=num_envs)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shut = False

    def open(self) -> "asyncio.Future[Raised | None]":
        """See `Transport.open`."""
        return self._run(self._server.open())

    def send(self, requests: Sequence[Request]) -> "asyncio.Future[Answers]":
        """See `Transport.send`."""
        return self._run(self._server.handle(requests))

    def shut(self) -> "asyncio.Future[None]":
        """See `Transport.shut`."""
        self._shut = True
        return self._run(self._server.close())

    def kill(self) -> None:
        """Cancel what is running, and close the environments in the background."""
        for task in self._tasks:
            task.cancel()
        if not self._shut:
            self.shut()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
