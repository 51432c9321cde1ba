"""`env=openenv` against a server that fails, is late, full or away, and refused settings."""

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
from envs.openenv.openenv_env import OpenEnvEnv
from envs.openenv.session import NoSession, Session, SessionFault
from siirl.env_server.server import RaisedError
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config
from siirl.preflight.environment_checks import environment_problems
from tests.envs.openenv.echo_server import (
    SHORT_S,
    Echo,
    Message,
    after_reset,
    failure_of,
    first_step,
)
from tests.envs.openenv.scripted_server import CLOSE, ScriptedServer, Twice, error, observed


def test_the_token_of_a_file_is_sent_with_every_request(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("secret\n")
    with ScriptedServer(Echo()) as server:
        asyncio.run(first_step(server, token_file=str(tmp_path / "token")))
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer secret"] * 3


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
