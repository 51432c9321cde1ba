"""Classes of the user's own that do not import, fit or build: refused with the place and the line of code, before any process starts."""

import itertools
from pathlib import Path

import pytest

from siirl.train import REFUSED, main

GYM = ("--plan", "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1")
POLICY = "actor_rollout_ref.model.policy"
CUSTOM = ("--plan", "pipeline=grpo", "env=custom")
GOOD_POLICY = """
import torch
from siirl.models import ActionTokenizer, Policy
class Constant(Policy):
    def __init__(self, spec, path, width=1):
        super().__init__()
        self.chunk_length, self.action_tokenizer = 1, ActionTokenizer.for_space(spec.action_space, bins=2)
        self.bias = torch.nn.Parameter(torch.zeros(width))
    def tokenize_instruction(self, text): ...
    def forward(self, *, pixel_values, proprioception, instruction_ids): ...
"""
WIDE_POLICY = f"""{GOOD_POLICY}
class Wide(Constant):
    def __init__(self, spec, path):
        super().__init__(spec, path)
        self.action_tokenizer = ActionTokenizer(bins=3, low=(), high=())
"""
GOOD_ENV = """
from envs.base import Environment
class Env(Environment):
    async def reset(self, **arguments): ...
    async def step(self, action): ...
    def render(self): ...
"""
NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module of the user's own and returns its name, which no other test has imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"own_module_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("import no_such_package", "make", "raised ModuleNotFoundError: No module named 'no_such_package'"),
        ("def make(spec, path):\n    retrun 1", "make", "raised SyntaxError"),
        ("frobnicate()", "make", "raised NameError: name 'frobnicate' is not defined"),
        ("x = 1", "make", "has no 'make'"),
        ("make = 3", "make", "is of type int and cannot be called: it is called with (spec, path, **options)"),
        ("def make(): ...", "make", "its signature () does not take: too many positional"),
        ("def make(spec, path): return [][1]", "make", "raised IndexError: list index out of range"),
        ("def make(spec, path): return 7", "make", "made a int; it must be a siirl.models.Policy"),
        ("from siirl.models import Policy\nclass Half(Policy): ...", "Half", "abstract class Half with abstract methods forward"),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused(module, text: str, reference: str, expected: str, capsys) -> None:
    name = module(text)
    assert main([*GYM, f"{POLICY}={name}:{reference}"]) == REFUSED
    captured = capsys.readouterr()
    assert f"{POLICY}={name}:{reference}" in captured.err
    assert expected in captured.err
    assert captured.out == ""


def test_the_message_names_the_line_of_code(module, capsys) -> None:
    name = module("def make(spec, path):\n    width = None\n    return width + 1\n")
    assert main([*GYM, f"{POLICY}={name}:make"]) == REFUSED
    assert f"{name}.py, line 3)" in capsys.readouterr().err


def test_options_that_it_does_not_take_are_refused_and_others_pass(module, capsys) -> None:
    name = module(GOOD_POLICY)
    words = [*GYM, f"{POLICY}={name}:Constant"]
    assert main([*words, "actor_rollout_ref.model.options={depth: 3}"]) == REFUSED
    assert "got an unexpected keyword argument 'depth'" in capsys.readouterr().err
    assert main([*words, "actor_rollout_ref.model.options={width: 2}"]) == 0


def test_a_policy_whose_actions_leave_the_environments_range_is_refused(module, capsys) -> None:
    name = module(WIDE_POLICY)
    assert main([*GYM, f"{POLICY}={name}:Wide"]) == REFUSED
    message = capsys.readouterr().err
    assert "can act with 2, which is outside of the action space Discrete(2) of environment 'gymnasium'" in message
    assert "ActionTokenizer.for_space" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("frobnicate()", "raised NameError: name 'frobnicate' is not defined"),
        ("def make(): ...", "is called with (config.reward), which its signature () does not take"),
    ],
)
def test_a_reward_that_cannot_be_made_is_refused(module, text: str, expected: str, capsys) -> None:
    name = module(text)
    assert main([*GYM, "reward.encoder=null", f"reward.name={name}:make"]) == REFUSED
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("frobnicate()", "raised NameError: name 'frobnicate' is not defined"),
        ("class Env: ...", "is no subclass of envs.base.Environment"),
        ("from envs.base import Environment\nclass Env(Environment): ...", "raised TypeError: Can't instantiate abstract class Env"),
        (f"{GOOD_ENV}\n    def __init__(self): self.spec = {{}}['spec']", "raised KeyError: 'spec'"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(module, text: str, expected: str, capsys) -> None:
    name = module(text)
    assert main([*CUSTOM, f"env.name={name}:Env"]) == REFUSED
    assert expected in capsys.readouterr().err
