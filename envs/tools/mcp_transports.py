"""Connects to an MCP server: a process started here (standard streams), or an address (streamable
HTTP).

A transport belongs to one connection. Lines of a server's standard output that are not MCP are
counted, with one warning per server. The client library would log each as an error with a
traceback, and continue. A filter on its two loggers drops these records. A context variable, which
a connection's tasks inherit, identifies the server. Left out: OAuth, and the older transport with
server-sent events.
"""

import abc
import logging
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import ValidationError

from envs.server_address import authorization, is_loopback
from envs.tools.error_stream import ErrorStream

SUPERVISOR = (sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")))
MAX_EVENT_BYTES = 64 << 20  # of a stream; the client has 1 MiB, and no limit for a JSON answer
SHOWN_CHARACTERS = 200
LIBRARY_LOGGERS = (
    "mcp.client.stdio",
    "client",
)  # loggers of non-JSON-RPC lines, and of JSON-RPC that is not MCP
logger = logging.getLogger(__name__)
_warned: set[str] = set()  # servers by command, because each episode starts one


class LinesOutsideProtocol:
    """Lines of one server that are not MCP."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.lines = 0

    def watch(self) -> None:
        """Count the lines of the calling task and of tasks that it starts later."""
        _counting.set(self)

    def sentence(self) -> str:
        """Sentence for an error message about the server; empty without such lines."""
        return (
            f" It wrote {self.lines} lines to its standard output that are not MCP."
            if self.lines
            else ""
        )

    def add(self, line: str) -> None:
        """Count one line; warn at the server's first."""
        self.lines += 1
        if self._server not in _warned:
            _warned.add(self._server)
            logger.warning(
                "The MCP server %r writes lines to its standard output that are not MCP, first: "
                "%s. They are ignored, and further lines are not shown. A server must log to its "
                "standard error.",
                self._server,
                line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…",
            )


_counting: ContextVar[LinesOutsideProtocol | None] = ContextVar("counting", default=None)


def _is_something_else(record: logging.LogRecord) -> bool:
    """Logging filter: counts and drops the library's records of such lines."""
    error = record.exc_info[1] if record.exc_info else None
    counting = _counting.get()
    if counting is None or not isinstance(error, ValidationError):
        return True
    counting.add(repr(error.errors()[0]["input"]))
    return False


for _name in LIBRARY_LOGGERS:
    logging.getLogger(_name).addFilter(_is_something_else)


class McpTransport(abc.ABC):
    """Transport of one connection to its server."""

    @abc.abstractmethod
    def streams(self) -> AbstractAsyncContextManager[Any]:
        """Connect; the context holds the streams of `mcp.Client`."""

    @abc.abstractmethod
    def said(self) -> str:
        """Sentences from the server's standard error, for an error message; may be empty."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the transport's resources, after the context."""


@dataclass(frozen=True)
class Process:
    """A server process that each connection starts, with its children (`envs.tools.supervisor`)."""

    command: str
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    # how it failed, and what siirl does with it
    absent: ClassVar[str] = "did not start"
    stopped: ClassVar[str] = "its server was stopped"
    again: ClassVar[str] = "it restarts with the next call"

    def __str__(self) -> str:
        return " ".join([self.command, *self.args])

    def end(self, reported: str) -> str:
        """Tell the model how a connection ended; the client reports `reported`."""
        return f"its server died; {self.again}"

    def transport(self) -> McpTransport:
        """A transport that starts the server."""
        supervisor, *supervised = [*SUPERVISOR, self.command, *self.args]
        parameters = StdioServerParameters(
            command=supervisor,
            args=supervised,
            env=dict(self.env),
            cwd=self.cwd,
            encoding_error_handler="replace",
        )
        return _StdioTransport(parameters, LinesOutsideProtocol(str(self)))


@dataclass(frozen=True)
class Address:
    """A server that runs elsewhere; each connection is a session."""

    url: str
    token: str | None
    absent: ClassVar[str] = "gave no session"
    stopped: ClassVar[str] = "the session was closed"
    again: ClassVar[str] = "the next call connects again"

    def __str__(self) -> str:
        return self.url

    def end(self, reported: str) -> str:
        """Tell the model how a connection ended; the client reports `reported`."""
        cause = (
            f"its result exceeds {MAX_EVENT_BYTES >> 20} MiB"
            if str(MAX_EVENT_BYTES) in reported
            else f"the connection to its server ended ({reported})"
        )
        return f"{cause}; {self.again}"

    def transport(self) -> McpTransport:
        """A transport to the server."""
        return _HttpTransport(self)


class _StdioTransport(McpTransport):
    def __init__(self, parameters: StdioServerParameters, garbage: LinesOutsideProtocol) -> None:
        self._parameters, self._garbage = parameters, garbage
        self._errors = ErrorStream()  # until `close`

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Any, None]:
        self._garbage.watch()
        async with stdio_client(self._parameters, errlog=self._errors.write_end) as streams:
            self._errors.write_end.close()  # the server has inherited it
            yield streams

    def said(self) -> str:
        said = self._errors.tail()
        end = (
            f"The end of its standard error:\n{said}"
            if said
            else "It wrote nothing to its standard error."
        )
        return f"{self._garbage.sentence()} {end}"

    def close(self) -> None:
        self._errors.close()


class _HttpTransport(McpTransport):
    def __init__(self, address: Address) -> None:
        self._address = address

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Any, None]:
        url = self._address.url
        async with (
            httpx2.AsyncClient(
                headers=authorization(self._address.token),
                timeout=None,  # every call has the toolset's deadline
                trust_env=not is_loopback(url),
            ) as client,
            streamable_http_client(
                url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES
            ) as streams,
        ):
            yield streams

    def said(self) -> str:
        return " Check that it runs, and its url and token_file in env.kwargs.tools."

    def close(self) -> None:
        return
