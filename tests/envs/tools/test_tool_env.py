"""ToolEnv: several turns with tools; budgets hold, and an error of a call is reported to
the model.
"""

import asyncio
import json
import re
import shutil
import sys

import pytest

from envs.base import EpisodeFailed
from envs.tools.arithmetic import calculator
from envs.tools.calls import ToolCall, write_call
from envs.tools.tool_env import ToolEnv
from envs.worker_pool import WorkerSettings, lease, release
from siirl.env_server.pool import EnvPool
from siirl.errors import SimulationFailed
from tests.envs.tools.http_server import PlainHttpServer

CALCULATOR = "envs.tools.arithmetic:calculator"
DEADLINE_S = 600.0  # of tools that do not hang: a busy machine may take its time


@pytest.fixture(scope="module", autouse=True)
def workers_that_outlive_one_environment():
    """A lease on the workers of functions with this deadline: else each test would start and end
    its own.
    """
    pool = lease(
        WorkerSettings(
            target="envs.tools.signatures:call_function", num_workers=2, deadline_s=DEADLINE_S
        )
    )
    yield
    release(pool)


def make(**arguments):
    return ToolEnv(**{"tool_deadline_s": DEADLINE_S} | arguments)


def play(env, *texts, seed=0, options=None):
    """Reset, one step per text, close; all results."""

    async def episode():
        results = [await env.reset(seed=seed, options=options)]
        for text in texts:
            results.append(await env.step(text))
        await env.close()
        return results

    return asyncio.run(episode())


def compute(expression):
    return write_call(ToolCall("calculator", {"expression": expression}))


def said(result):
    return [entry["content"] for entry in result[0]["messages"]]


def question(env_arguments, seed=0):
    return said(play(make(**env_arguments), seed=seed)[0])[-1]


def test_answer_found_with_a_tool_is_right():
    arguments = {"tasks": ["sums-6"], "wording": "bare"}
    expression = question(arguments).rstrip("=")
    _, called, final = play(
        make(**arguments), f"Let me see. {compute(expression)}", str(calculator(expression))
    )
    assert called[0]["messages"] == [{"role": "tool", "content": calculator(expression)}]
    assert called[1:4] == (0.0, False, False)
    assert called[4] == {
        "task": "sums-6",
        "success": False,
        "reward_parts": {},
        "verdict": "tool call",
        "tool_calls": 1,
        "tool_errors": 0,
    }
    assert final[1:4] == (1.0, True, False)
    assert final[4]["verdict"] == "correct"


def test_tools_are_announced_in_the_system_message():
    first, second = play(make())[0][0]["messages"]
    assert first["role"] == "system"
    schema = json.loads(re.search(r"<tools>\n(.*)\n</tools>", first["content"])[1])["function"]
    assert schema["name"] == "calculator"
    assert schema["parameters"]["properties"]["expression"]["type"] == "string"
    assert second["role"] == "user"


def test_announcement_joins_a_system_message_that_is_there():
    row = {
        "data_source": "mine",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}],
        "reward_model": {"ground_truth": "4"},
    }
    first, _second = play(make(), options={"row": row})[0][0]["messages"]
    assert first["content"].startswith("Be brief.\n\n")
    assert "<tools>" in first["content"]
    assert len(play(make(announce=False), options={"row": row})[0][0]["messages"]) == 2


def test_ungradable_row_has_tools_and_no_verdict_if_the_reward_needs_none():
    row = {
        "data_source": "mine",
        "prompt": [{"role": "user", "content": "Is 2+2 a nice sum?"}],
        "reward_model": {"style": "model"},
    }
    with pytest.raises(ValueError, match="'model' is not graded here"):
        play(make(), options={"row": row})
    _, called, final = play(make(ungraded=True), compute("2+2"), "Very.", options={"row": row})
    assert (said(called), called[4]["success"]) == (["4"], None)
    assert (final[1], final[2], final[4]["success"], final[4]["reward_parts"]) == (
        0.0,
        True,
        None,
        {},
    )
    _, cut = play(make(ungraded=True, max_turns=1), compute("2+2"), options={"row": row})
    assert (cut[3], cut[4]["success"], cut[4]["reward_parts"], cut[4]["verdict"]) == (
        True,
        None,
        {},
        "out of turns",
    )


