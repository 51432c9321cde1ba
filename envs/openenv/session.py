"""One WebSocket session with an OpenEnv server: `reset`, then messages, each with one answer.

The protocol is that of openenv-core 0.3 (`openenv.core.env_client` and `env_server.http_server`):
JSON texts `{"type": "reset" | "step" | "state" | "mcp" | "close", "data": …}`, answered by
`{"type": "observation" | "state" | "mcp" | "error", "data": …}`. Its own client is not used,
because the package requires gradio, fastmcp, openai and pandas; the protocol needs `websockets`.

Answers carry no number, so an answer after the deadline, or a second one, would be mistaken for
that of the next message. The session therefore closes the connection after every fault, an
unexpected message included, and `reset` opens another.

All connections of the process share one event loop, in a thread that always runs. An environment
server's own loop stops between requests: a connection there would answer no ping while the policy
computes, and uvicorn, which runs most OpenEnv servers, closes one that is silent for 40 seconds.

Left out: the stateless HTTP routes `/reset` and `/step`, which play no episode.
"""

import asyncio
import functools
import json
import math
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    WebSocketException,
)

from envs.base import Misbehaved
from envs.mistakes import one_line
from envs.server_address import authorization, is_loopback
from envs.text import shortened

Result = TypeVar("Result")

CAPACITY_REACHED = "CAPACITY_REACHED"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between two attempts to connect
CLOSE_S = 1.0  # for a farewell
TOO_BIG = 1009  # close code of RFC 6455, section 7.4.1
REFUSED_STATUS = (401, 403)


class SessionFault(Misbehaved):
    """The server vanished, was late, or sent an answer outside the protocol."""


class Unreachable(SessionFault):
    """No connection, or one that ended between two messages: another attempt may succeed."""


class NoSession(SessionFault):
    """No session within the deadline for it; a replay would only wait again."""


