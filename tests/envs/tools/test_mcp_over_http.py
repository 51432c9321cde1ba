"""Tools of an MCP server at an address, over streamable HTTP."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from envs.tools import mcp_server
from envs.tools.mcp_server import MCPTools
from envs.tools.mcp_transports import MAX_EVENT_BYTES
from envs.tools.tool_env import ToolEnv
from envs.tools.toolset import ToolError, ToolsMissing, ToolStopped
from tests.envs.tools.http_server import LONG, PlainHttpServer
from tests.listening_port import wait_for_server


def with_tools(
    play: Callable[[MCPTools], Awaitable[Any]], server: PlainHttpServer, **arguments: Any
) -> Any:
    async def run() -> Any:
        tools = MCPTools(url=server.url, **arguments)
        try:
            await tools.descriptions()
            return await play(tools)
        finally:
            await tools.close()

    return asyncio.run(run())


@pytest.mark.parametrize("streams", [False, True], ids=["JSON", "event stream"])
def test_ten_mebibytes_are_a_result(streams: bool) -> None:
    with PlainHttpServer(streams=streams) as server:
        text = with_tools(lambda tools: tools.call("long", {}), server, deadline_s=600.0)
    assert len(text) == LONG


def test_a_result_over_the_limit_of_an_event_is_an_error_at_once_that_names_the_limit() -> None:
    async def play(tools: MCPTools) -> str:
        with pytest.raises(ToolStopped, match=r"result exceeds 64 MiB; the next call connects"):
            await tools.call("long", {})
        return await tools.call("greet", {})

    with PlainHttpServer(streams=True, long=MAX_EVENT_BYTES) as server:
        assert with_tools(play, server, deadline_s=600.0) == "hello"


def test_the_token_of_a_file_is_sent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with PlainHttpServer(token="secret") as server:
        token_file = str(tmp_path / "token")
        assert with_tools(lambda tools: tools.call("greet", {}), server, token_file=token_file)
    assert server.tokens == {"Bearer secret"}


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ("fail", "it cannot"),
        (
            "wait",
            "no answer within 0.3 s; the session was closed, and the next call connects again$",
        ),
        ("nonsense", r"not an MCP result \(ValidationError\); the next call connects again$"),
    ],
)
def test_a_call_that_fails_is_an_error_for_the_model(tool: str, sentence: str) -> None:
    deadline_s = 0.3 if tool == "wait" else 600.0
    with PlainHttpServer() as server, pytest.raises(ToolError, match=sentence):
        with_tools(lambda tools: tools.call(tool, {}), server, deadline_s=deadline_s)


def test_a_server_that_went_away_is_an_error_and_one_that_came_back_is_used_again() -> None:
    async def play(tools: MCPTools) -> str:
        port = server.port
        await asyncio.to_thread(server.stop)
        with pytest.raises((ToolError, ToolsMissing)):
            await tools.call("greet", {})
        await asyncio.to_thread(server.start, port=port)
        return await tools.call("greet", {})

    with PlainHttpServer() as server:
        assert with_tools(play, server) == "hello"


def test_each_episode_that_calls_a_tool_has_its_own_session() -> None:
    async def play(tools: MCPTools) -> None:
        for _ in range(3):
            await tools.start_episode()
            await tools.call("greet", {})

    with PlainHttpServer() as server:
        with_tools(play, server)
    assert server.sessions == 3


def test_a_server_that_does_not_answer_the_end_of_a_session_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_server, "FAREWELL_S", 0.1)
    with PlainHttpServer() as server:
        server.may_leave.clear()
        rescue = threading.Timer(60.0, server.may_leave.set)
        rescue.start()
        assert with_tools(lambda tools: tools.call("greet", {}), server) == "hello"
        in_time = not server.may_leave.is_set()
        rescue.cancel()
        server.may_leave.set()
    assert in_time and server.farewells == 1


@pytest.mark.parametrize("token", [None, "secret"], ids=["no server", "no token"])
def test_a_server_that_gives_no_tools_fails_the_episode_with_its_address(token: str | None) -> None:
    with PlainHttpServer(token=token) as server:
        if token is None:
            server.stop()
        with pytest.raises(
            ToolsMissing,
            match=f"The MCP server '{server.url}' gave no session: .*Check that it runs, and its",
        ):
            with_tools(lambda tools: tools.call("greet", {}), server)
        if token is None:
            server.start(port=0)


def test_an_environment_calls_a_tool_at_an_address() -> None:
    async def play(url: str) -> Any:
        env = ToolEnv(tasks=["sums-2"], tools=[{"mcp": {"url": url}}])
        await env.reset(seed=1)
        result = await env.step('<tool_call>{"name": "greet"}</tool_call>')
        await env.close()
        return result[0]["messages"]

    with PlainHttpServer() as server:
        assert asyncio.run(play(server.url)) == [{"role": "tool", "content": "hello"}]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "either command .* or url"),
        ({"command": "a", "url": "http://a"}, "either command .* or url"),
        ({"command": "a", "token_file": "b"}, "token_file='b' is only for a server with url"),
        ({"url": "http://a", "args": ["b"]}, "args, env and cwd are for a program"),
        ({"url": "a"}, "must be the address of an MCP server"),
        ({"url": "http://a:b@c"}, "put the token into a file"),
        ({"url": "http://a", "token_file": "/nowhere"}, "cannot be read"),
    ],
    ids=str,
)
def test_contradictory_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MCPTools(**arguments)


def test_the_documents_server_adds() -> None:
    example = Path(__file__).parents[3] / "docs" / "examples" / "own_mcp_server.py"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(example), str(port)], stderr=subprocess.DEVNULL)

    async def add() -> str:
        tools = MCPTools(url=f"http://127.0.0.1:{port}/mcp", deadline_s=60.0)
        try:
            return await tools.call("add", {"a": 17, "b": 25})
        finally:
            await tools.close()

    try:
        wait_for_server(port)
        assert asyncio.run(add()) == "42"
    finally:
        server.kill()
        server.wait()
