"""The MCP servers at addresses that a configuration names, and whether they list their tools."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from envs.mistakes import one_line
from envs.server_address import is_loopback


def servers_at_addresses(tools: object) -> list[Mapping[str, Any]]:
    """Settings (`envs.tools.mcp_server.MCPTools`) of the servers of `tools`
    (`envs.tools.named_tools`) that have a url, in order and without repetitions.
    """
    entries: Sequence[Any] = tools if isinstance(tools, Sequence) else ()
    servers = [entry.get("mcp") for entry in entries if isinstance(entry, Mapping)]
    found: list[Mapping[str, Any]] = []
    for server in servers:
        if (
            isinstance(server, Mapping)
            and isinstance(server.get("url"), str)
            and server not in found
        ):
            found.append(server)
    return found


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


def why_no_tools(server: Mapping[str, Any], *, within_s: float) -> str | None:
    """List the tools once, as each environment does; the sentences why that failed, or None: it
    lists them, or does not answer in time.

    Args:
        server: Settings of `envs.tools.mcp_server.MCPTools` with a url; its token is sent.
        within_s: Deadline in seconds, if that of the settings is not shorter.
    """
    from envs.tools.mcp_server import MCPTools  # takes a second to import
    from envs.tools.toolset import ToolsMissing

    async def ask() -> str | None:
        tools = MCPTools(**server)
        tools.start_deadline_s = min(tools.start_deadline_s, within_s)
        try:
            await tools.descriptions()
        except ToolsMissing as error:
            return None if isinstance(error.__cause__, TimeoutError) else str(error)
        finally:
            await tools.close()
        return None

    return asyncio.run(ask())
