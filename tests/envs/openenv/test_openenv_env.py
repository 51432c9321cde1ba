"""`env=openenv` as text: its turns, rewards, success and tools, against a server with scripted
answers.
"""

import asyncio
import json
from typing import Any

import pytest

from envs.base import EpisodeFailed
from envs.checker import check_env
from envs.openenv.openenv_env import OpenEnvEnv
from tests.envs.openenv.echo_server import (
    NO_TOOLS,
    Echo,
    Message,
    after_reset,
    failure_of,
    first_step,
)
from tests.envs.openenv.scripted_server import ScriptedServer, observed

CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
TOOLS = {
    "type": "mcp",
    "data": {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "add", "inputSchema": {}}]}},
}


def test_the_environment_keeps_the_contract() -> None:
    with ScriptedServer(Echo()) as server:
        check_env(OpenEnvEnv(url=server.url), seed=3)


def test_a_text_is_the_only_field_of_the_action_and_an_observation_the_next_message() -> None:
    async def play(url: str) -> list[Any]:
        env = OpenEnvEnv(url=url)
        opening, _ = await env.reset(seed=7)
        wrong = await env.step("word8")
        right = await env.step("word7")
        await env.close()
        return [opening, wrong[:4], right[:4], right[4]["success"]]

    with ScriptedServer(Echo()) as server:
        played = asyncio.run(play(server.url))
    assert played == [
        {"messages": [{"role": "user", "content": "Repeat word7."}]},
        ({"messages": [{"role": "user", "content": "no"}]}, 0.0, False, False),
        ({"messages": []}, 1.0, True, False),
        True,
    ]
    sent = [message["data"] for message in server.received if message["type"] == "step"]
    assert sent == [{"message": "word8"}, {"message": "word7"}]


def test_an_episode_of_too_many_turns_is_truncated() -> None:
    with ScriptedServer(after_reset(observed(0.5, heard="on"))) as server:
        result = asyncio.run(first_step(server, max_episode_steps=1))
    assert result[1:4] == (0.5, False, True)


def played(reward: Any, *, turns: int, episodes: int, steps: int = 1) -> list[Any]:
    """The last steps of episodes whose every reward is `reward` and that never end by themselves.

    Args:
        reward: The server's reward.
        turns: Turns after which the environment cuts an episode.
        episodes: Number of episodes.
        steps: Turns that are played in each; fewer than `turns`: the caller cuts it.
    """

    async def play(url: str) -> list[Any]:
        env = OpenEnvEnv(url=url, max_episode_steps=turns)
        results = []
        for seed in range(episodes):
            await env.reset(seed=seed)
            results.append([await env.step("x") for _ in range(steps)][-1])
        await env.close()
        return results

    with ScriptedServer(after_reset(observed(reward, heard="on"))) as server:
        return asyncio.run(play(server.url))


