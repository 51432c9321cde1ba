"""Tools of a real MCP server process over its standard streams, also one that dies, hangs and talks nonsense."""

import asyncio
import sys

import pytest

from envs.tools.mcp_server import MCPTools
from envs.tools.toolset import ToolError


def with_tools(play, server, **settings):
    """Run `play(tools)`, and close the tools."""

    async def run():
        tools = MCPTools(**server, start_deadline_s=250.0, **{"deadline_s": 60.0} | settings)
        try:
            return await play(tools)
        finally:
            await tools.close()

    return asyncio.run(run())


async def told(tools, name, **arguments):
    """What the model reads."""
    try:
        return await tools.call(name, arguments)
    except ToolError as error:
        return f"Error: {error}"


def test_tools_are_described_and_called_and_their_errors_told(notes_server):
    async def play(tools):
        first = (await tools.descriptions())[0]
        answers = [await told(tools, "remember", note="a"), await told(tools, "remember", note="b")]
        return first, answers, await told(tools, "remember"), await told(tools, "fail", reason="x"), await told(tools, "no_such")

    first, answers, missing, failed, unknown = with_tools(play, notes_server)
    assert (first.name, first.description) == ("remember", "Keep a note, and tell how many there are.")
    assert first.parameters["required"] == ["note"]
    assert answers == ["1 notes", "2 notes"]
    assert missing.startswith("Error: ") and "Field required" in missing
    assert failed == "Error: Error executing tool fail"
    assert unknown == "Error: Unknown tool: no_such"


@pytest.mark.parametrize("way", ["die", "babble"])
def test_server_that_dies_in_mid_call_is_told_and_starts_anew(notes_server, way):
    async def play(tools):
        return [await told(tools, "remember", note="a"), await told(tools, way), await told(tools, "remember", note="b")]

    assert with_tools(play, notes_server) == ["1 notes", "Error: its server died; it starts anew with the next call", "1 notes"]


def test_server_that_hangs_is_cut_off(notes_server):
    async def play(tools):
        await tools.descriptions()
        return await told(tools, "hang")

    answer = with_tools(play, notes_server, deadline_s=0.5)
    assert answer == "Error: no answer within 0.5 s; its server was stopped, and starts anew with the next call"


@pytest.mark.parametrize(("fresh", "answers"), [(True, ["1 notes", "1 notes"]), (False, ["1 notes", "2 notes"])])
def test_episodes_share_nothing_unless_asked_to(notes_server, fresh, answers):
    async def play(tools):
        found = []
        for _ in range(2):
            await tools.start_episode()
            found.append(await told(tools, "remember", note="a"))
        return found

    assert with_tools(play, notes_server, fresh=fresh) == answers


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["no-such-command"], "'no-such-command' did not start: FileNotFoundError"),
        ([sys.executable, "-c", "1"], "did not start: .*Connection closed"),
        ([sys.executable, "-c", "import time; time.sleep(100)"], r"did not start: TimeoutError: no word from it within 1 s"),
    ],
)
def test_server_that_does_not_start_is_a_fault_of_the_environment(command, sentence):
    async def play():
        tools = MCPTools(command=command[0], args=command[1:], start_deadline_s=1.0)
        try:
            await tools.call("any", {})
        finally:
            await tools.close()

    with pytest.raises(RuntimeError, match=sentence) as caught:
        asyncio.run(play())
    assert not isinstance(caught.value, ToolError)


def test_deadline_that_is_none_is_refused():
    with pytest.raises(ValueError, match="deadlines of 'x' must be positive"):
        MCPTools(command="x", deadline_s=0)
