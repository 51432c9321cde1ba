"""Counts lines of an MCP server's standard output that are not MCP, and warns once per server.

The client library logs each such line as an error with a traceback, and continues. A filter on its
two loggers drops these records. A context variable, inherited by a connection's tasks, identifies
the server.
"""

import logging
from contextvars import ContextVar

from pydantic import ValidationError

SHOWN_CHARACTERS = 200
LIBRARY_LOGGERS = (
    "mcp.client.stdio",
    "client",
)  # loggers of non-JSON-RPC lines, and of JSON-RPC that is no MCP

logger = logging.getLogger(__name__)
_warned: set[str] = set()  # servers by command: each episode starts one


class GarbageCount:
    """Lines of one server that are not MCP."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.lines = 0

    def watch(self) -> None:
        """Count for the calling task and the tasks that it starts later."""
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
                "%s. They are ignored, and further ones are not shown; a server must log to its "
                "standard error.",
                self._server,
                line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…",
            )


_counting: ContextVar[GarbageCount | None] = ContextVar("counting", default=None)


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
