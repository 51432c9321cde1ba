"""Environments of siirl behind `OpenEnvServer`: the same episode through env=openenv, and every
mistake of a client answered with a sentence.
"""

import asyncio
import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from envs.base import Environment, EpisodeFailed, StepResult
from envs.checker import check_env
from envs.openenv.openenv_env import OpenEnvEnv
from envs.registry import make_env
from siirl.env_server import openenv_server
from tests.env_server.openenv_thread import TOKEN, ServerThread
from tests.env_server.probe_envs import GatedEnv

BEARER = {"Authorization": f"Bearer {TOKEN}"}
CALCULATOR_CALL = (
    '<tool_call>{"name": "calculator", "arguments": {"expression": "2+3"}}</tool_call>'
)
REACHER = {"id": "Reacher-v5", "width": 48, "height": 32}
METAWORLD = {"tasks": ["button-press", "reach"], "max_episode_steps": 15, "image_size": 16}


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    (tmp_path / "token").write_text(TOKEN)
    return str(tmp_path / "token")


@pytest.fixture
def adder() -> Iterator[ServerThread]:
    with ServerThread("math", tasks=["sums-1"]) as server:
        yield server


async def episode(env: Environment, chunks: Sequence[Sequence[Any]], **options: Any) -> list[Any]:
    """All values of an episode, without the ground truth."""
    try:
        observation, info = await env.reset(seed=11, options=options)
        played: list[Any] = [(observation, info)]
        for chunk in chunks:
            played.append(await env.step_chunk(chunk))
            if played[-1][2] or played[-1][3]:
                break
        return played
    finally:
        await env.close()


def actions_of(env: Environment, *, chunks: int, chunk: int) -> list[list[Any]]:
    env.spec.action_space.seed(3)
    return [[env.spec.action_space.sample() for _ in range(chunk)] for _ in range(chunks)]


