"""The Ray edge of the environment servers: Ray places, starts, watches and kills their processes;
requests and answers go past it.

An actor call costs the two processes more than a millisecond together, beside six for a simulator's
chunk of actions: a chunk that does nothing took 1.4 ms of processor time through Ray and takes 0.4
ms this way. So a server is an actor with one long call, `serve`: it takes requests from a direct
connection (`siirl.env_server.connection`) and answers them, one at a time and in order. Those that
come meanwhile wait in the connection, so that the next chunk waits at the simulator and not the
simulator for the next chunk. How that call ends is how Ray tells of a process that died, for
example because memory ran out.

The secret of a connection travels with the actor's arguments; who can read those can run code in
the cluster already.

What an administrator must know: a server listens at its node's address, as Ray has it, and a free
port that the system chooses (net.ipv4.ip_local_port_range), until its pool has connected. Ray's own
workers keep to --min-worker-port and --max-worker-port, by default of `ray start` 10002 to 19999.
Where only those are open between nodes, the system's have to be opened too; torch.distributed needs
them as well. RAY_USE_TLS encrypts Ray's traffic, and not this.
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

from siirl import stacks
from siirl.env_server import connection
from siirl.env_server.connection import Address, ClientEnd
from siirl.env_server.server import Answers, EnvServer, Raised, Request
from siirl.errors import ConfigError

PASSED_ON = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID")
RAY_WAS_SHUT_DOWN = (
    "Ray was shut down while environment servers were in use: close the EnvPool first."
)
# Ray knows of a process's end within a second; of a node's after half a minute, for which nobody
# should wait
REASON_S = 5.0

# What pickling and unpickling raise by the documentation of `pickle`, and the methods of a user's
# own class that they call.
UNPICKLABLE = (
    *(pickle.PickleError, AttributeError, EOFError, ImportError, LookupError),
    *(ArithmeticError, NameError, RuntimeError, TypeError, ValueError),
)


class EnvServerActor:
    """Runs an `EnvServer` on an event loop of its own, which stands still while the server waits
    for requests.
    """

    def __init__(
        self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int, secret: bytes
    ) -> None:
        # Not asyncio.Runner: its `run` makes a repr of the result, which costs milliseconds where
        # that holds images.
        self._loop = asyncio.new_event_loop()
        self._server = EnvServer(env_name=env_name, env_kwargs=env_kwargs, num_envs=num_envs)
        self._secret = secret
        stacks.register("environment_server")

    def open(self) -> Raised | Address:
        """Make the environments (see `EnvServer.open`); returns where `serve` will listen."""
        raised = self._loop.run_until_complete(self._server.open())
        if raised is not None:
            return raised
        self._listener = connection.listen(get_node_ip_address())
        host, port, *_ = self._listener.getsockname()
        return host, port

    def serve(self) -> None:
        """Answer the requests of the pool until it says that there are no more, or is gone; then
        close the environments.
        """
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
    """A server in a process of its own, on whichever node of the cluster has the fewest."""

    def __init__(self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None:
        if not ray.is_initialized():
            raise ConfigError(
                "cluster='ray' needs a Ray connection: call ray.init() before EnvPool.start(), or use cluster='local'."
            )
        self._secret = secrets.token_bytes(connection.SECRET_BYTES)
        # No CPUs are reserved: on two cores the trainer and the servers together would never be
        # scheduled. SPREAD does the sharing.
        actor_class = ray.remote(EnvServerActor).options(
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": server_environment()},
        )
        self._actor: Any = actor_class.remote(
            env_name=env_name, env_kwargs=dict(env_kwargs), num_envs=num_envs, secret=self._secret
        )
        self._connection = ClientEnd(on_message=self._hand_out, on_lost=self._on_lost)
        self._waiting: deque[asyncio.Future[Answers]] = (
            deque()
        )  # for answers, which come in the order of the requests
        self._background: list[asyncio.Future[Any]] = []
        self._lost: Exception | None = None  # why nothing can be sent any more

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
        self._lost = self._lost or ConnectionError("it was told to close")
        self._connection.finish()
        return self._disconnected

    def kill(self) -> None:
        """End the process, also one that holds the interpreter's lock or was stopped (Ray then
        takes five seconds).
        """
        self._lost = self._lost or ConnectionError("it was killed")
        for future in (*self._background, *self._waiting):
            future.cancel()
        self._connection.abort()
        if (
            ray.is_initialized()
        ):  # otherwise its processes have ended, and ray.kill would start another Ray
            with suppress(ActorHandleNotFoundError):  # this is another Ray
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
            text = f"its process waits at {host}, port {port}, and cannot be reached there ({error}): is that port open between the nodes?"
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
            self._background.append(asyncio.get_running_loop().create_task(self._tell(error)))

    async def _tell(self, error: ConnectionError) -> None:
        """Tell those who wait for an answer that none will come, and why."""
        self._lost = await self._reason(error)
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(self._lost)
        self._waiting.clear()

    async def _reason(self, error: ConnectionError) -> Exception:
        """What Ray says of the end of the process, if it says so soon; otherwise `error`, which is
        what the connection saw of it.
        """
        if not ray.is_initialized():
            return RuntimeError(RAY_WAS_SHUT_DOWN)
        await asyncio.wait({self._serving}, timeout=REASON_S)
        told = self._serving.exception() if self._serving.done() else None
        return told if isinstance(told, Exception) else error


def server_environment() -> dict[str, str]:
    """Environment variables of a server's process.

    One OpenMP thread, since servers are as many as cores; this process's choice of OpenGL; and this
    process's import paths outside of the interpreter, so that `module:Class` means the same class
    there as here.
    """
    outside = [
        os.path.abspath(path)
        for path in sys.path
        if not path.startswith((sys.prefix, sys.base_prefix))
    ]
    chosen = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys(outside)), **chosen}


def _pickled(value: Any) -> bytes:
    """By pickle, which takes half the time; what was defined in a script, a notebook or a function
    needs cloudpickle.
    """
    try:
        message = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except UNPICKLABLE:
        return cloudpickle.dumps(value)
    return cloudpickle.dumps(value) if b"__main__" in message else message


def _message_of(answers: Answers) -> bytes:
    """`answers` as a message; a value that cannot be pickled is the fault of its environment alone."""
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
