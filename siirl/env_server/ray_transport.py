"""Transport to environment servers in Ray actors: Ray places, starts, watches and kills their
processes; requests and answers bypass Ray.

An actor call costs the two processes together more than a millisecond; simulating a chunk of
actions takes six. An empty chunk took 1.4 ms of processor time through Ray and 0.4 ms over the
direct connection. A server is therefore an actor with one long call, `serve`, which takes requests
from the connection (`siirl.env_server.connection`) and answers them one at a time. Further requests
queue in the connection, so that the simulator never waits for the next chunk. Environments that
await (tools, graders in processes) are handled concurrently: further requests start meanwhile, and
each answer is sent when it is ready. If the process dies, for example because memory is exhausted,
Ray reports this as the result of `serve`.

Images of a server on the pool's machine lie in memory that both share
(`siirl.env_server.shared_area`); those of other machines follow the message on the connection.

The secret of a connection is an argument of the actor. A process that can read those arguments can
already run code in the cluster.

For administrators: until its pool has connected, a server listens at its node's address in Ray and
a free port that the system chooses (net.ipv4.ip_local_port_range). Ray's workers use ports from
--min-worker-port to --max-worker-port, by default of `ray start` 10002 to 19999. If only those
ports are open between nodes, open the system's port range too; torch.distributed also needs it.
RAY_USE_TLS encrypts Ray's traffic, but not this connection.
"""

import asyncio
import itertools
import logging
import os
import secrets
import struct
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorHandleNotFoundError, RayTaskError, TaskCancelledError
from ray.util import get_node_ip_address

from envs.render_devices import choose_render_device, own_egl_devices
from siirl import stacks
from siirl.env_server import connection
from siirl.env_server.connection import Address, ClientEnd
from siirl.env_server.server import Answered, EnvServer, RaisedError, Request
from siirl.env_server.server_messages import (
    NUMBER,
    PART,
    UNPICKLABLE,
    AnswerReader,
    AnswerWriter,
    Order,
    Serving,
    pickled,
)
from siirl.env_server.shared_area import AreaHandle, SharedArea, room_of_answer
from siirl.errors import ConfigError
from siirl.terminal import warning_lines

logger = logging.getLogger(__name__)

PASSED_ON = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID")
# By default glibc's malloc returns blocks of 128 kB and more to the system at once. A new image
# then costs 70 us in page faults, instead of 5 us in kept memory. With these settings malloc keeps
# arrays of up to 4 MB, and up to 16 MB of free memory.
KEEPS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 22), "MALLOC_TRIM_THRESHOLD_": str(1 << 24)}
RAY_WAS_SHUT_DOWN = (
    "Ray was shut down while environment servers were in use: close the EnvPool first."
)
# Ray detects the end of a process within a second, but the loss of a node only after half a minute,
# which is too long to wait
REASON_S = 5.0


class ReadyServer(NamedTuple):
    """A server whose environments are made."""

    address: Address
    node: str
    """Ray's id of the server's machine."""
    area: AreaHandle | None
    """Memory for the arrays of its answers; None if they are small or cannot be shared."""


