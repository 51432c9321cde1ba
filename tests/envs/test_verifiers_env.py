"""Environments of the package verifiers behind the contract.

A small package with the same interface stands in for it; the last test installs the real one.
"""

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.base import EpisodeFailed
from envs.checker import check_env
from envs.registry import make_env
from envs.text import MESSAGES, REWARD_PARTS
from envs.tools.calls import ToolCall, write_call
from tests.envs.own_environment import GIVE_UP_S, environment_with

PACKAGES = Path(__file__).parent / "verifiers_package" / "packages.txt"
FAKE_PACKAGE = {
    "verifiers/__init__.py": """
import importlib


def load_environment(name, **arguments):
    return importlib.import_module(name.replace("-", "_")).load_environment(**arguments)
""",
    "verifiers/types.py": """
class Fields:
    def __init__(self, **fields):
        self.__dict__.update(fields)

    def model_dump(self):
        return dict(self.__dict__)


class ResponseMessage(Fields):
    role = "assistant"


class ToolCall(Fields):
    pass


class Response(Fields):
    pass
""",
    "verifiers/clients.py": """
import abc


class Client(abc.ABC):
    def __init__(self, config):
        pass

    @abc.abstractmethod
    def setup_client(self, config): ...
""",
    "adding.py": """
from verifiers.types import Fields


class Rubric:
    rubrics = ()

    def __init__(self, funcs):
        self.funcs = funcs

    async def score_rollout(self, state):
        state["reward"] = 0.0
        for function in self.funcs:
            try:
                state["reward"] += await function(state)
            except Exception:
                pass  # as the package does


def right(state):
    said = state["said"][-1]
    if said == "raise":
        raise TypeError("cannot read it")
    return said == state["answer"]


class Adding:
    # asks for a sum; "calculator" is a tool, and "again" is answered by the user
    def __init__(self, max_turns, rows, own_evaluation, tools):
        self.max_turns, self.tools = max_turns, tools
        self.rubric = Rubric([right])
        self.rows, self.own_evaluation = rows, own_evaluation

    def build_dataset(self):
        return [
            {"prompt": [{"role": "user", "content": f"{n}+1="}], "answer": str(n + 1)}
            for n in range(self.rows)
        ]

    def build_eval_dataset(self):
        own = [{"prompt": [{"role": "user", "content": "evaluation"}], "answer": "yes"}]
        return own if self.own_evaluation else None

    async def rollout(self, row, client, model, sampling_args):
        state = {**row, "said": [], "error": None}
        messages = list(row["prompt"])
        for turn in range(self.max_turns):
            response = await client.get_response(messages, model, sampling_args, self.tools)
            said = response.message
            state["said"].append(said.content)
            messages = [*messages, {"role": "assistant", "content": said.content}]
            if said.content == "break":
                state["error"] = RuntimeError("it broke")
            if said.content == "rewrite":
                messages[0] = {"role": "user", "content": "another question"}
                continue
            if said.tool_calls:
                number = eval(said.tool_calls[0].arguments)["number"]
                messages.append({"role": "tool", "content": str(number + 1)})
            elif said.content != "again":
                state["stop_condition"] = "answered"
                break
            else:
                messages.append({"role": "user", "content": "go on"})
        return state


def load_environment(max_turns=4, rows=40, own_evaluation=False, tools=False):
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    tool = Fields(name="calculator", description="adds one", parameters=schema)
    return Adding(max_turns, rows, own_evaluation, [tool] if tools else None)
""",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The stand-in on the path, instead of an installed package."""
    for name, text in FAKE_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    names = [name for name in sys.modules if name.split(".")[0] in ("verifiers", "adding")]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("envs.verifiers_env")._load.cache_clear()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("verifiers", "adding")]:
        del sys.modules[name]


def played(texts, *, seed=1, **arguments):
    """The steps of an episode, after its first observation."""

    async def episode():
        env = make_env("verifiers", id="adding", **arguments)
        observation, info = await env.reset(seed=seed)
        steps = [(observation, info)]
        for text in texts:
            steps.append(await env.step(text.replace("ANSWER", info["ground_truth"])))
        await env.close()
        return steps

    return asyncio.run(episode())


def test_the_contract_is_kept(package):
    check_env(make_env("verifiers", id="adding"), seed=3)


def test_an_answer_is_scored_by_the_rubric(package):
    (first, info), (last, reward, terminated, truncated, scored) = played(["ANSWER"])
    assert first[MESSAGES][0]["content"] == f"{int(info['ground_truth']) - 1}+1="
    assert (last[MESSAGES], reward, terminated, truncated) == ([], 1.0, True, False)
    assert scored["success"] is True
    assert scored[REWARD_PARTS] == {"score": 1.0}
    assert played(["no"])[-1][4]["success"] is False


def test_each_turn_shows_the_new_messages_alone(package):
    _, second, third, last = played(["again", "again", "ANSWER"])
    assert [entry[0][MESSAGES] for entry in (second, third)] == [
        [{"role": "user", "content": "go on"}]
    ] * 2
    assert (second[1], second[2], last[1]) == (0.0, False, 1.0)


def test_tools_are_announced_and_their_calls_are_read_from_the_text(package):
    call = write_call(ToolCall("calculator", {"number": 41}))
    (first, _), answered, _ = played([call, "ANSWER"], tools=True)
    assert first[MESSAGES][0]["role"] == "system"
    assert '"name": "calculator"' in first[MESSAGES][0]["content"]
    assert answered[0][MESSAGES] == [{"role": "tool", "content": "42"}]


def test_a_reward_function_that_raises_fails_the_episode(package):
    with pytest.raises(EpisodeFailed, match="TypeError in right: cannot read it"):
        played(["raise"])


def test_an_error_of_the_environment_fails_the_episode(package):
    with pytest.raises(EpisodeFailed, match="RuntimeError: it broke"):
        played(["break"])


def test_a_rewritten_conversation_fails_the_episode(package):
    with pytest.raises(EpisodeFailed, match="rewrites the conversation"):
        played(["rewrite"])


def asked(split, **arguments):
    async def questions():
        env = make_env("verifiers", id="adding", **arguments)
        found = set()
        for seed in range(60):
            observation, _ = await env.reset(seed=seed, options={"split": split})
            found.add(observation[MESSAGES][0]["content"])
        await env.close()
        return found

    return asyncio.run(questions())


def test_no_question_of_training_is_asked_in_evaluation(package):
    train, heldout = asked("train"), asked("heldout")
    assert train
    assert heldout
    assert not train & heldout


def test_a_separate_evaluation_data_set_is_the_held_out_split(package):
    assert asked("heldout", own_evaluation=True) == {"evaluation"}
    assert "evaluation" not in asked("train", own_evaluation=True)


def test_an_environment_that_is_not_installed_is_named_with_its_remedy(package):
    with pytest.raises(
        ValueError, match=r"env.id=no-such cannot be loaded.*[^.]\. Install its package"
    ):
        make_env("verifiers", id="no-such")


def test_too_few_questions_are_refused(package):
    with pytest.raises(ValueError, match="has no heldout questions"):
        make_env("verifiers", id="adding", rows=1)


def test_without_the_package_the_remedy_is_its_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    importlib.import_module("envs.verifiers_env")._load.cache_clear()
    with pytest.raises(
        RuntimeError,
        match=r"lacks the package 'verifiers': pip install verifiers==0\.1\.14 .*0\.3 requires mcp<2",
    ):
        make_env("verifiers", id="adding")


def test_a_version_with_another_interface_is_named(package, tmp_path):
    (tmp_path / "verifiers" / "__init__.py").write_text('__version__ = "0.4.0"\n')
    with pytest.raises(RuntimeError, match=r"verifiers 0\.4\.0 has no load_environment"):
        make_env("verifiers", id="adding")


REAL_ENVIRONMENTS = '''
import verifiers as vf
from datasets import Dataset


def add_one(number: int) -> int:
    """Adds one.

    Args:
        number: What to add to.
    """
    return number + 1


def right(completion, answer, **others):
    return float(completion[-1].content.strip() == answer)


def load_environment(kind="single"):
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(40)]
    data = Dataset.from_list(rows)
    rubric = vf.Rubric(funcs=[right])
    if kind == "single":
        return vf.SingleTurnEnv(dataset=data, rubric=rubric, system_prompt="Add.")
    return vf.ToolEnv(dataset=data, rubric=rubric, tools=[add_one], max_turns=4)
'''
REAL_TEST = """
import asyncio
from envs.checker import check_env
from envs.registry import make_env
from envs.text import MESSAGES
from envs.tools.calls import ToolCall, write_call


async def episode(env, texts):
    observation, info = await env.reset(seed=1)
    for text in texts:
        last = await env.step(text.replace("ANSWER", info["ground_truth"]))
    await env.close()
    return observation[MESSAGES], last


single = make_env("verifiers", id="real-sums")
prompt, (_, reward, terminated, _, info) = asyncio.run(episode(single, ["ANSWER"]))
assert [entry["role"] for entry in prompt] == ["system", "user"], prompt
assert (reward, terminated, info["success"]) == (1.0, True, True), (reward, info)
assert asyncio.run(episode(single, ["no"]))[1][1] == 0.0
tools = make_env("verifiers", id="real-sums", kind="tools")
call = write_call(ToolCall("add_one", {"number": 41}))
prompt, first = asyncio.run(episode(tools, [call]))
assert "add_one" in prompt[0]["content"], prompt
assert first[0][MESSAGES] == [{"role": "tool", "content": "42"}], first
_, (_, reward, terminated, _, _) = asyncio.run(episode(tools, [call, "ANSWER"]))
assert (reward, terminated) == (1.0, True)
check_env(make_env("verifiers", id="real-sums"), seed=3)
print("the real package keeps the contract")
"""


@pytest.mark.slow  # installs 27 packages
def test_the_real_package_keeps_the_contract(tmp_path):
    """In an environment of its own: it needs older versions of a few packages of siirl's lock."""
    (tmp_path / "real_sums.py").write_text(REAL_ENVIRONMENTS)
    (tmp_path / "play.py").write_text(REAL_TEST)
    python = environment_with(PACKAGES, folder=tmp_path / "environment")
    played = subprocess.run(
        [python, tmp_path / "play.py"],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
        check=False,
    )
    assert played.returncode == 0, played.stderr[-3000:]
    assert "keeps the contract" in played.stdout