def test_several_calls_of_a_turn_are_answered_in_order():
    _, called = play(make(), compute("1+1") + compute("2+2") + compute("3+3"))
    assert said(called) == ["2", "4", "6"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<tool_call>{broken</tool_call>", r"Error: this is not a tool call: it is not JSON"),
        (
            '<tool_call>{"name": "no_such"}</tool_call>',
            r"Error: there is no tool 'no_such'; there are: calculator\.",
        ),
        (
            '<tool_call>{"name": "calculator"}</tool_call>',
            r"Error: wrong arguments: expression: Field required\.",
        ),
        (compute("1/0"), r"Error: NoExpression: division by zero\."),
    ],
)
def test_errors_are_reported_and_the_episode_continues(text, answer):
    _, called, final = play(make(), text, "#### 0")
    assert re.match(answer, said(called)[0])
    assert (called[4]["tool_calls"], called[4]["tool_errors"]) == (1, 1)
    assert final[2]


def test_tool_that_hangs_is_cut_off_named_once_and_the_episode_continues(tool_module, caplog):
    env = make(tools=[f"{tool_module}:hang", CALCULATOR], tool_deadline_s=1.0)
    twice = 2 * write_call(ToolCall("hang", {}))
    _, called, final = play(env, twice, "#### 0")
    assert said(called) == 2 * ["Error: it was stopped: no answer within 1 s."]
    assert final[4]["verdict"] == "wrong"
    (warning,) = caplog.messages
    assert warning.startswith("Tool 'hang': it was stopped: no answer within 1 s. The model reads")


def test_the_slowest_step_is_all_calls_of_a_turn_at_their_deadline(tool_module):
    env = make(tools=[f"{tool_module}:hang"], max_calls_per_turn=3, tool_deadline_s=7.5)
    assert env.spec.slowest_step_s == 22.5


def test_long_answers_of_tools_are_cut(tool_module):
    env = make(tools=[f"{tool_module}:much"], max_tool_characters=10, tool_deadline_s=601.0)
    assert said(play(env, write_call(ToolCall("much", {})))[1]) == [
        "xxxxxxxxxx… (99990 more characters)"
    ]


def test_more_calls_than_allowed_are_refused():
    _, called = play(make(max_calls_per_turn=1), compute("1+1") + compute("2+2"))
    assert said(called) == ["2", "Error: only 1 calls are carried out in one turn."]


@pytest.mark.parametrize(
    ("arguments", "texts", "verdict"),
    [
        ({"max_turns": 2}, [compute("1+1"), compute("2+2")], "out of turns"),
        ({"max_characters": 200}, [compute("1+1"), "so " * 100], "out of characters"),
        ({"max_characters": 100}, [compute("1+1") + " " * 100], "out of characters"),
    ],
)
def test_an_episode_that_exceeds_a_budget_has_no_reward(arguments, texts, verdict):
    *_, last = play(make(**arguments), *texts)
    assert last[1:4] == (0.0, False, True)
    assert last[4]["verdict"] == verdict
    assert last[0] == {"messages": []}


def test_last_turn_may_be_the_final_answer():
    *_, last = play(make(max_turns=2), compute("1+1"), "#### 0")
    assert last[2:4] == (True, False)