@dataclass(frozen=True)
class _Call:
    end: "asyncio.Future[None]"
    waiting: dict[int, Request]
    """Requests without an answer, by position."""
    answered: Answered


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
        warning_lines.show()
        choose_render_device(**draws_on)
        self._number = draws_on["number"]
        # Not asyncio.Runner: its `run` builds a repr of the result, which takes milliseconds for
        # images.
        self._loop = asyncio.new_event_loop()
        self._server = EnvServer(env_name=env_name, env_kwargs=env_kwargs, num_envs=num_envs)
        self._num_envs = num_envs
        self._secret = secret
        stacks.register("environment_server")

    def __repr__(self) -> str:
        """Name of the process before its lines (`siirl.execution.scheduler.rank_output`)."""
        return f"server {self._number + 1}"

    def open(self) -> RaisedError | ReadyServer:
        """Make the environments (see `EnvServer.open`), and listen for `serve`."""
        raised = self._loop.run_until_complete(self._server.open())
        if raised is not None:
            return raised
        self._listener = connection.listen(get_node_ip_address())
        host, port, *_ = self._listener.getsockname()
        self._room = room_of_answer(self._server.spec)
        self._area = SharedArea.make(self._num_envs * self._room) if self._room else None
        handle = None if self._area is None else self._area.handle
        return ReadyServer((host, port), _node(), handle)

    def serve(self, *, shares_area: bool) -> None:
        """Answer requests until the pool ends the stream or disconnects; close the environments.

        Args:
            shares_area: Whether the pool has opened the area.
        """
        writer = AnswerWriter(area=self._area if shares_area else None, room=self._room)
        with self._loop.run_until_complete(
            connection.accept(self._listener, secret=self._secret)
        ) as pool:
            serving = Serving(self._server, pool, writer)
            self._loop.run_until_complete(serving.answer_all())
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
                "gpus": own_egl_devices(),
                "machine": os.uname().nodename,
            },
        )
        self._connection = ClientEnd(on_message=self._hand_out, on_lost=self._on_lost)
        self._numbers = itertools.count()
        self._waiting: dict[int, _Call] = {}
        """Calls by number."""
        self._unread: Counter[int] = Counter()  # answers of each environment still to be read
        self._background: list[asyncio.Future[Any]] = []
        self._lost: Exception | None = None  # reason why sending is no longer possible
        self._reader = AnswerReader(area=None)

    def open(self) -> "asyncio.Future[RaisedError | None]":
        """See `Transport.open`."""
        loop = asyncio.get_running_loop()
        self._disconnected: asyncio.Future[None] = loop.create_future()
        opening = loop.create_task(self._open())
        self._background.append(opening)
        return opening

    def send(self, requests: Sequence[Request], answered: Answered) -> "asyncio.Future[None]":
        """See `Transport.send`.

        Raises:
            TypeError: The requests cannot be pickled.
            RuntimeError: Ray was shut down.
        """
        if not ray.is_initialized():
            raise RuntimeError(RAY_WAS_SHUT_DOWN)
        try:
            message = pickled(self._order_of(requests))
        except UNPICKLABLE as error:
            raise TypeError(f"A request to an environment cannot be pickled: {error}") from error
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            end.set_exception(self._lost)
            return end
        number = next(self._numbers)
        self._connection.send(NUMBER.pack(number) + message)
        self._waiting[number] = _Call(end, dict(enumerate(requests)), answered)
        self._unread.update(request.env for request in requests)
        return end

    def shut(self) -> "asyncio.Future[None]":
        """See `Transport.shut`: the server closes its end when the environments are closed."""
        self._lost = self._lost or ConnectionError("it was closed")
        self._connection.finish()
        return self._disconnected

    def kill(self) -> "asyncio.Future[None]":
        """End the process, even if it holds the GIL or is stopped (then Ray takes 5 s)."""
        self._lost = self._lost or ConnectionError("it was killed")
        for future in (*self._background, *(call.end for call in self._waiting.values())):
            future.cancel()
        self._connection.abort()
        self._reader.close()
        # If Ray was shut down, its processes have ended, and ray.kill would start another Ray.
        if ray.is_initialized():
            with suppress(ActorHandleNotFoundError):  # the actor belongs to an earlier Ray
                ray.kill(self._actor, no_restart=True)
        nothing_left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        nothing_left.set_result(None)
        return nothing_left

    async def _open(self) -> RaisedError | None:
        opened: RaisedError | ReadyServer = await asyncio.wrap_future(
            self._actor.open.remote().future()
        )
        if isinstance(opened, RaisedError):
            return opened
        area = self._open_area(opened)
        self._reader = AnswerReader(area=area)
        serving = self._actor.serve.remote(shares_area=area is not None)
        self._serving = asyncio.wrap_future(serving.future())
        self._background.append(self._serving)
        try:
            await self._connection.connect(opened.address, secret=self._secret)
        except OSError as error:
            host, port = opened.address
            text = (
                f"its process waits at {host}, port {port}, and cannot be reached there ({error}): "
                "is that port open between the nodes?"
            )
            raise await self._reason(ConnectionError(text)) from error
        self._serving.add_done_callback(lambda _: self._connection.abort())
        return None

    def _open_area(self, opened: ReadyServer) -> SharedArea | None:
        """Map the server's memory, if it is on this machine."""
        if opened.area is None or opened.node != _node():
            return None
        try:
            return SharedArea.open(opened.area)
        except OSError as error:
            logger.warning(
                "Images of an environment server are sent over its connection, which takes longer: "
                "its memory cannot be opened (%s). Server and pool need the same user and the same "
                "container.",
                error,
            )
            return None

    def _order_of(self, requests: Sequence[Request]) -> Order:
        """An unread answer keeps its environment's place: its episode was abandoned while the
        request was running.
        """
        unread, place_is_free = self._unread.copy(), []
        for request in requests:
            place_is_free.append(not unread[request.env])
            unread[request.env] += 1
        return Order(list(requests), place_is_free)

    def _hand_out(self, message: memoryview) -> None:
        call: _Call | None = None
        try:
            number, count = PART.unpack_from(message)
            call = self._waiting[number]
            positions = struct.unpack_from(f">{count}I", message, PART.size)
            answers = self._reader.answers_of(message[PART.size + 4 * count :])
            self._unread.subtract(call.waiting.pop(position).env for position in positions)
        except (*UNPICKLABLE, struct.error) as error:
            unreadable = ConnectionError(
                f"its answer cannot be unpickled here: {type(error).__name__}: {error}"
            )
            if call is not None and not call.end.done():
                call.end.set_exception(unreadable)
            self._connection.abort(unreadable)
            return
        if not call.end.done():  # cancelled
            call.answered(positions, answers)
        if not call.waiting:
            del self._waiting[number]
            if not call.end.done():
                call.end.set_result(None)

    def _on_lost(self, error: ConnectionError) -> None:
        self._reader.close()
        self._disconnected.set_result(None)
        if self._lost is None:
            self._background.append(
                asyncio.get_running_loop().create_task(self._fail_waiting(error))
            )

    async def _fail_waiting(self, error: ConnectionError) -> None:
        """Fail all waiting requests with the reason of the loss."""
        self._lost = await self._reason(error)
        for call in self._waiting.values():
            if not call.end.done():
                call.end.set_exception(self._lost)
        self._waiting.clear()

    async def _reason(self, error: ConnectionError) -> Exception:
        """Ray's reason for the end of the process, if reported in time; otherwise `error`."""
        if not ray.is_initialized():
            return RuntimeError(RAY_WAS_SHUT_DOWN)
        await asyncio.wait({self._serving}, timeout=REASON_S)
        reported = self._serving.exception() if self._serving.done() else None
        if isinstance(reported, TaskCancelledError):  # Ray's word for an interrupt
            return ConnectionError("its process raised KeyboardInterrupt")
        if isinstance(reported, RayTaskError):  # text: actor first, exception last
            last_line = str(reported).rstrip().rpartition("\n")[2]
            return ConnectionError(f"its process raised {last_line}")
        return reported if isinstance(reported, Exception) else error


def server_environment() -> dict[str, str]:
    """Environment variables of a server's process.

    They set one OpenMP thread, because there is a server for each core, and memory reuse (`KEEPS`).
    They also pass on this process's OpenGL settings and its import paths outside of the
    interpreter, so that `module:Class` names the same class in both.
    """
    outside = [
        os.path.abspath(path)
        for path in sys.path
        if not path.startswith((sys.prefix, sys.base_prefix))
    ]
    chosen = {name: os.environ[name] for name in (*PASSED_ON, *KEEPS) if name in os.environ}
    paths = os.pathsep.join(dict.fromkeys(outside))
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **KEEPS, **chosen}


def _node() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node
