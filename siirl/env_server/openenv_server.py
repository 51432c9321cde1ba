"""Serves a siirl environment over OpenEnv's protocol, to openenv-core's clients and to env=openenv.

    server = OpenEnvServer(pool, token=token, max_message_bytes=4 << 20, seed=1)
    async with server.listening("127.0.0.1", 8000):
        await stop.wait()

Each WebSocket session (`/ws`) has a slot of the pool: a separate environment, in a separate process
if the pool has one environment per server. A dead server is replaced and its episode replayed, so a
client only sees a slower answer (`siirl.env_server.slot`). GET `/schema`, `/metadata` and `/health`
describe the server. All routes except `/health` need the token, as `Authorization: Bearer TOKEN` or
as the password of basic authentication.

`envs.openenv.wire` defines the messages. A reset takes `seed`, `episode_id` and the environment's
options; a step takes `text` or `action`, or `actions` for a chunk. Left out: TLS (use a reverse
proxy or an SSH tunnel), the stateless routes POST `/reset` and `/step`, MCP tools, rows of prompt
files, frames for videos, and the ground truth.
"""

import asyncio
import base64
import binascii
import hmac
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import numpy as np
from gymnasium import spaces
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from envs.arguments import KEPT_HERE, checked_action
from envs.base import EnvSpec
from envs.names import listed, nearest
from envs.openenv.session import CAPACITY_REACHED
from envs.openenv.space_play import ACTIONS, INFO, OBSERVATION
from envs.openenv.wire import SPEC, from_json, info_to_json, shortened_json, spec_to_json, to_json
from envs.text import GROUND_TRUTH, shortened
from siirl import __version__
from siirl.env_server.pool import EnvPool
from siirl.env_server.slot import Slot
from siirl.errors import SiirlError, SimulationFailed

Message = dict[str, Any]

MAX_CHUNK = 1024  # actions of one step
METADATA = "metadata"  # an object; openenv-core's actions may carry it, and no other further field
WITHOUT_DATA = ("state", "close")
# A trainer may compute for minutes in the thread that answers pings.
PING_EVERY_S, PING_TIMEOUT_S = 20.0, 600.0
# A client that is refused gets the reason as the answer to its first message.
FIRST_MESSAGE_S = 10.0
STOPS, TRY_LATER = 1001, 1013  # IANA's registry of WebSocket close codes
UNAUTHORIZED = {"WWW-Authenticate": 'Basic realm="siirl serve", charset="UTF-8"'}