class ServerRefused(RuntimeError):
    """The server answered with an error; the session continues."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class Session:
    """A connection that opens at first use, and again after a fault."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        deadline_s: float,
        connect_deadline_s: float,
        max_message_bytes: int,
    ) -> None:
        """Store the settings; the connection opens later.

        Args:
            url: Address of the server, `http://…` or `https://…`.
            token: Sent as a bearer token, unless None.
            deadline_s: Seconds that the server may take for one answer.
            connect_deadline_s: Seconds of attempts to get a session.
            max_message_bytes: Largest answer.
        """
        self._url, self._token = url, token
        self._deadline_s, self._connect_deadline_s = deadline_s, connect_deadline_s
        self._max_message_bytes = max_message_bytes
        self._socket: ClientConnection | None = None

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Start an episode; waits for a free session, and for a server that restarts.

        Raises:
            NoSession: No session in time.
            SessionFault: A fault of the server.
            ServerRefused: The environment refuses `data`.
        """
        return await over_network(self._reset(data))

    async def ask(
        self, kind: str, data: Mapping[str, Any] | None = None, *, answer: str
    ) -> dict[str, Any]:
        """Send one message and return the `data` of its answer, which must have the type `answer`.

        Raises:
            SessionFault: The connection is closed.
            ServerRefused: An error of the server; the connection stays.
        """
        return await over_network(self._ask(kind, data, answer=answer))

    async def close(self) -> None:
        """Close the session; a second call does nothing."""
        await over_network(self._close())

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        clock = asyncio.get_running_loop()
        give_up, pause_s = clock.time() + self._connect_deadline_s, FIRST_PAUSE_S
        while True:
            try:
                return await self._ask("reset", data, answer="observation")
            except ServerRefused as refused:
                if refused.code != CAPACITY_REACHED:
                    raise
                failure = NoSession(
                    f"The server at {self._url} has no free session: {refused}. Give it more, or "
                    "lower env.num_servers or env.envs_per_server"
                )
                await self._close()
            except Unreachable as unreachable:
                failure = NoSession(str(unreachable))
            if clock.time() + pause_s > give_up:
                raise failure
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _ask(
        self, kind: str, data: Mapping[str, Any] | None = None, *, answer: str
    ) -> dict[str, Any]:
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        answered = False
        try:
            async with asyncio.timeout(self._deadline_s):
                if self._socket is None:
                    self._socket = await self._connect()
                else:
                    await self._refuse_unasked(self._socket, kind)
                socket = self._socket
                # where it is closed, `recv` has the server's last words, or raises too
                with suppress(ConnectionClosed):
                    await socket.send(json.dumps(message))
                received = await socket.recv()
            answered = True
        except TimeoutError as error:
            raise SessionFault(
                f"The server at {self._url} did not answer {kind!r} within {self._deadline_s:g} s"
            ) from error
        except ConnectionClosed as error:
            raise self._ended(kind, error) from error
        finally:
            if not answered:  # the answer may still come, even if the caller was cancelled
                await self._close()
        try:
            return _data_of(received, answer=answer)
        except ValueError as error:
            await self._close()
            raise SessionFault(
                f"The answer of the server at {self._url} to {kind!r} does not follow OpenEnv's "
                f"protocol: {error}"
            ) from error

    async def _refuse_unasked(self, socket: ClientConnection, kind: str) -> None:
        """Raise SessionFault if a message waits: it would be taken for the answer to `kind`."""
        try:
            async with asyncio.timeout(0):
                unasked = await socket.recv()
        except TimeoutError:
            return
        raise SessionFault(
            f"The server at {self._url} sent a message that nobody asked for, before {kind!r}: "
            f"{shortened(unasked)}. It must answer each message once"
        )

    async def _close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is None:
            return
        try:
            with suppress(TimeoutError, OSError, WebSocketException):
                async with asyncio.timeout(CLOSE_S):
                    await socket.send(json.dumps({"type": "close"}))
                    await socket.close()
        finally:
            socket.transport.abort()

    async def _connect(self) -> ClientConnection:
        parts = urlsplit(self._url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        try:
            return await connect(
                f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/ws",
                additional_headers=authorization(self._token),
                max_size=self._max_message_bytes,
                proxy=None if is_loopback(self._url) else True,
                compression=None,  # most servers are nearby, where deflate costs more than it saves
                ping_interval=None,  # a server may compute for longer; see `deadline_s`
                open_timeout=None,  # `deadline_s` as well
            )
        except InvalidStatus as error:
            raise self._not_served(error.response.status_code) from error
        except (OSError, InvalidHandshake, EOFError) as error:
            raise Unreachable(
                f"No OpenEnv server can be reached at {self._url}: {one_line(error)}"
            ) from error

    def _not_served(self, status: int) -> SessionFault:
        if status in REFUSED_STATUS:
            return SessionFault(
                f"The server at {self._url} refuses the token (status {status}): set "
                "env.kwargs.token_file to a file with the right one"
            )
        if status >= 500:  # a proxy whose server restarts
            return Unreachable(f"The server at {self._url} is not ready (status {status})")
        return SessionFault(
            f"{self._url} is not an OpenEnv server: {self._url}/ws answers with status {status}"
        )

    def _ended(self, kind: str, error: ConnectionClosed) -> SessionFault:
        if error.sent is not None and error.sent.code == TOO_BIG:
            return SessionFault(
                f"The server at {self._url} answered {kind!r} with more than "
                f"{self._max_message_bytes >> 20} MiB (env.kwargs.max_message_mib)"
            )
        if error.rcvd is not None and error.rcvd.code == TOO_BIG:
            return SessionFault(f"The server at {self._url} refuses a message of that size")
        return Unreachable(f"The server at {self._url} went away during {kind!r}")


def _data_of(received: str | bytes, *, answer: str) -> dict[str, Any]:
    """The `data` of an answer of the type `answer`.

    Raises:
        ServerRefused: An error of the server.
        ValueError: Anything else; the message quotes it.
    """
    if isinstance(received, bytes):
        raise ValueError(f"{len(received)} bytes, not text")
    try:
        message = json.loads(received, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("JSON that nests too deep") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{shortened(received)}, which is not JSON") from error
    kind, data = (
        (message.get("type"), message.get("data")) if isinstance(message, dict) else (None, None)
    )
    if kind == "error" and isinstance(data, dict):
        text = " ".join(str(data.get("message", "no reason given")).split())
        raise ServerRefused(str(data.get("code", "UNKNOWN")), shortened(text, characters=300)[1:-1])
    if kind != answer or not isinstance(data, dict):
        raise ValueError(f"{shortened(message)} instead of {{type: {answer!r}, data: {{…}}}}")
    return data


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"a number is {shortened(constant)[1:-1]}")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):  # 1e999
        _refuse_constant(digits)
    return number


@functools.cache
def network_loop() -> asyncio.AbstractEventLoop:
    """The loop; starts its thread, which ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="openenv-network", daemon=True).start()
    return loop


async def over_network(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` on the network loop and wait for it; cancelling the caller cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, network_loop()))
