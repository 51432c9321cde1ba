"""An MCP server over stdio that stores notes, and dies, hangs, fails or answers nonsense on
request.
"""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
NOTES: list[str] = []


@server.tool()
def remember(note: str) -> str:
    """Keep a note, and tell how many there are."""
    NOTES.append(note)
    return f"{len(NOTES)} notes"


@server.tool()
def fail(reason: str) -> str:
    """Raise."""
    raise LookupError(reason)


@server.tool()
def die() -> str:
    """End the server in mid-call."""
    os._exit(1)


@server.tool()
def hang() -> str:
    """Answer after ten minutes."""
    time.sleep(600)
    return "late"


@server.tool()
def babble() -> str:
    """Write something that is no JSON-RPC, and then die."""
    sys.stdout.write("no json at all\n")
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    server.run()
