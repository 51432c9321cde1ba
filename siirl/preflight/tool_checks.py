"""Check of tools behind MCP servers at addresses: a job without its server would fail at every
episode.
"""

from collections.abc import Iterator

from siirl.errors import ConfigError
from siirl.params.env_args import EnvArguments

CONNECTED_WITHIN_S = 2.0


def tool_server_problems(env: EnvArguments) -> Iterator[ConfigError]:
    """MCP servers of `env.kwargs.tools` at which nothing listens."""
    if "tools" not in env.kwargs:
        return
    from envs.tools.server_urls import server_urls, why_unreachable  # imports an HTTP client

    for url in server_urls(env.kwargs["tools"]):
        reason = why_unreachable(url, within_s=CONNECTED_WITHIN_S)
        if reason is not None:
            yield ConfigError(
                f"env.kwargs.tools: no MCP server can be reached at {url} ({reason}): start it "
                "first, or correct the address."
            )