def tokenizer(folder):
    """A tokenizer with one token per character."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"x": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("#### " + "x" * 15, "wrong"),
        ("#### " + "x" * 16, "out of tokens"),
        ("\ud800" * 21, "out of tokens"),
    ],
)
def test_tokens_are_counted_with_the_models_tokenizer(tmp_path, text, verdict):
    env = make(max_tokens=20, tokenizer=tokenizer(tmp_path))
    assert play(env, text)[1][4]["verdict"] == verdict


def test_budget_starts_anew_with_each_episode():
    env = make(max_characters=100)

    async def episodes():
        verdicts = []
        for _ in range(3):
            await env.reset(seed=0)
            verdicts.append((await env.step("#### 1" + " " * 80))[4]["verdict"])
        await env.close()
        return verdicts

    assert asyncio.run(episodes()) == ["wrong"] * 3


def test_tools_of_an_mcp_server_are_called_from_an_episode(notes_server):
    env = make(
        tools=[CALCULATOR, {"mcp": notes_server | {"deadline_s": 600.0, "start_deadline_s": 600.0}}]
    )
    assert not env.spec.replayable
    remember = write_call(ToolCall("remember", {"note": "x"}))
    first, *called, final = play(env, remember, write_call(ToolCall("die", {})), remember, "#### 0")
    assert '"remember"' in said(first)[0]
    assert [said(result)[0] for result in called] == [
        "1 notes",
        "Error: its server died; it restarts with the next call.",
        "1 notes",
    ]
    assert final[2]


def test_a_server_that_is_listed_twice_is_refused(notes_server):
    patient = notes_server | {"deadline_s": 600.0, "start_deadline_s": 600.0}
    env = make(tools=[{"mcp": patient}, {"mcp": patient | {"fresh": False}}])
    with pytest.raises(ValueError, match=r"tools lists the MCP server '.*notes_.*' twice: remove"):
        play(env)


def test_a_server_that_lists_a_tool_twice_is_refused():
    with PlainHttpServer(tools=("greet", "greet")) as server:
        env = make(tools=[{"mcp": {"url": server.url}}])
        with pytest.raises(ValueError, match=r"server '.*' are called 'greet': rename one of them"):
            play(env)


def test_missing_mcp_server_fails_the_episode_and_is_not_a_wrong_answer():
    with pytest.raises(EpisodeFailed, match="'no-such-server' did not start"):
        play(make(tools=[{"mcp": {"command": "no-such-server"}}]))


def test_mcp_server_that_does_not_come_back_costs_its_episode_and_no_other(plain_server, tmp_path):
    """Four episodes on one environment server. The tool server of one dies, and none starts any
    more: three have theirs already.
    """
    mcp = plain_server | {
        "args": [*plain_server["args"], str(tmp_path)],
        "deadline_s": 600.0,
        "start_deadline_s": 600.0,
    }
    arguments = {"tasks": ["sums-6"], "tools": [{"mcp": mcp}]}
    all_have_called = asyncio.Barrier(4)

    async def episode(pool, number):
        async with pool.slot() as slot:
            await slot.reset(seed=number)
            heard = [await slot.step_chunk([write_call(ToolCall("greet", {}))])]
            await all_have_called.wait()
            heard.append(
                await slot.step_chunk([write_call(ToolCall("die" if number == 1 else "greet", {}))])
            )
            heard.append(await slot.step_chunk([write_call(ToolCall("greet", {}))]))
            return [said(result) for result in heard]

    async def run():
        async with EnvPool(
            "tools", arguments, num_servers=1, envs_per_server=4, cluster="local", deadline_s=1500.0
        ) as pool:
            outcomes = await asyncio.gather(
                *(episode(pool, number) for number in range(4)), return_exceptions=True
            )
            return outcomes, pool.stats()

    (*fine, last), stats = asyncio.run(run())
    failed = fine.pop(1)
    assert [*fine, last] == [[["hello"]] * 3] * 3
    assert isinstance(failed, SimulationFailed)
    assert re.search(
        r"ToolsMissing: The MCP server '.*plain_server\.py .*' did not start: MCPError: Connection closed",
        str(failed),
    )
    assert "the disk is gone" in str(failed)
    assert stats["env/failures"] == 1
    assert len(list(tmp_path.glob("start-*"))) == 4


def test_runner_of_programs_is_named_by_its_factory(monkeypatch, tmp_path):
    (tmp_path / "tests_envs_echo.py").write_text(
        "class Echo:\n    def __init__(self, mark='.'): self.mark = mark\n"
        "    async def run_program(self, program): return program + self.mark\n    def "
        "close(self): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = make(tools=[{"program": "tests_envs_echo:Echo", "mark": "!"}])
    _, called, wrong = play(
        env,
        write_call(ToolCall("python", {"program": "print(1)"})),
        write_call(ToolCall("python", {"code": "1"})),
    )
    assert said(called) == ["print(1)!"]
    assert said(wrong) == ["Error: wrong arguments: it takes one, program, which must be text."]


def test_runner_that_cannot_run_programs_fails_the_episode(monkeypatch, tmp_path):
    (tmp_path / "tests_envs_broken.py").write_text(
        "class Broken:\n    async def run_program(self, program): raise RuntimeError('no sandbox "
        "at port 1')\n    def close(self): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = make(tools=[{"program": "tests_envs_broken:Broken"}])

    async def episode():
        await env.reset(seed=0)
        with pytest.raises(
            EpisodeFailed, match="Tool 'python' could not run a program: no sandbox at port 1"
        ):
            await env.step(write_call(ToolCall("python", {"program": "print(1)"})))
        with pytest.raises(RuntimeError, match="call reset before step"):
            await env.step("#### 1")
        await env.close()

    asyncio.run(episode())


def test_functions_without_a_process_to_run_in_fail_the_episode(monkeypatch):
    env = make(tool_deadline_s=602.0)  # its own workers
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(
        EpisodeFailed, match=r"No process for .* could be started: it ended with status 1"
    ):
        play(env, compute("1+1"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tools": CALCULATOR}, "tools must be a list"),
        ({"tools": [3]}, "A tool is one of module:function"),
        ({"tools": [{"mcp": {"command": "x"}, "fresh": True}]}, "A tool is one of module:function"),
        (
            {"tools": [{"mcp": {"command": "x", "refresh": True}}]},
            "unexpected keyword argument 'refresh'.*Its arguments: command, args",
        ),
        (
            {"tools": [{"program": "os:getcwd"}]},
            "os:getcwd made an object of str, which has no run_program and no close",
        ),
        (
            {"tools": [{"program": "no_such_module:runner"}]},
            "'no_such_module:runner' cannot be imported: ModuleNotFoundError",
        ),
        ({"tools": [CALCULATOR, CALCULATOR]}, "tools lists the Python function '.*' twice"),
        ({"max_turns": 0}, "max_turns must be a whole number of at least 1"),
        ({"max_characters": 0}, "max_characters must be a whole number of at least 1"),
        ({"max_tokens": 5}, "Set max_tokens and tokenizer together"),
        ({"tool_deadline_s": "abc"}, "tool_deadline_s must be a number of seconds, got 'abc'"),
        ({"tasks": ["sum-2"]}, "Did you mean 'sums-n'"),
    ],
)
def test_argument_that_cannot_work_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(**arguments)


def test_missing_tokenizer_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"name a tokenizer\.json or its folder"):
        make(max_tokens=5, tokenizer=str(tmp_path))


def test_many_episodes_with_tools_run_behind_one_server():
    arguments = {
        "tasks": ["sums-6"],
        "wording": "bare",
        "announce": False,
        "tool_deadline_s": DEADLINE_S,
    }

    async def run():
        async with EnvPool(
            "tools", arguments, num_servers=1, envs_per_server=8, cluster="local", deadline_s=1500.0
        ) as pool:

            async def episode(seed):
                async with pool.slot() as slot:
                    observation, _ = await slot.reset(seed=seed)
                    expression = observation["messages"][-1]["content"].rstrip("=")
                    observation, *_ = await slot.step_chunk([compute(expression)])
                    return await slot.step_chunk([observation["messages"][0]["content"]])

            return await asyncio.gather(*map(episode, range(40)))

    assert [result[1] for result in asyncio.run(run())] == [1.0] * 40
