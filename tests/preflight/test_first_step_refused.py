"""A user's environment whose first step fails: one sentence, before a run folder exists."""

import itertools
from pathlib import Path

import pytest

from siirl.terminal.exit_status import REFUSED
from siirl.train import main

MODULE = """
import os
import numpy as np
from tests.main_job.bad_envs import PROPRIOCEPTION, StillEnv
class Env(StillEnv):
    async def step(self, action):
        {}
        return await super().step(action)
class Dice(StillEnv):
    def __init__(self, id="still"):
        super().__init__()
    def observe(self):
        return {{PROPRIOCEPTION: np.random.default_rng().random(2).astype(np.float32)}}
"""
NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module whose `step` runs a statement, and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(statement: str) -> str:
        name = f"first_step_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(MODULE.format(statement))
        return name

    return write


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "raise OSError('mesh file missing')",
            "its first step raised OSError: mesh file missing (",
        ),
        ("return 1, 2", ", line 6) must return (observation, reward, terminated, truncated, info)"),
        ("os._exit(7)", "its first reset and step ended their process: it ended with status 7."),
    ],
)
def test_an_environment_whose_first_step_fails_is_refused_before_the_run(
    module, tmp_path: Path, statement: str, expected: str, capfd
) -> None:
    words = ("pipeline=grpo", "env=custom", "reward=return", "trainer=smoke", "cluster=local")
    assert main([*words, f"env.name={module(statement)}:Env"]) == REFUSED
    message = capfd.readouterr().err
    assert expected in message
    assert "Traceback" not in message
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("more", [[], ["env.id=hall"]])
def test_an_environment_that_does_not_use_its_seed_is_planned_with_a_warning(module, more) -> None:
    words = ["--plan", "pipeline=grpo", "env=custom", "reward=return", *more]
    with pytest.warns(UserWarning, match=r"env\.name=.*:Dice: two resets with seed=0 gave diff"):
        assert main([*words, f"env.name={module('pass')}:Dice"]) == 0


def test_a_first_step_that_takes_too_long_is_a_warning(module, monkeypatch) -> None:
    monkeypatch.setattr("envs.spec_process.TRIAL_DEADLINE_S", 1.0)
    words = ["--plan", "pipeline=grpo", "env=custom", "reward=return"]
    name = module("__import__('time').sleep(1000)")
    with pytest.warns(UserWarning, match="step took more than 1 s, so they were not checked"):
        assert main([*words, f"env.name={name}:Env"]) == 0
