"""An MCP server over streamable HTTP with one tool, for `env=tools`.

    python own_mcp_server.py 8200

It needs the package mcp 2 (`FastMCP` of version 1 is `MCPServer` there), which siirl installs.
"""

import sys

from mcp.server import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
