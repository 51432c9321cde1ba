"""`env=openenv` as text: against a server with scripted answers."""

import asyncio
import json
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection, serve

from envs.base import EpisodeFailed
from envs.checker import check_env
from envs.openenv.openenv_env import OpenEnvEnv
from envs.openenv.session import NoSession, Session, SessionFault
from siirl.env_server.server import RaisedError
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config
from siirl.preflight.environment_checks import environment_problems
from tests.envs.openenv.scripted_server import CLOSE, ScriptedServer, Twice, error, observed

Message = dict[str, Any]
SHORT_S = 2.0  # of an answer that never comes; others take milliseconds
NO_TOOLS = error("UNKNOWN_TYPE", "Unknown message type: mcp")
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
TOOLS = {
    "type": "mcp",
    "data": {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "add", "inputSchema": {}}]}},
}


class Echo:
    """Shows a word; the right repetition has reward 1, the third wrong one ends the episode."""

    def __init__(self, step: Any = None) -> None:
        """`step`: answers steps instead."""
        self._step, self._word, self._left = step, "", 0

    def __call__(self, message: Message) -> Any:
        """Answer one message."""
        match message:
            case {"type": "reset", "data": data}:
                self._word, self._left = f"word{data.get('seed')}", 3
                return observed(heard=f"Repeat {self._word}.")
            case {"type": "step"} if callable(self._step):
                return self._step(message)
            case {"type": "step", "data": {"message": said}}:
                self._left -= 1
                right = said == self._word
                return observed(float(right), done=right or self._left == 0, heard="no")
            case {"type": "mcp"}:
                return NO_TOOLS
        return None


def after_reset(step: Any) -> Echo:
    """A server that begins every episode and answers every step with `step`."""
    return Echo(step if callable(step) else lambda _: step)


async def first_step(server: ScriptedServer, text: str = "x", **arguments: Any) -> Any:
    env = OpenEnvEnv(url=server.url, **arguments)
    try:
        await env.reset(seed=1)
        return await env.step(text)
    finally:
        await env.close()


def failure_of(answer: Any, **arguments: Any) -> str:
    """The error of an episode whose first step gets this answer."""
    with ScriptedServer(after_reset(answer)) as server, pytest.raises(EpisodeFailed) as failed:
        asyncio.run(first_step(server, **arguments))
    return str(failed.value).replace(server.url, "URL")


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


def test_the_token_of_a_file_is_sent_with_every_request(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("secret\n")
    with ScriptedServer(Echo()) as server:
        asyncio.run(first_step(server, token_file=str(tmp_path / "token")))
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer secret"] * 2


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (CLOSE, "The server at URL went away during 'step'"),
        (None, "The server at URL did not answer 'step' within 2 s"),
        (observed("much"), "reward is 'much' instead of a finite number or null"),
        (observed(10**400), "instead of a finite number or null"),
        (observed(1e300), "instead of a finite number or null (at most 1e+15 in size)"),
        (observed(1.0, done="yes"), "done is 'yes' instead of true or false"),
        ({"type": "observation", "data": {}}, "observation is None instead of an object"),
        ({"type": "result", "data": {}}, "instead of {type: 'observation', data: {…}}"),
        ("hello", "'hello', which is not JSON"),
        ("[" * 100_000, "JSON that nests too deep"),
        (b"12", "2 bytes, not text"),
        ('{"type": "observation", "data": {"reward": NaN}}', "a number is NaN"),
        (
            '{"type": "observation", "data": {"observation": {"x": 1e999}, "reward": 0, '
            '"done": false}}',
            "a number is 1e999",
        ),
        (observed(None, done=True), "ended an episode without a reward"),
        (error("EXECUTION_ERROR", "it broke\nhere"), "it broke here (EXECUTION_ERROR)"),
        ("x" * (3 << 20), "answered 'step' with more than 2 MiB (env.kwargs.max_message_mib)"),
    ],
)
def test_a_faulty_answer_fails_the_episode_with_one_sentence(answer: Any, sentence: str) -> None:
    deadline = {} if answer is not None else {"deadline_s": SHORT_S}
    text = failure_of(answer, max_message_mib=2, **deadline)
    assert sentence in text and "\n" not in text


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


