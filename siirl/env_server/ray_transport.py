"""Transport to environment servers in Ray actors: Ray places, starts, watches and kills their
processes; requests and answers bypass Ray.

An actor call costs the two processes more than a millisecond together, compared to six for a
simulator's chunk of actions: an empty chunk took 1.4 ms of processor time through Ray and takes 0.4
ms over the direct connection. So a server is an actor with one long call, `serve`, which takes
requests from the connection (`siirl.env_server.connection`) and answers them one at a time, in
order. Further requests queue in the connection, so that the simulator never waits for the next
chunk. Ray reports a process that died, for example of memory exhaustion, as the result of `serve`.

The secret of a connection is an argument of the actor. A process that can read those arguments can
already run code in the cluster.

For administrators: until its pool has connected, a server listens at its node's address in Ray and
a free port that the system chooses (net.ipv4.ip_local_port_range). Ray's workers use ports from
--min-worker-port to --max-worker-port, by default of `ray start` 10002 to 19999. If only those are
open between nodes, the system's ports must be opened too; torch.distributed needs them as well.
RAY_USE_TLS encrypts Ray's traffic, but not this connection.
"""

import asyncio
import os
import pickle
import secrets
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import ActorHandleNotFoundError
from ray.util import get_node_ip_address

from envs.render_devices import choose_render_device, gpu_uuids, rank_gpus
from siirl import stacks
from siirl.env_server import connection
from siirl.env_server.connection import Address, ClientEnd
from siirl.env_server.server import Answers, EnvServer, Raised, Request
from siirl.errors import ConfigError

PASSED_ON = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID")
RAY_WAS_SHUT_DOWN = (
    "Ray was shut down while environment servers were in use: close the EnvPool first."
)
# Ray detects the end of a process within a second; that of a node after half a minute, which is too
# long to wait
REASON_S = 5.0

# Exceptions of pickling and unpickling: those that `pickle` documents, and those of methods of a
# user's class.
UNPICKLABLE = (
    *(pickle.PickleError, AttributeError, EOFError, ImportError, LookupError),
    *(ArithmeticError, NameError, RuntimeError, TypeError, ValueError),
)


class EnvServerActor:
    """Runs an `EnvServer` on its own event loop, which stops while the server is idle."""

    def __init__(
        self,
        *,
        env_name: str,
        env_kwargs: Mapping[str, Any],
        num_envs: int,
        secret: bytes,
        draws_on: Mapping[str, Any],
    ) -> None:
        choose_render_device(**draws_on)
        # Not asyncio.Runner: its `run` makes a repr of the result, which costs milliseconds for
        # images.
        self._loop = asyncio.new_event_loop()
        self._server = EnvServer(env_name=env_name, env_kwargs=env_kwargs, num_envs=num_envs)
        self._secret = secret
        stacks.register("environment_server")

    def open(self) -> Raised | Address:
        """Make the environments (see `EnvServer.open`); returns the address of `serve`."""
        raised = self._loop.run_until_complete(self._server.open())
        if raised is not None:
            return raised
        self._listener = connection.listen(get_node_ip_address())
        host, port, *_ = self._listener.getsockname()
        return host, port

    def serve(self) -> None:
        """Answer requests until the pool ends the stream or disconnects; close the environments."""
        with self._loop.run_until_complete(
            connection.accept(self._listener, secret=self._secret)
        ) as pool:
            for message in pool.messages():
                pool.send(
                    _message_of(
                        self._loop.run_until_complete(self._server.handle(pickle.loads(message)))
                    )
                )
            self._loop.run_until_complete(self._server.close())