def noted(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the environment says in the log."""
    return [
        f"{record.levelname}: {record.message}"
        for record in caplog.records
        if record.name.startswith("envs.openenv")
    ]


def test_episodes_cut_before_any_reward_are_worth_0_and_counted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = played(None, turns=2, episodes=11, steps=2)
    assert [result[1:4] for result in results] == [(0.0, False, True)] * 11
    assert results[0][4]["verdict"] == "out of turns, no reward so far"
    first, tenth = noted(caplog)
    assert first.startswith("WARNING: The environment at http://127.0.0.1:")
    assert "gave no reward (null, which openenv-core writes for NaN too)" in first
    assert "there are 1 such" in first and "there are 10 such" in tenth


def test_an_episode_that_the_response_length_cuts_before_any_reward_is_counted_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = played(None, turns=9, episodes=2)
    assert results[0][4]["verdict"] == "goes on, no reward so far"
    (first,) = noted(caplog)
    assert "there are 1 such episodes so far" in first


def test_a_cut_episode_with_a_reward_of_0_is_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = played(0.0, turns=1, episodes=2)
    assert results[0][4]["verdict"] == "out of turns"
    assert noted(caplog) == []


def test_a_reward_of_reset_is_not_counted_and_named_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    echo = Echo()

    def answer(message: Message) -> Any:
        told = echo(message)
        if message["type"] == "reset":
            told["data"]["reward"] = 5.0
        return told

    with ScriptedServer(answer) as server:
        returns = [asyncio.run(first_step(server, "word1"))[1] for _ in range(2)]
    assert returns == [1.0, 1.0]
    (warning,) = noted(caplog)
    assert "sends a reward with reset, where no action earned it" in warning


@pytest.mark.parametrize("reward", [0.0, None, False])
def test_a_reset_without_a_reward_needs_no_note(
    reward: Any, caplog: pytest.LogCaptureFixture
) -> None:
    opening = observed(reward, heard="hello")
    with ScriptedServer(lambda message: opening if message["type"] == "reset" else NO_TOOLS) as (
        server
    ):
        asyncio.run(OpenEnvEnv(url=server.url).reset(seed=1))
    assert noted(caplog) == []


@pytest.mark.parametrize(("reward", "counted"), [(True, 1.0), (False, 0.0)])
def test_a_reward_that_is_true_or_false_is_1_or_0(reward: bool, counted: float) -> None:
    with ScriptedServer(after_reset(observed(reward, done=True))) as server:
        result = asyncio.run(first_step(server))
    assert (result[1], type(result[1])) == (counted, float)


def test_instructions_come_before_the_first_observation() -> None:
    async def opening(url: str) -> Any:
        env = OpenEnvEnv(url=url, instructions="Be brief.")
        try:
            return (await env.reset(seed=1))[0]["messages"]
        finally:
            await env.close()

    with ScriptedServer(Echo()) as server:
        messages = asyncio.run(opening(server.url))
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Repeat word1."},
    ]


def test_a_long_observation_is_cut_with_a_note() -> None:
    with ScriptedServer(after_reset(observed(0.0, heard="x" * (10 << 20)))) as server:
        result = asyncio.run(first_step(server, max_observation_characters=3))
    assert result[0]["messages"][0]["content"] == f"xxx… ({(10 << 20) - 3} more characters)"


def test_several_fields_are_one_line_of_json_without_the_empty_ones() -> None:
    with ScriptedServer(after_reset(observed(0.0, out="1", err="", code=0, metadata={}))) as server:
        result = asyncio.run(first_step(server))
    assert json.loads(result[0]["messages"][0]["content"]) == {"out": "1", "code": 0}


def test_an_action_of_several_fields_is_a_json_object_of_the_model() -> None:
    schema = {"properties": {"row": {"type": "integer"}, "column": {"type": "integer"}}}
    with ScriptedServer(after_reset(observed(1.0, done=True)), action_schema=schema) as server:
        asyncio.run(first_step(server, '{"row": 1, "column": 2}'))
    assert server.received[-2]["data"] == {"row": 1, "column": 2}


@pytest.mark.parametrize("text", ["row 1", "[1]"])
def test_a_text_that_is_not_an_action_is_an_error_that_the_model_reads(text: str) -> None:
    schema = {"properties": {"row": {"type": "integer"}, "column": {"type": "integer"}}}
    with ScriptedServer(Echo(), action_schema=schema) as server:
        result = asyncio.run(first_step(server, text))
    assert result[0]["messages"][0]["content"].startswith("Error: the action")
    assert result[1:4] == (0.0, False, False)


def test_calls_are_steps_and_a_text_without_one_ends_an_environment_of_tools() -> None:
    echo = Echo()

    def answer(message: Message) -> Any:
        match message:
            case {"type": "mcp"}:
                return TOOLS
            case {"type": "step", "data": {"type": "call_tool"}}:
                return observed(0.25, tool_name="add", result={"content": [{"text": "5"}]})
        return echo(message)

    async def play(url: str) -> Any:
        env = OpenEnvEnv(url=url)
        await env.reset(seed=1)
        called, final = await env.step(CALL * 2), await env.step("5")
        await env.close()
        return called, final

    with ScriptedServer(answer, action_schema={"properties": {"tool_name": {}}}) as server:
        called, final = asyncio.run(play(server.url))
    assert called[0]["messages"] == [{"role": "tool", "content": "5"}] * 2
    assert (called[1], final[1:4]) == (0.5, (0.0, True, False))
    assert server.received[2]["data"] == {
        "type": "call_tool",
        "tool_name": "add",
        "arguments": {"a": 2},
    }


@pytest.mark.parametrize("schema", [{}, {"properties": {}}])
def test_a_schema_without_fields_needs_tools_or_the_name_of_a_field(schema: Message) -> None:
    with ScriptedServer(Echo(), action_schema=schema) as server:
        with pytest.raises(EpisodeFailed, match=r"neither tools nor .*env\.kwargs\.action_field"):
            asyncio.run(first_step(server, "word1"))
        assert asyncio.run(first_step(server, "word1", action_field="message"))[1] == 1.0


FIELDS = {"properties": {"done": {}, "heard": {}, "length": {}}}


def test_a_field_that_observations_lack_is_refused_by_the_constructor_with_the_nearest() -> None:
    closed = {**FIELDS, "additionalProperties": False}
    with (
        ScriptedServer(Echo(), observation_schema=closed) as server,
        pytest.raises(
            ValueError,
            match=r"observation_field=herd is not .* Did you mean 'heard'\? Known: heard, length\.",
        ),
    ):
        OpenEnvEnv(url=server.url, observation_field="herd")


@pytest.mark.parametrize("schema", [None, 5, FIELDS, {"additionalProperties": False}])
def test_without_a_closed_schema_of_observations_the_first_one_shows_their_fields(
    schema: Any,
) -> None:
    with (
        ScriptedServer(Echo(), observation_schema=schema) as server,
        pytest.raises(ValueError, match=r"has no field 'herd' .*; it has: heard"),
    ):
        asyncio.run(first_step(server, observation_field="herd"))


def test_the_schema_of_a_tools_result_is_not_that_of_the_first_observation() -> None:
    result = {"properties": {"tool_name": {}}, "additionalProperties": False}
    call = {"properties": {"tool_name": {}}}
    with ScriptedServer(Echo(), action_schema=call, observation_schema=result) as server:
        OpenEnvEnv(url=server.url, observation_field="heard")


@pytest.mark.parametrize("tools", [None, 5, {"add": {}}])
def test_a_list_of_tools_that_is_none_fails_the_episode(tools: Any) -> None:
    def answer(message: Message) -> Any:
        if message["type"] == "mcp":
            return {"type": "mcp", "data": {"result": {"tools": tools}}}
        return observed(heard="hello")

    with (
        ScriptedServer(answer) as server,
        pytest.raises(EpisodeFailed, match=r"lists .* as its tools"),
    ):
        asyncio.run(first_step(server, "x"))


def test_a_schema_whose_required_fields_are_not_a_list_is_read_without_them() -> None:
    schema = {"properties": {"row": {"type": "string"}, "why": {"type": "string"}}, "required": 5}
    with ScriptedServer(after_reset(observed(1.0, done=True)), action_schema=schema) as server:
        asyncio.run(first_step(server, '{"row": "a", "why": "b"}'))
    assert server.received[-2]["data"] == {"row": "a", "why": "b"}


def ending(success: Any) -> Message:
    """The last answer of an episode with the return 1, which succeeds by `success_return`."""
    return observed(1.0, done=True, success=success)


@pytest.mark.parametrize("success", ["no", "false", 0.5, 2, [False], {}])
def test_a_success_that_is_neither_true_nor_false_fails_the_episode(success: Any) -> None:
    text = failure_of(ending(success))
    assert f"success={success!r}, which must be true or false: correct the server" in text


@pytest.mark.parametrize(
    ("success", "found"), [(False, False), (0, False), (1, True), (True, True), (None, True)]
)
def test_the_servers_success_counts_and_null_leaves_it_to_the_return(
    success: Any, found: bool
) -> None:
    with ScriptedServer(after_reset(ending(success))) as server:
        assert asyncio.run(first_step(server))[4]["success"] is found


def test_a_success_of_tools_that_is_neither_true_nor_false_fails_the_episode() -> None:
    def answer(message: Message) -> Any:
        return TOOLS if message["type"] == "mcp" else Echo(lambda _: ending("no"))(message)

    with (
        ScriptedServer(answer, action_schema={"properties": {"tool_name": {}}}) as server,
        pytest.raises(EpisodeFailed, match="success='no', which must be true or false"),
    ):
        asyncio.run(first_step(server, CALL))
