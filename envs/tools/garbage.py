"""Counts what an MCP server writes to its standard output that is no MCP, and warns once for each
server.

The client library logs each such line as an error with a traceback, and goes on. A filter on its
two loggers takes these records away. It finds the server by a context variable, which the tasks of
a connection inherit.
"""

import logging
from contextvars import ContextVar

from pydantic import ValidationError

SHOWN_CHARACTERS = 200
LIBRARY_LOGGERS = (
    "mcp.client.stdio",
    "client",
)  # lines that are no JSON-RPC; JSON-RPC that is no MCP

logger = logging.getLogger(__name__)
_warned: set[str] = set()  # servers, by their commands: every episode starts one anew


class GarbageCount:
    """Lines of one server that are no MCP."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.lines = 0

    def watch(self) -> None:
        """Count for the calling task, and the tasks that it starts from now on."""
        _counting.set(self)

    def sentence(self) -> str:
        """What to add to a complaint about the server; empty if it wrote no such line."""
        return (
            f" It wrote {self.lines} lines to its standard output that are no MCP."
            if self.lines
            else ""
        )

    def add(self, line: str) -> None:
        """Count one, and warn of the server's first."""
        self.lines += 1
        if self._server not in _warned:
            _warned.add(self._server)
            logger.warning(
                "The MCP server %r writes to its standard output what is no MCP, first: %s. Such lines are left out, and no more of them "
                "are shown; a server logs to its standard error.",
                self._server,
                line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…",
            )


_counting: ContextVar[GarbageCount | None] = ContextVar("counting", default=None)


def _is_something_else(record: logging.LogRecord) -> bool:
    """A logging filter: False, and counted, for what the library says of garbage."""
    error, counting = record.exc_info[1] if record.exc_info else None, _counting.get()
    if counting is None or not isinstance(error, ValidationError):
        return True
    counting.add(repr(error.errors()[0]["input"]))
    return False


for _name in LIBRARY_LOGGERS:
    logging.getLogger(_name).addFilter(_is_something_else)