class RayTransport:
    """A server in a separate process, on the node of the cluster with the fewest servers."""

    def __init__(
        self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int, number: int = 0
    ) -> None:
        if not ray.is_initialized():
            raise ConfigError(
                "cluster='ray' needs a Ray connection: call ray.init() before EnvPool.start(), or "
                "use cluster='local'."
            )
        self._secret = secrets.token_bytes(connection.SECRET_BYTES)
        # No CPUs are reserved: on two cores the trainer and the servers together would never be
        # scheduled. SPREAD distributes the servers.
        actor_class = ray.remote(EnvServerActor).options(
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": server_environment()},
        )
        self._actor: Any = actor_class.remote(
            env_name=env_name,
            env_kwargs=dict(env_kwargs),
            num_envs=num_envs,
            secret=self._secret,
            draws_on={
                "number": number,
                "gpus": rank_gpus(os.environ, gpu_uuids()),
                "machine": os.uname().nodename,
            },
        )
        self._connection = ClientEnd(on_message=self._hand_out, on_lost=self._on_lost)
        # answers arrive in the order of the requests
        self._waiting: deque[asyncio.Future[Answers]] = deque()
        self._background: list[asyncio.Future[Any]] = []
        self._lost: Exception | None = None  # why sending is no longer possible

    def open(self) -> "asyncio.Future[Raised | None]":
        """See `Transport.open`."""
        loop = asyncio.get_running_loop()
        self._disconnected: asyncio.Future[None] = loop.create_future()
        opening = loop.create_task(self._open())
        self._background.append(opening)
        return opening

    def send(self, requests: Sequence[Request]) -> "asyncio.Future[Answers]":
        """See `Transport.send`.

        Raises:
            TypeError: The requests cannot be pickled.
            RuntimeError: Ray was shut down.
        """
        if not ray.is_initialized():
            raise RuntimeError(RAY_WAS_SHUT_DOWN)
        try:
            message = _pickled(requests)
        except UNPICKLABLE as error:
            raise TypeError(f"A request to an environment cannot be pickled: {error}") from error
        reply: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            reply.set_exception(self._lost)
            return reply
        self._waiting.append(reply)
        self._connection.send(message)
        return reply

    def shut(self) -> "asyncio.Future[None]":
        """See `Transport.shut`: the server closes its end when the environments are closed."""
        self._lost = self._lost or ConnectionError("it was closed")
        self._connection.finish()
        return self._disconnected

    def kill(self) -> None:
        """End the process, even if it holds the GIL or is stopped (then Ray takes 5 s)."""
        self._lost = self._lost or ConnectionError("it was killed")
        for future in (*self._background, *self._waiting):
            future.cancel()
        self._connection.abort()
        # Without Ray its processes have ended, and ray.kill would start another Ray.
        if ray.is_initialized():
            with suppress(ActorHandleNotFoundError):  # the actor belongs to an earlier Ray
                ray.kill(self._actor, no_restart=True)

    async def _open(self) -> Raised | None:
        opened: Raised | Address = await asyncio.wrap_future(self._actor.open.remote().future())
        if isinstance(opened, Raised):
            return opened
        self._serving = asyncio.wrap_future(self._actor.serve.remote().future())
        self._background.append(self._serving)
        try:
            await self._connection.connect(opened, secret=self._secret)
        except OSError as error:
            host, port = opened
            text = (
                f"its process waits at {host}, port {port}, and cannot be reached there ({error}): "
                "is that port open between the nodes?"
            )
            raise await self._reason(ConnectionError(text)) from error
        self._serving.add_done_callback(lambda _: self._connection.abort())
        return None

    def _hand_out(self, message: memoryview) -> None:
        reply = self._waiting.popleft()
        if reply.done():  # cancelled
            return
        try:
            reply.set_result(pickle.loads(message))
        except UNPICKLABLE as error:
            unreadable = ConnectionError(
                f"its answer cannot be unpickled here: {type(error).__name__}: {error}"
            )
            reply.set_exception(unreadable)
            self._connection.abort(unreadable)

    def _on_lost(self, error: ConnectionError) -> None:
        self._disconnected.set_result(None)
        if self._lost is None:
            self._background.append(
                asyncio.get_running_loop().create_task(self._fail_waiting(error))
            )

    async def _fail_waiting(self, error: ConnectionError) -> None:
        """Fail all waiting requests with the reason of the loss."""
        self._lost = await self._reason(error)
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(self._lost)
        self._waiting.clear()

    async def _reason(self, error: ConnectionError) -> Exception:
        """Ray's reason for the end of the process, if reported in time; otherwise `error`."""
        if not ray.is_initialized():
            return RuntimeError(RAY_WAS_SHUT_DOWN)
        await asyncio.wait({self._serving}, timeout=REASON_S)
        reported = self._serving.exception() if self._serving.done() else None
        return reported if isinstance(reported, Exception) else error


def server_environment() -> dict[str, str]:
    """Environment variables of a server's process.

    One OpenMP thread, because there is a server for each core; this process's OpenGL settings; and
    this process's import paths outside of the interpreter, so that `module:Class` names the same
    class in both.
    """
    outside = [
        os.path.abspath(path)
        for path in sys.path
        if not path.startswith((sys.prefix, sys.base_prefix))
    ]
    chosen = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys(outside)), **chosen}


def _pickled(value: Any) -> bytes:
    """Pickle `value`; by cloudpickle if it was defined in a script, a notebook or a function.

    pickle takes half the time of cloudpickle.
    """
    try:
        message = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except UNPICKLABLE:
        return cloudpickle.dumps(value)
    return cloudpickle.dumps(value) if b"__main__" in message else message


def _message_of(answers: Answers) -> bytes:
    """`answers` as a message; an unpicklable value becomes a fault of its environment only."""
    try:
        return _pickled(answers)
    except UNPICKLABLE:
        return _pickled(answers._replace(values=[_sendable(value) for value in answers.values]))


def _sendable(value: Any) -> Any:
    try:
        _pickled(value)
    except UNPICKLABLE as error:
        return Raised.of(TypeError(f"what it returned cannot be pickled: {error}"))
    return value