def same(left: Any, right: Any) -> bool:
    """Equality bit for bit, of types as well."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    return type(left) is type(right) and bool(left == right)


@pytest.mark.parametrize(
    ("name", "arguments", "chunks", "options"),
    [
        ("math", {"tasks": ["sums-1", "sums-2"]}, [["46"]], {"task": "sums-2"}),
        ("tools", {"tasks": ["sums-2"]}, [[CALCULATOR_CALL], ["no"]], {"split": "heldout"}),
        ("gymnasium", {"id": "CartPole-v1"}, None, {}),
        ("gymnasium", REACHER, None, {}),
        ("metaworld", METAWORLD, None, {"task": "reach"}),
    ],
    ids=["math", "tools", "CartPole", "Reacher", "Meta-World"],
)
def test_an_episode_over_the_network_is_the_same_bit_for_bit(
    name: str, arguments: dict[str, Any], chunks: Any, options: dict[str, Any], token_file: str
) -> None:
    here = make_env(name, **arguments)
    chunks = chunks or actions_of(here, chunks=4, chunk=3)
    expected = asyncio.run(episode(here, chunks, **options))
    with ServerThread(name, **arguments) as server:
        there = OpenEnvEnv(url=server.url, token_file=token_file)
        played = asyncio.run(episode(there, chunks, **options))
    assert len(played) == len(expected) > 1
    for found, wanted in zip(played, expected, strict=True):
        assert same(found[:-1], wanted[:-1])
        kept = {key: value for key, value in wanted[-1].items() if key in found[-1]}
        assert same(found[-1], kept)
        assert {"task"} <= kept.keys()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("math", {"tasks": ["sums-1", "sums-2"]}), ("gymnasium", {"id": "Pendulum-v1"})],
)
def test_a_served_environment_keeps_the_contract(
    name: str, arguments: dict[str, Any], token_file: str
) -> None:
    with ServerThread(name, **arguments) as server:
        check_env(OpenEnvEnv(url=server.url, token_file=token_file), seed=3)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("math", {"tasks": ["sums-1"]}), ("gymnasium", {"id": "CartPole-v1"})],
)
def test_a_rollout_that_asks_for_no_frames_is_served(
    name: str, arguments: dict[str, Any], token_file: str
) -> None:
    with ServerThread(name, **arguments) as server:
        env = OpenEnvEnv(url=server.url, token_file=token_file)
        task = env.spec.tasks[0]
        played = asyncio.run(episode(env, [], task=task, frames={}))
    assert played[0][1]["task"] == task


def test_some_tasks_of_a_server_can_be_chosen(token_file: str) -> None:
    with ServerThread("math", tasks=["sums-1", "sums-2"]) as server:
        env = OpenEnvEnv(url=server.url, token_file=token_file, tasks=["sums-2"])
        assert env.spec.tasks == ("sums-2",)
        with pytest.raises(ValueError, match=r"no task 'sums-3'.*Did you mean 'sums-2'"):
            OpenEnvEnv(url=server.url, token_file=token_file, tasks=["sums-3"])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("action_field", "text", "whose actions have a fixed form"),
        ("observation_field", "text", "whose observation the model reads as a whole"),
        ("instructions", "Add.", "whose observations contain the task"),
        ("max_episode_steps", 3, "which reports its own value"),
        ("replayable", False, "which reports its own value"),
    ],
)
def test_settings_for_texts_are_refused_for_an_environment_of_siirl(
    adder: ServerThread, token_file: str, name: str, value: Any, reason: str
) -> None:
    with pytest.raises(
        ValueError,
        match=f"{name}={value!r} is for other OpenEnv servers; this one is `siirl serve`, "
        f"{reason}: leave it out",
    ):
        OpenEnvEnv(url=adder.url, token_file=token_file, **{name: value})


def test_an_environment_without_the_token_is_refused(adder: ServerThread) -> None:
    with pytest.raises(ValueError, match="refuses the token"):
        OpenEnvEnv(url=adder.url)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Digest {TOKEN}"},
        {"Authorization": "Basic not-base64"},
        {"Authorization": "Bearer ü"},
    ],
    ids=lambda header: header.get("Authorization", "nothing"),
)
def test_no_session_begins_without_the_token(adder: ServerThread, header: dict[str, str]) -> None:
    async def status() -> int:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{adder.port}/ws", additional_headers=header)
        return refused.value.response.status_code

    assert asyncio.run(status()) == 401


def get(server: ServerThread, path: str, **headers: str) -> Any:
    request = urllib.request.Request(server.url + path, headers=headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_only_health_needs_no_token(adder: ServerThread) -> None:
    assert get(adder, "/health") == {"status": "healthy"}
    for path in ("/schema", "/metadata"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(adder, path)
    assert get(adder, "/metadata", **BEARER)["name"] == "math"


def test_the_token_is_also_the_password_of_basic_authentication(adder: ServerThread) -> None:
    given = base64.b64encode(f"siirl:{TOKEN}".encode()).decode()
    schema = get(adder, "/schema", Authorization=f"Basic {given}")
    assert schema["action"]["required"] == ["text"]


async def ask(socket: ClientConnection, message: Any) -> dict[str, Any]:
    await socket.send(message if isinstance(message, str) else json.dumps(message))
    answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


def conversation(server: ServerThread, *messages: Any) -> list[dict[str, Any]]:
    """The answers of one session."""

    async def talk() -> list[dict[str, Any]]:
        url = f"ws://127.0.0.1:{server.port}/ws"
        async with connect(url, additional_headers=BEARER, max_size=None) as socket:
            return [await ask(socket, message) for message in messages]

    return asyncio.run(talk())


def reset(**data: Any) -> dict[str, Any]:
    return {"type": "reset", "data": data}


def step(**data: Any) -> dict[str, Any]:
    return {"type": "step", "data": data}


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        ("{", "INVALID_JSON", "invalid JSON"),
        ("[" * 100_000, "INVALID_JSON", "invalid JSON"),
        ([1], "VALIDATION_ERROR", "a message is {type, data}"),
        ({"type": "step", "data": "5"}, "VALIDATION_ERROR", 'data must be an object, got "5"'),
        ({"type": "reset", "data": None}, "VALIDATION_ERROR", "data must be an object, got null"),
        ({"type": "state", "data": {"a": 1}}, "VALIDATION_ERROR", "state takes no data, got {"),
        (
            {**step(text="5"), "sed": None},
            "VALIDATION_ERROR",
            "Unknown field 'sed' of a message. Known: type, data.",
        ),
        ({"type": "dance"}, "UNKNOWN_TYPE", "unknown message type 'dance'"),
        (step(text=5), "VALIDATION_ERROR", "action 0 is 5 instead of text"),
        (step(word="5"), "VALIDATION_ERROR", "a step takes 'text', or 'actions'"),
        (step(actions=[]), "VALIDATION_ERROR", "a step takes 'text', or 'actions'"),
        (step(text="5", actions=["5"]), "VALIDATION_ERROR", "and not both"),
        (step(text="5", actions=7), "VALIDATION_ERROR", "and not both"),
        (step(text="5", actions=[]), "VALIDATION_ERROR", "and not both"),
        (
            step(text="5", foo=1),
            "VALIDATION_ERROR",
            "Unknown field 'foo' of a step. Known: text, actions, metadata.",
        ),
        (
            step(text="5", acions=None),
            "VALIDATION_ERROR",
            "Unknown field 'acions' of a step. Did you mean 'actions'?",
        ),
        (
            step(text="5", metadata="note"),
            "VALIDATION_ERROR",
            'metadata of a step must be an object, got "note"',
        ),
        (step(text="5", metadata=None), "VALIDATION_ERROR", "must be an object, got null"),
        (step(actions=[None]), "VALIDATION_ERROR", "action 0 is null instead of text"),
        (reset(metadata="note"), "VALIDATION_ERROR", "Unknown reset option 'metadata'."),
        (reset(episode_id=7), "VALIDATION_ERROR", "episode_id must be text, got 7"),
        (step(text=None), "VALIDATION_ERROR", "a step takes 'text', or 'actions'"),
        (reset(seed=-1), "VALIDATION_ERROR", "seed must be a whole number of 0 or more, got -1"),
        (reset(seed="a"), "VALIDATION_ERROR", 'a whole number of 0 or more, got "a"'),
        (reset(seed=1.5), "VALIDATION_ERROR", "a whole number of 0 or more, got 1.5"),
        (reset(seed=True), "VALIDATION_ERROR", "a whole number of 0 or more, got true"),
        (reset(task="sums-9"), "VALIDATION_ERROR", "Did you mean 'sums-1'?"),
        (reset(frames={}), "VALIDATION_ERROR", "siirl serve takes no option 'frames'"),
        (
            reset(level=3),
            "VALIDATION_ERROR",
            "Unknown reset option 'level'. Known: split, task.",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_message_is_answered_with_an_error_and_the_session_continues(
    adder: ServerThread, message: Any, code: str, sentence: str
) -> None:
    _, refused, state = conversation(adder, reset(seed=1), message, {"type": "state"})
    assert refused["data"]["code"] == code
    assert sentence in refused["data"]["message"] and "\n" not in refused["data"]["message"]
    assert state["data"]["seed"] == 1


def test_an_optional_field_that_is_null_is_a_missing_one_as_in_openenv_core(
    adder: ServerThread,
) -> None:
    opening, graded, state = conversation(
        adder,
        reset(seed=None, episode_id=None, task=None),
        step(text="x", actions=None, metadata={}),
        {"type": "state"},
    )
    assert opening["type"] == "observation" and graded["data"]["done"] is True
    assert state["data"]["episode_id"] is None and state["data"]["task"] == "sums-1"


def test_metadata_is_a_field_that_every_action_of_openenv_core_may_have(
    adder: ServerThread,
) -> None:
    graded = conversation(adder, reset(seed=1), step(text="x", metadata={"trace": 7}))[1]
    assert graded["data"]["done"] is True


def test_a_mistaken_step_costs_no_episode(adder: ServerThread) -> None:
    graded = conversation(adder, reset(seed=1), step(text=5), step(text="x"))[2]
    assert graded["data"]["done"] is True


@pytest.mark.parametrize("action", [[float("nan")], [3.0], [1, 2], "x", [[1e400]], [True], {}])
def test_an_action_outside_the_space_costs_no_episode(action: Any) -> None:
    with ServerThread("gymnasium", id="Pendulum-v1") as server:
        _, refused, stepped = conversation(
            server, reset(seed=1), step(action=action), step(action=[0.5])
        )
    assert refused["data"]["code"] == "VALIDATION_ERROR"
    assert stepped["type"] == "observation" and stepped["data"]["done"] is False


def test_a_message_that_is_too_long_ends_its_session_alone(adder: ServerThread) -> None:
    with pytest.raises(ConnectionClosed, match="1009"):
        conversation(adder, reset(seed=1), step(text="x" * (2 << 20)))
    assert conversation(adder, reset(seed=1))[0]["type"] == "observation"


def test_a_step_before_reset_and_after_the_end_is_an_error(adder: ServerThread) -> None:
    answers = conversation(adder, step(text="1"), reset(seed=1), step(text="1"), step(text="1"))
    assert [answer["type"] for answer in answers] == [
        "error",
        "observation",
        "observation",
        "error",
    ]
    for answer in (answers[0], answers[3]):
        assert answer["data"]["message"].endswith("call reset before step.")


def test_the_state_counts_steps_and_names_the_episode(adder: ServerThread) -> None:
    state = conversation(
        adder, reset(seed=1, episode_id="mine"), step(text="1"), {"type": "state"}
    )[2]
    assert state["data"] == {"episode_id": "mine", "step_count": 1, "seed": 1, "task": "sums-1"}


def test_the_ground_truth_stays_at_the_server(adder: ServerThread) -> None:
    opening = conversation(adder, reset(seed=1))[0]["data"]["observation"]
    assert opening["info"].keys() & {"ground_truth"} == set()


def test_sessions_have_environments_of_their_own_and_a_further_one_is_refused(
    adder: ServerThread,
) -> None:
    async def talk() -> list[Any]:
        url = f"ws://127.0.0.1:{adder.port}/ws"
        async with (
            connect(url, additional_headers=BEARER) as first,
            connect(url, additional_headers=BEARER) as second,
        ):
            answers = [await ask(first, reset(seed=1)), await ask(second, reset(seed=2))]
            async with connect(url, additional_headers=BEARER) as third:
                await asyncio.sleep(0.2)  # a client that is slower than the server
                answers.append(await ask(third, reset(seed=3)))
            answers.append(await ask(first, step(text="x")))
        async with connect(url, additional_headers=BEARER) as later:
            answers.append(await ask(later, reset(seed=3)))
        return answers

    first, second, third, graded, later = asyncio.run(talk())
    assert first["data"]["observation"] != second["data"]["observation"]
    assert (third["data"]["code"], third["data"]["max_sessions"]) == ("CAPACITY_REACHED", 2)
    assert graded["data"]["done"] is True and later["type"] == "observation"


def test_a_client_without_a_free_session_reads_the_remedy(
    adder: ServerThread, token_file: str
) -> None:
    async def play() -> None:
        arguments = {"url": adder.url, "token_file": token_file}
        envs = [OpenEnvEnv(**arguments), OpenEnvEnv(**arguments)]
        further = OpenEnvEnv(**arguments, connect_deadline_s=0.5)
        try:
            for env in envs:
                await env.reset(seed=1)
            await further.reset(seed=1)
        finally:
            for env in (*envs, further):
                await env.close()

    remedy = "all 2 sessions are in use: start siirl serve with more"
    with pytest.raises(EpisodeFailed, match=remedy):
        asyncio.run(play())


def test_a_client_that_says_nothing_is_refused_in_time(
    adder: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openenv_server, "FIRST_MESSAGE_S", 0.1)

    async def talk() -> Any:
        url = f"ws://127.0.0.1:{adder.port}/ws"
        async with (
            connect(url, additional_headers=BEARER),
            connect(url, additional_headers=BEARER),
            connect(url, additional_headers=BEARER) as third,
        ):
            return json.loads(await third.recv())

    assert asyncio.run(talk())["data"]["code"] == "CAPACITY_REACHED"


def test_a_session_without_a_seed_gets_another_question_each_time(adder: ServerThread) -> None:
    answers = conversation(adder, *[reset() for _ in range(8)])
    assert len({str(answer["data"]["observation"]["messages"]) for answer in answers}) > 1


def test_an_environment_whose_server_stops_between_two_steps_fails_with_a_sentence(
    token_file: str,
) -> None:
    async def play(env: Environment, server: ServerThread) -> None:
        await env.reset(seed=1)
        await asyncio.to_thread(server.stop)
        await env.step(0)

    with ServerThread("gymnasium", id="CartPole-v1") as server:
        env = OpenEnvEnv(url=server.url, token_file=token_file, connect_deadline_s=0.3)
        with pytest.raises((EpisodeFailed, RuntimeError), match="went away during 'step'"):
            asyncio.run(play(env, server))


def test_a_server_in_front_of_another_names_the_cause_of_a_failed_episode_once(
    token_file: str, tmp_path: Path
) -> None:
    async def play(url: str) -> None:
        env = OpenEnvEnv(url=url, token_file=token_file)
        try:
            await env.reset(seed=1)
            for _ in range(2):
                await env.step(np.zeros(1, np.float32))
        finally:
            await env.close()

    faulty = {"fault": "give_up", "ledger": str(tmp_path), "times": 99, "at_step": 2}
    with (
        ServerThread("tests.env_server.probe_envs:FaultyEnv", **faulty) as first,
        ServerThread("openenv", url=first.url, token_file=token_file) as second,
        pytest.raises(EpisodeFailed) as failed,
    ):
        asyncio.run(play(second.url))
    assert str(failed.value) == "its gripper is stuck"


def test_a_server_stops_while_a_step_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    rescue = threading.Timer(30.0, gate.touch)

    async def stop_in_mid_step(server: ServerThread) -> None:
        url = f"ws://127.0.0.1:{server.port}/ws"
        async with connect(url, additional_headers=BEARER) as client:
            await ask(client, reset(seed=1))
            await client.send(json.dumps(step(action=[1.0])))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            rescue.start()
            await asyncio.to_thread(server.stop)
            with pytest.raises(ConnectionClosed, match=r"1001 \(going away\)"):
                await client.recv()

    with ServerThread(f"{__name__}:TellingEnv", gate=str(gate)) as server:
        asyncio.run(stop_in_mid_step(server))
    in_time = not gate.exists()
    rescue.cancel()
    assert in_time and server.server.num_sessions == 0


class TellingEnv(GatedEnv):
    """Tells that a step has begun."""

    async def step(self, action: Any) -> StepResult:
        self._gate.with_name("begun").touch()
        return await super().step(action)


def test_several_agents_cannot_be_served() -> None:
    with pytest.raises(ValueError, match=r"'math' has 2 agents.*num_agents=1"):
        ServerThread("math", num_agents=2)
