"""MCP servers at addresses are tried once before anything starts."""

import socket
import time

import pytest

from siirl.errors import ConfigError
from siirl.params.parser import parse_config
from siirl.preflight.early_checks import check_early
from siirl.preflight.tool_checks import tool_server_problems
from tests.envs.tools.http_server import PlainHttpServer


def problems(tools: str) -> list[str]:
    config = parse_config(["pipeline=grpo", "env=tools", f"env.kwargs.tools={tools}"])
    return [str(error) for error in tool_server_problems(config.env)]


def test_an_absent_server_is_refused_at_once_with_its_address_and_the_remedy() -> None:
    with PlainHttpServer() as server:
        url = server.url
    begin = time.monotonic()
    config = parse_config(
        ["pipeline=grpo", "env=tools", f"env.kwargs.tools=[{{mcp: {{url: '{url}'}}}}]"]
    )
    with pytest.raises(
        ConfigError, match=rf"no MCP server can be reached at {url} \(.+\): start it first, or"
    ):
        check_early(config)
    assert time.monotonic() - begin < 60.0


@pytest.mark.parametrize("token", [None, "secret"])
def test_a_server_that_listens_is_accepted_and_gets_no_token(token: str | None) -> None:
    with PlainHttpServer(token=token) as server:
        assert problems(f"[{{mcp: {{url: '{server.url}'}}}}]") == []
    assert server.sessions == 0


def test_a_server_that_accepts_and_says_nothing_is_left_to_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert problems(f"[{{mcp: {{url: 'http://127.0.0.1:{port}/mcp'}}}}]") == []


def test_each_absent_server_is_named_once_and_programs_are_not_started() -> None:
    with PlainHttpServer() as server:
        pass
    at = f"{{mcp: {{url: '{server.url}'}}}}"
    [problem] = problems(f"['a:b', {at}, {at}, {{mcp: {{command: nothing}}}}, {{program: 'a:b'}}]")
    assert server.url in problem
