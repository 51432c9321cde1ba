"""The MCP servers that a configuration names, and the tools that they list."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from envs.mistakes import one_line
from envs.server_address import is_loopback
from envs.tools.toolset import ToolsMissing


def mcp_servers(tools: object) -> list[Mapping[str, Any]]:
    """Settings (`envs.tools.mcp_server.MCPTools`) of the servers of `tools`
    (`envs.tools.named_tools`) that have a url or a program, in order.
    """
    entries: Sequence[Any] = tools if isinstance(tools, Sequence) else ()
    servers = [entry.get("mcp") for entry in entries if isinstance(entry, Mapping)]
    return [
        server
        for server in servers
        if isinstance(server, Mapping) and isinstance(server.get("url", server.get("command")), str)
    ]


def why_unreachable(url: str, *, within_s: float) -> str | None:
    """Try to connect once; the reason why it failed, or None: something listens at `url`.

    Args:
        url: Address of the server; no token is sent.
        within_s: Deadline in seconds.
    """
    try:
        with httpx2.Client(timeout=within_s, trust_env=not is_loopback(url)) as client:
            client.head(url)
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL) as error:
        return one_line(error) or f"no connection within {within_s:g} s"
    except httpx2.HTTPError:  # it listens, but does not answer this request
        return None
    return None


def listed_tools(server: Mapping[str, Any], *, within_s: float) -> list[str]:
    """List the tools once, as each environment does; their names, none if it does not answer in
    time. A program is started for it and ended.

    Args:
        server: Settings of `envs.tools.mcp_server.MCPTools`; the token of a url is sent.
        within_s: Deadline in seconds, if that of the settings is not shorter.

    Raises:
        ToolsMissing: The server does not list its tools.
    """
    from envs.tools.mcp_server import MCPTools  # takes a second to import

    async def ask() -> list[str]:
        tools = MCPTools(**server)
        tools.start_deadline_s = min(tools.start_deadline_s, within_s)
        try:
            return [description.name for description in await tools.descriptions()]
        except ToolsMissing as error:
            if isinstance(error.__cause__, TimeoutError):
                return []
            raise
        finally:
            await tools.close()

    return asyncio.run(ask())
