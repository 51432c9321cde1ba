"""The MCP servers at addresses that a configuration names, and whether they are there.

Left out: the MCP handshake, which each episode performs (`envs.tools.mcp_server`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from envs.mistakes import one_line
from envs.server_address import is_loopback


def server_urls(tools: object) -> list[str]:
    """Addresses of `tools` (`envs.tools.named_tools`), in order and without repetitions."""
    entries: Sequence[Any] = tools if isinstance(tools, Sequence) else ()
    servers = [entry.get("mcp") for entry in entries if isinstance(entry, Mapping)]
    urls = [server.get("url") for server in servers if isinstance(server, Mapping)]
    return list(dict.fromkeys(url for url in urls if isinstance(url, str)))


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