def test_a_late_answer_does_not_reach_the_next_episode() -> None:
    steps = []

    def late(message: Message) -> Message | None:
        steps.append(message)
        return None if len(steps) == 1 else observed(0.75, done=True)

    async def play(url: str) -> float:
        env = OpenEnvEnv(url=url, deadline_s=SHORT_S)
        await env.reset(seed=1)
        with pytest.raises(EpisodeFailed):
            await env.step("x")
        await env.reset(seed=2)
        reward = (await env.step("x"))[1]
        await env.close()
        return float(reward)

    with ScriptedServer(after_reset(late)) as server:
        assert asyncio.run(play(server.url)) == 0.75
        assert server.connections == 2


def test_a_second_answer_ends_the_episode_instead_of_answering_the_next_step() -> None:
    async def play(url: str) -> list[float]:
        env = OpenEnvEnv(url=url)
        rewards = []
        for seed in range(2):
            await env.reset(seed=seed)
            rewards.append((await env.step("x"))[1])
            await asyncio.sleep(0.2)  # the policy computes
            with pytest.raises(EpisodeFailed, match=r"nobody asked for.*EXTRA"):
                await env.step("y")
        await env.close()
        return rewards

    twice = Twice(observed(0.0, heard="ONE"), observed(1.0, done=True, heard="EXTRA"))
    with ScriptedServer(after_reset(twice)) as server:
        assert asyncio.run(play(server.url)) == [0.0, 0.0]
        assert server.connections == 2


def test_a_second_answer_to_the_last_step_does_not_open_the_next_episode() -> None:
    async def play(url: str) -> None:
        env = OpenEnvEnv(url=url)
        try:
            await env.reset(seed=1)
            await env.step("x")
            await asyncio.sleep(0.2)
            await env.reset(seed=2)
        finally:
            await env.close()

    twice = Twice(observed(0.0, done=True, heard="ONE"), observed(heard="EXTRA"))
    with (
        ScriptedServer(after_reset(twice)) as server,
        pytest.raises(EpisodeFailed, match="a message that nobody asked for, before 'reset'"),
    ):
        asyncio.run(play(server.url))


def test_a_server_that_comes_back_gets_the_next_episode() -> None:
    async def play(server: ScriptedServer) -> Any:
        env = OpenEnvEnv(url=server.url)
        await env.reset(seed=1)
        port = server.port
        await asyncio.to_thread(server.stop)
        with pytest.raises(EpisodeFailed, match="went away during 'step'"):
            await env.step("word1")
        reset = asyncio.ensure_future(env.reset(seed=2))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start, port=port)
        await reset
        result = await env.step("word2")
        await env.close()
        return result

    with ScriptedServer(Echo()) as server:
        assert asyncio.run(play(server))[1] == 1.0


def test_pings_are_answered_while_the_environment_waits_for_the_policy() -> None:
    """Its loop stands still meanwhile; uvicorn closes a connection that is silent for 40 s."""
    with ScriptedServer(Echo()) as server, asyncio.Runner() as runner:
        env = OpenEnvEnv(url=server.url)
        runner.run(env.reset(seed=1))
        server.ping()
        assert runner.run(env.step("word1"))[1] == 1.0
        runner.run(env.close())


def test_reset_waits_for_a_free_session() -> None:
    refusals, echo = [error("CAPACITY_REACHED", "no free session")] * 2, Echo()

    def answer(message: Message) -> Any:
        return refusals.pop() if refusals and message["type"] == "reset" else echo(message)

    with ScriptedServer(answer) as server:
        assert asyncio.run(first_step(server, "word1"))[1] == 1.0
    assert refusals == []


def test_a_server_without_a_free_session_names_the_remedy() -> None:
    def full(message: Message) -> Message:
        return error("CAPACITY_REACHED", "no free session")

    with (
        ScriptedServer(full) as server,
        pytest.raises(EpisodeFailed, match=r"no free session.*or env\.envs_per_server"),
    ):
        asyncio.run(first_step(server, connect_deadline_s=SHORT_S))


class LateSession(Session):
    """Sends its first message when the server has left."""

    async def _connect(self) -> ClientConnection:
        connection = await super()._connect()
        await connection.wait_closed()
        return connection


