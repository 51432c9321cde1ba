"""A server of OpenEnv's protocol with scripted answers, in a separate thread.

Answers are texts, bytes, None (silence), `CLOSE`, or `Twice`; a dict is sent as JSON. Left out:
environments.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

CLOSE = "close the connection"
SAY = {"properties": {"message": {"type": "string"}}, "required": ["message"]}


@dataclass(frozen=True)
class Twice:
    """Two answers to one message."""

    first: dict[str, Any]
    second: dict[str, Any]


def observed(reward: Any = None, *, done: Any = False, **fields: Any) -> dict[str, Any]:
    """An observation message."""
    return {
        "type": "observation",
        "data": {"observation": fields, "reward": reward, "done": done},
    }


def error(code: str, text: str) -> dict[str, Any]:
    """An error message."""
    return {"type": "error", "data": {"code": code, "message": text}}


class ScriptedServer:
    """Answers each message by `answer(message)`; `received` has all messages."""

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any],
        *,
        action_schema: dict[str, Any] | None = None,
        observation_schema: Any = None,
        schema_status: HTTPStatus = HTTPStatus.OK,
        metadata: Any = None,
        metadata_status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        """`metadata`: the document at /metadata; None: the server has none."""
        self._answer = answer
        self._document = json.dumps(
            {
                "action": SAY if action_schema is None else action_schema,
                "observation": observation_schema,
            }
        )
        self._schema_status = schema_status
        self._metadata, self._metadata_status = metadata, metadata_status
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.received: list[dict[str, Any]] = []
        self.headers: list[Headers] = []
        self.connections = 0

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        self.start(port=0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, *, port: int) -> None:
        """Listen, on a free port if `port` is 0."""
        self._server = asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Stop serving."""
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()

    def ping(self) -> None:
        """Wait until the latest client answers a ping."""
        asyncio.run_coroutine_threadsafe(self._ping(), self._loop).result()

    async def _ping(self) -> None:
        await (await self._latest.ping())

    async def _listen(self, port: int) -> Server:
        return await serve(self._talk, "127.0.0.1", port, process_request=self._get, max_size=None)

    async def _leave(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    def _get(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers.append(request.headers)
        if request.path == "/metadata" and self._metadata is not None:
            return connection.respond(self._metadata_status, json.dumps(self._metadata))
        if request.path != "/schema":
            return None
        if self._schema_status != HTTPStatus.OK:
            return connection.respond(self._schema_status, "")
        return connection.respond(HTTPStatus.OK, self._document)

    async def _talk(self, connection: ServerConnection) -> None:
        self.connections += 1
        self._latest = connection
        try:
            async for text in connection:
                message = json.loads(text)
                self.received.append(message)
                answer = self._answer(message)
                if message["type"] == "close" or answer == CLOSE:
                    return
                parts = [answer.first, answer.second] if isinstance(answer, Twice) else [answer]
                for part in parts:
                    if part is not None:
                        await connection.send(json.dumps(part) if isinstance(part, dict) else part)
        except ConnectionClosed:
            return
