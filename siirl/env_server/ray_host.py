"""The Ray edge of the environment servers: a server as an actor, one remote call a batch of requests.

The actor is synchronous: it works on one call at a time and Ray queues the others at it, so that the next chunk waits at the simulator
and not the simulator for the next chunk. (An asynchronous actor was measured to cost a third more processor time a call.)
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from siirl.env_server.server import Answers, EnvServer, Raised, Request
from siirl.errors import ConfigError

PASSED_ON = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID")


class EnvServerActor:
    """Runs an `EnvServer` on an event loop of its own."""

    def __init__(self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None:
        # Not asyncio.Runner: its `run` makes a repr of the result, which costs milliseconds where that holds images.
        self._loop = asyncio.new_event_loop()
        self._server = EnvServer(env_name=env_name, env_kwargs=env_kwargs, num_envs=num_envs)

    def open(self) -> Raised | None:
        """See `EnvServer.open`."""
        return self._loop.run_until_complete(self._server.open())

    def handle(self, requests: Sequence[Request]) -> Answers:
        """See `EnvServer.handle`."""
        return self._loop.run_until_complete(self._server.handle(requests))

    def close(self) -> None:
        """See `EnvServer.close`."""
        self._loop.run_until_complete(self._server.close())


class RayHost:
    """A server in a process of its own, on whichever node of the cluster has the fewest."""

    def __init__(self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None:
        if not ray.is_initialized():
            raise ConfigError("cluster='ray' needs a Ray connection: call ray.init() before EnvPool.start(), or use cluster='local'.")
        # No CPUs are reserved: on two cores the trainer and the servers together would never be scheduled. SPREAD does the sharing.
        actor_class = ray.remote(EnvServerActor).options(
            num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD", runtime_env={"env_vars": server_environment()}
        )
        self._actor: Any = actor_class.remote(env_name=env_name, env_kwargs=dict(env_kwargs), num_envs=num_envs)

    def open(self) -> "asyncio.Future[Raised | None]":
        """See `Host.open`."""
        return asyncio.wrap_future(self._actor.open.remote().future())

    def send(self, requests: Sequence[Request]) -> "asyncio.Future[Answers]":
        """See `Host.send`."""
        if not ray.is_initialized():
            raise RuntimeError("Ray was shut down while environment servers were in use: close the EnvPool first.")
        return asyncio.wrap_future(self._actor.handle.remote(requests).future())

    def shut(self) -> "asyncio.Future[None]":
        """See `Host.shut`."""
        return asyncio.wrap_future(self._actor.close.remote().future())

    def kill(self) -> None:
        """End the process, also one that holds the interpreter's lock or was stopped (Ray then takes five seconds)."""
        ray.kill(self._actor, no_restart=True)


def server_environment() -> dict[str, str]:
    """Environment variables of a server's process.

    One OpenMP thread, since servers are as many as cores; this process's choice of OpenGL; and this process's import paths outside of
    the interpreter, so that `module:Class` means the same class there as here.
    """
    outside = [os.path.abspath(path) for path in sys.path if not path.startswith((sys.prefix, sys.base_prefix))]
    chosen = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys(outside)), **chosen}