class Mistake(ValueError):
    """An invalid message of the client; it gets an error, and the session continues."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class OpenEnvServer:
    """The sessions of one environment."""

    def __init__(self, pool: EnvPool, *, token: str, max_message_bytes: int, seed: int) -> None:
        """Check that the environment's spec has a JSON form.

        Args:
            pool: Pool whose slots are the sessions; it starts servers as sessions need them.
            token: The token that a client must send.
            max_message_bytes: Largest message of a client.
            seed: Seeds the generator for episodes without a seed.

        Raises:
            ValueError: A space or a number of agents that OpenEnv cannot express.
        """
        self._pool = pool
        self._token = token.encode()
        self._max_message_bytes = max_message_bytes
        self._documents = {
            "/schema": _schema(pool.spec),
            "/metadata": {
                "name": pool.spec.name,
                "description": f"siirl's environment {pool.spec.name}",
                "version": __version__,
            },
        }
        self._seeds = np.random.default_rng(seed)
        self.num_sessions = 0
        self._talks: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve clients within the context; yields the port, a free one if `port` is 0.

        Raises:
            OSError: The address is taken, or does not belong to this machine.
        """
        server: Server = await serve(
            self._talk,
            host,
            port,
            process_request=self._answer_request,
            max_size=self._max_message_bytes,
            max_queue=1,  # a client waits for each answer; a longer queue would only take memory
            compression=None,
            ping_interval=PING_EVERY_S,
            ping_timeout=PING_TIMEOUT_S,
        )
        try:
            yield int(next(iter(server.sockets)).getsockname()[1])
        finally:
            server.close()
            for talk in self._talks:  # a running step may last for env.deadline_s, with replays
                talk.cancel()
            await server.wait_closed()

    def _answer_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer GET; None lets a WebSocket session begin."""
        path = request.path.partition("?")[0]
        if path == "/health":
            return _document(connection, {"status": "healthy"})
        if not is_authorized(request.headers, token=self._token):
            refusal = connection.respond(HTTPStatus.UNAUTHORIZED, "siirl serve: no valid token\n")
            refusal.headers.update(UNAUTHORIZED)
            return refusal
        if path in self._documents:
            return _document(connection, self._documents[path])
        if path != "/ws":
            return connection.respond(HTTPStatus.NOT_FOUND, f"siirl serve has no {path[:80]}\n")
        return None

    async def _talk(self, connection: ServerConnection) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)
        try:
            if self.num_sessions >= self._pool.num_slots:
                await self._refuse(connection)
                return
            self.num_sessions += 1
            try:
                async with self._pool.slot() as slot:
                    await self._serve(connection, slot)
            finally:
                self.num_sessions -= 1
        except ConnectionClosed:
            return  # the client has gone; its environment is free again
        except asyncio.CancelledError:
            await connection.close(STOPS)
            raise

    async def _refuse(self, connection: ServerConnection) -> None:
        """Answer the first message with an error.

        A client that has not sent it yet would find the connection closed, and not read the reason.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_MESSAGE_S):
                await connection.recv()
        await connection.send(json.dumps(self._full()))
        await connection.close(TRY_LATER)

    async def _serve(self, connection: ServerConnection, slot: Slot) -> None:
        episode = _Episode(slot, spec=self._pool.spec, draw_seed=self._draw_seed)
        async for text in connection:
            try:
                kind, data = _read(text)
                if kind == "close":
                    return
                answer = await episode.answer(kind, data)
            except Mistake as mistake:
                answer = _error(mistake.code, str(mistake))
            except ValueError as refusal:
                answer = _error("VALIDATION_ERROR", str(refusal))
            except SimulationFailed as failure:
                # the client knows which episode it plays, and names it itself
                answer = _error("EXECUTION_ERROR", failure.cause or str(failure))
            except (SiirlError, RuntimeError) as failure:
                answer = _error("EXECUTION_ERROR", str(failure))
            await connection.send(json.dumps(answer))

    def _draw_seed(self) -> int:
        return int(self._seeds.integers(2**31))

    def _full(self) -> Message:
        sessions = self._pool.num_slots
        return {
            "type": "error",
            "data": {
                "message": f"all {sessions} sessions are in use: start siirl serve with more "
                "(sessions=)",
                "code": CAPACITY_REACHED,
                "active_sessions": self.num_sessions,
                "max_sessions": sessions,
            },
        }


class _Episode:
    """The episodes of one session, one after the other."""

    def __init__(self, slot: Slot, *, spec: EnvSpec, draw_seed: Any) -> None:
        self._slot = slot
        self._spec = spec
        self._draw_seed = draw_seed
        self._state: Message = {"episode_id": None, "step_count": 0}

    async def answer(self, kind: str, data: Message) -> Message:
        match kind:
            case "reset":
                return await self._reset(data)
            case "step":
                return await self._step(data)
            case "state":
                return {"type": "state", "data": self._state}
            case "mcp":
                return _without_tools(data)
        raise Mistake("UNKNOWN_TYPE", f"unknown message type {shortened(kind)}")

    async def _reset(self, data: Message) -> Message:
        # null is a missing field: openenv-core's ResetRequest allows it for seed and episode_id
        options = {name: value for name, value in data.items() if value is not None}
        episode_id = options.pop("episode_id", None)
        seed = options.pop("seed", None)
        if seed is not None and (type(seed) is not int or seed < 0):
            raise Mistake(
                "VALIDATION_ERROR",
                f"seed must be a whole number of 0 or more, got {shortened_json(seed)}",
            )
        if episode_id is not None and not isinstance(episode_id, str):
            raise Mistake(
                "VALIDATION_ERROR", f"episode_id must be text, got {shortened_json(episode_id)}"
            )
        for name in KEPT_HERE:
            if name in options:
                raise Mistake("VALIDATION_ERROR", f"siirl serve takes no option {name!r}")
        seed = self._draw_seed() if seed is None else seed
        observation, info = await self._slot.reset(seed=seed, options=options)
        self._state = {
            "episode_id": episode_id,
            "step_count": 0,
            "seed": seed,
            "task": info.get("task"),
        }
        return _observed(observation, info, reward=None, done=False)

    async def _step(self, data: Message) -> Message:
        actions = _actions(data, space=self._spec.action_space)
        observation, reward, terminated, truncated, info = await self._slot.step_chunk(actions)
        self._state["step_count"] += int(info["executed"])
        flags = {"terminated": bool(terminated), "truncated": bool(truncated)}
        done = bool(terminated or truncated)
        return _observed(observation, {**info, **flags}, reward=float(reward), done=done)