def test_a_server_that_refuses_before_it_is_asked_gives_its_reason() -> None:
    """openenv-core's server closes a connection without a session at once, after the error."""

    async def refuse(connection: ServerConnection) -> None:
        await connection.send(json.dumps(error("CAPACITY_REACHED", "no free session")))
        await connection.close(1013)

    async def reset() -> None:
        async with serve(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            session = LateSession(
                f"http://127.0.0.1:{port}",
                token=None,
                deadline_s=60.0,
                connect_deadline_s=0.0,
                max_message_bytes=1 << 20,
            )
            await session._reset({})

    with pytest.raises(NoSession, match="no free session"):
        asyncio.run(reset())


def test_a_fault_of_a_replayable_environment_is_one_of_the_server_without_a_traceback() -> None:
    with ScriptedServer(after_reset(CLOSE)) as server, pytest.raises(SessionFault) as fault:
        asyncio.run(first_step(server, replayable=True))
    assert RaisedError.of(fault.value).trace == ""
    assert RaisedError.of(fault.value).summary.endswith("went away during 'step'")


def test_an_environment_without_a_server_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"No OpenEnv server can be reached.*start it first"):
        OpenEnvEnv(url="http://127.0.0.1:9")


def test_a_server_that_sends_its_schema_byte_by_byte_is_refused_in_time() -> None:
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            client.recv(4096)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
            while not stop.wait(0.1):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        rescue = threading.Timer(30.0, stop.set)
        rescue.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ValueError, match=r"did not send /schema within 0\.5 s"):
            OpenEnvEnv(url=url, connect_deadline_s=0.5)
        rescue.cancel()
        in_time = not stop.is_set()
        stop.set()
        thread.join()
    assert in_time


@pytest.mark.parametrize(
    ("kwargs", "refused"),
    [
        ("{deadline_s: 50}", "may take 71 s"),
        ("{deadline_s: 100000}", "may take 100021 s"),
        ("{deadline_s: 39}", None),
    ],
)
def test_a_plan_refuses_deadlines_after_which_the_whole_environment_server_is_replaced(
    kwargs: str, refused: str | None
) -> None:
    with ScriptedServer(Echo()) as server:
        config = parse_config(
            ["pipeline=grpo", "env=openenv", f"env.url={server.url}", f"env.kwargs={kwargs}"]
        )
        problems = [
            str(problem)
            for problem in environment_problems(config, describe_env(config))
            if "env.deadline_s" in str(problem)
        ]
    assert len(problems) == (refused is not None)
    for problem in problems:
        assert "env.deadline_s=60 replaces a server" in problem and str(refused) in problem
        assert "env.kwargs.deadline_s, env.kwargs.connect_deadline_s" in problem


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (HTTPStatus.UNAUTHORIZED, "refuses the token .status 401.: set env.kwargs.token_file"),
        (HTTPStatus.FOUND, "is not an OpenEnv server.*answers with status 302"),
        (HTTPStatus.NOT_FOUND, "publishes no action schema.*env.kwargs.action_field"),
    ],
)
def test_a_server_that_gives_no_schema_is_refused(status: HTTPStatus, sentence: str) -> None:
    with (
        ScriptedServer(Echo(), schema_status=status) as server,
        pytest.raises(ValueError, match=sentence),
    ):
        OpenEnvEnv(url=server.url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (None, "must be the address of an OpenEnv server"),
        ("127.0.0.1:8000", "must be the address of an OpenEnv server"),
        ("http://user:secret@127.0.0.1:8000", "put the token into a file"),
    ],
)
def test_an_invalid_address_is_refused(url: str | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        OpenEnvEnv(url=url)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "abc", 1e30, None])
def test_a_return_that_no_episode_can_compare_with_is_refused_by_its_key(value: Any) -> None:
    with (
        ScriptedServer(Echo()) as server,
        pytest.raises(ValueError, match=r"env\.kwargs\.success_return=.* must be a finite number"),
    ):
        OpenEnvEnv(url=server.url, success_return=value)


def test_an_unknown_field_of_the_action_is_refused_with_the_known_ones() -> None:
    with ScriptedServer(Echo()) as server, pytest.raises(ValueError, match="known: message"):
        OpenEnvEnv(url=server.url, action_field="text")


class DeafSocket:
    """A connection whose server takes nothing any more."""

    def __init__(self) -> None:
        self.transport = self
        self.asked, self.aborted = asyncio.Event(), False

    async def send(self, text: str) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    def abort(self) -> None:
        self.aborted = True


def test_a_farewell_that_is_cancelled_leaves_no_connection() -> None:
    async def run() -> bool:
        session = Session(
            "http://127.0.0.1:1",
            token=None,
            deadline_s=60.0,
            connect_deadline_s=60.0,
            max_message_bytes=1,
        )
        socket = DeafSocket()
        session._socket = cast(Any, socket)
        closing = asyncio.ensure_future(session._close())
        await socket.asked.wait()
        closing.cancel()
        await asyncio.wait({closing})
        return socket.aborted

    assert asyncio.run(run())
