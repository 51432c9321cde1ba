"""HTTP client of one inference server; bounds the time and the size of an answer.

Requests run on an event loop in a separate thread, so that weights can be sent while the episodes'
loop is not running. If a connection fails or the server is busy, the request is tried again for a
while; requests have seeds and ids, so the same request gives the same answer. Left out: TLS
settings beyond the system's certificates, redirects, proxies.
"""

import asyncio
import contextlib
import json
import resource
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx2

from envs.server_address import authorization

Result = TypeVar("Result")

RECONNECT_S = 20.0  # covers a proxy's restart; a restarted vLLM has lost the weights anyway
BETWEEN_ATTEMPTS_S = 0.2
BUSY = (429, 503)  # HTTP status of a server, or of a proxy before it, that may answer later
CONTROL_BYTES = 1 << 20  # limit of answers without texts
QUOTED_CHARACTERS = 300  # of the server's explanation of an error
SHUT_DOWN_S = 5.0


class ServerError(Exception):
    """A request without a usable answer; the message is a sentence with the remedy.

    Args:
        message: The sentence.
        status: HTTP status of the answer; 0 if there is none.
        explanation: The server's error text.
        gone: Whether nothing answers at the address, or it stays busy.
        retry_after_s: Seconds that a busy server asks to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        explanation: str = "",
        gone: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.explanation = explanation
        self.gone = gone
        self.retry_after_s = retry_after_s


class ServerLink:
    """The connections to one server.

    Args:
        url: Address of the server, without a slash at the end.
        token: Sent as a bearer token; None: none.
        deadline_s: Seconds for an answer.
        reconnect_s: Seconds of attempts if it does not connect or is busy.
    """

    def __init__(
        self, url: str, *, token: str | None, deadline_s: float, reconnect_s: float = RECONNECT_S
    ) -> None:
        self.url = url
        self.deadline_s, self.reconnect_s = deadline_s, reconnect_s
        self._headers = {**authorization(token), "Accept-Encoding": "identity"}
        # Not uvloop, which Ray's workers install: there a connection that closes at once has no
        # socket any more, and httpx2 fails with an AttributeError instead of a TransportError.
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="inference-server", daemon=True
        )
        self._thread.start()
        self._client: httpx2.AsyncClient = self.wait(self._connected())

    async def _connected(self) -> httpx2.AsyncClient:
        # each request has a connection; the rest of this process also needs file descriptors
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        return httpx2.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            timeout=None,  # `deadline_s` bounds the whole answer
            limits=httpx2.Limits(max_connections=most, max_keepalive_connections=most),
            trust_env=False,  # a proxy would see every prompt, and cut long answers
        )

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run `work` on the link's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` on the link's loop, and wait for it in the caller's thread."""
        return self.start(work).result()

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            self.start(self._client.aclose()).result(SHUT_DOWN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def get(self, path: str) -> Any:
        """JSON at `path`.

        Raises:
            ServerError: No usable answer.
        """
        return _read_json(await self.content("GET", path), path=path, url=self.url)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        reconnect_s: float | None = None,
        **query: str,
    ) -> Any:
        """Answer in JSON to a JSON body; None if it is empty.

        Args:
            path: The route.
            body: JSON body of the request.
            reconnect_s: Seconds of attempts; None: the link's.
            query: Parameters in the address.

        Raises:
            ServerError: No usable answer.
        """
        content = await self.content("POST", path, body=body, query=query, reconnect_s=reconnect_s)
        return _read_json(content, path=path, url=self.url) if content else None

    async def content(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        most_bytes: int = CONTROL_BYTES,
        reconnect_s: float | None = None,
    ) -> bytes:
        """Body of the answer.

        Raises:
            ServerError: No connection, no answer in time, an error status, or more than
                `most_bytes`.
        """
        attempts_s = self.reconnect_s if reconnect_s is None else reconnect_s
        until = time.monotonic() + attempts_s
        while True:
            pause_s = BETWEEN_ATTEMPTS_S
            try:
                async with asyncio.timeout(self.deadline_s):
                    return await self._content(method, path, body, query, most_bytes)
            except TimeoutError as error:
                raise ServerError(
                    f"The inference server at {self.url} did not answer {path} within "
                    f"{self.deadline_s:g} s: raise actor_rollout_ref.rollout.server.deadline_s, "
                    "or check whether it hangs.",
                    gone=True,
                ) from error
            except httpx2.TransportError as error:
                if time.monotonic() > until:
                    raise ServerError(
                        f"No inference server answers at {self.url} "
                        f"({str(error) or type(error).__name__}; {attempts_s:g} s of attempts): "
                        "start it, or correct actor_rollout_ref.rollout.server.urls.",
                        gone=True,
                    ) from error
            except ServerError as error:
                left_s = until - time.monotonic()
                if error.status not in BUSY or left_s < 0:
                    raise
                pause_s = max(pause_s, min(error.retry_after_s, left_s))
            await asyncio.sleep(pause_s)

    async def _content(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        most_bytes: int,
    ) -> bytes:
        async with self._client.stream(
            method, path, json=None if body is None else dict(body), params=query
        ) as answer:
            parts, size = [], 0
            async for part in answer.aiter_raw():
                size += len(part)
                if size > most_bytes:
                    raise ServerError(
                        f"The inference server at {self.url} answers {path} with more than "
                        f"{most_bytes >> 10} KiB, more than any answer to this request needs: "
                        "check which program listens there."
                    )
                parts.append(part)
        content = b"".join(parts)
        if answer.status_code != httpx2.codes.OK:
            wait = answer.headers.get("Retry-After", "")  # a date is not read
            raise self._refused(
                path,
                answer.status_code,
                content,
                retry_after_s=float(wait) if wait.isdecimal() else 0.0,
            )
        return content

    def unusable(self, error: ValueError) -> ServerError:
        """The error for an answer whose content is wrong, which `error` describes."""
        return ServerError(
            f"The answer of the inference server at {self.url} cannot be used: {error}."
        )

    def _refused(
        self, path: str, status: int, content: bytes, *, retry_after_s: float
    ) -> ServerError:
        explanation = _explanation(content)
        remedies = {
            **dict.fromkeys(BUSY, "it stays busy; lower env.envs_per_server, or see its log."),
            401: "name the file with its key in actor_rollout_ref.rollout.server.token_file.",
            404: "it is not vLLM, or runs without VLLM_SERVER_DEV_MODE=1.",
        }
        remedy = remedies.get(status, "see its log.")
        return ServerError(
            f"The inference server at {self.url} answers {path} with HTTP {status}"
            f"{f' ({explanation})' * bool(explanation)}: {remedy}",
            status=status,
            explanation=explanation,
            gone=status in BUSY,
            retry_after_s=retry_after_s,
        )


def _read_json(content: bytes, *, path: str, url: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ServerError(
            f"The inference server at {url} answers {path} with invalid JSON ({error}): check "
            "which program listens there."
        ) from error


def _explanation(content: bytes) -> str:
    """The server's error text on one line: vLLM's or FastAPI's message, else the body itself."""
    text = content.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error", answer.get("detail", text))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    return " ".join(text.split())[:QUOTED_CHARACTERS]