def is_authorized(headers: Headers, *, token: bytes) -> bool:
    """Whether a request has the token; compares in constant time."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode(), token)


def _schema(spec: EnvSpec) -> Message:
    """The answer of `/schema`: JSON schemas, and the spec for siirl's own clients."""
    space = spec.observation_space
    if isinstance(space, spaces.Dict) and INFO in space.spaces:
        raise ValueError(f"an entry {INFO!r} of the observation would hide the infos: rename it")
    if isinstance(spec.action_space, spaces.Text):
        field, form = "text", {"type": "string"}
    else:
        field, form = "action", {"description": str(spec.action_space)}
    return {
        "action": {
            "title": spec.name,
            "type": "object",
            "properties": {field: form, ACTIONS: {"type": "array", "description": "a chunk"}},
            "required": [field],
            SPEC: spec_to_json(spec),
        },
        "observation": {"type": "object", "description": str(space)},
        "state": {"type": "object"},
    }


def _actions(data: Message, *, space: spaces.Space[Any]) -> list[Any]:
    """The actions of a step, checked before any is executed."""
    single = "text" if isinstance(space, spaces.Text) else "action"
    # null is a missing one: a typed client of openenv-core sends all optional fields of its action
    given = {name: data[name] for name in (single, ACTIONS) if data.get(name) is not None}
    actions = given.get(ACTIONS, [given.get(single)])
    if len(given) != 1 or not (isinstance(actions, list) and 0 < len(actions) <= MAX_CHUNK):
        raise Mistake(
            "VALIDATION_ERROR",
            f"a step takes {single!r}, or {ACTIONS!r} with 1 to {MAX_CHUNK} of them, and not both, "
            f"got {shortened_json(data)}",
        )
    _refuse_unknown(data, known=(single, ACTIONS, METADATA), place="a step")
    if not isinstance(data.get(METADATA, {}), dict):  # not even null, as in openenv-core
        raise Mistake(
            "VALIDATION_ERROR",
            f"{METADATA} of a step must be an object, got {shortened_json(data[METADATA])}",
        )
    return [
        checked_action(from_json(action, space, where=f"action {number}"), space=space)
        for number, action in enumerate(actions)
    ]


def _observed(
    observation: Any, info: Mapping[str, Any], *, reward: float | None, done: bool
) -> Message:
    shown = observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
    public = {name: value for name, value in info.items() if name != GROUND_TRUTH}
    return {
        "type": "observation",
        "data": {
            "observation": {**to_json(shown), INFO: info_to_json(public)},
            "reward": reward,
            "done": done,
        },
    }


def _read(text: str | bytes) -> tuple[str, Message]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake("INVALID_JSON", f"invalid JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Mistake("VALIDATION_ERROR", "a message is {type, data}, and type is text")
    kind, data = message["type"], message.get("data", {})
    _refuse_unknown(message, known=("type", "data"), place="a message")
    if not isinstance(data, dict):
        raise Mistake("VALIDATION_ERROR", f"data must be an object, got {shortened_json(data)}")
    if data and kind in WITHOUT_DATA:
        raise Mistake("VALIDATION_ERROR", f"{kind} takes no data, got {shortened_json(data)}")
    return kind, data


def _refuse_unknown(fields: Message, *, known: Sequence[str], place: str) -> None:
    for name in fields:
        if name not in known:
            raise Mistake(
                "VALIDATION_ERROR",
                f"Unknown field {shortened(name)} of {place}.{nearest(name, known)} Known: "
                f"{listed(name, known)}.",
            )


def _without_tools(data: Message) -> Message:
    error = {"code": -32601, "message": "siirl serve has no MCP tools"}  # JSON-RPC: no such method
    return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": data.get("id"), "error": error}}


def _error(code: str, text: str) -> Message:
    return {"type": "error", "data": {"message": " ".join(text.split()), "code": code}}


def _document(connection: ServerConnection, document: Message) -> Response:
    response = connection.respond(HTTPStatus.OK, json.dumps(document))
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    return response
