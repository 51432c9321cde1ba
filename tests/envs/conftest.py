"""A user's module, importable by name as in a user's project."""

import sys
import textwrap
from types import ModuleType

import pytest

OWN_MODULE = '''
"""An environment of a user's own: count down to zero. `fault` breaks one promise of the contract."""

import numpy as np
from envs.arguments import checked_action, read_options
from envs.base import PROPRIOCEPTION, Environment, EnvSpec
from gymnasium import spaces


class CountdownEnv(Environment):
    def __init__(self, start: int = 20) -> None:
        observation_space = spaces.Dict({PROPRIOCEPTION: spaces.Box(0.0, start + 9.0, (1,), np.float32)})
        action_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.spec = EnvSpec("countdown", ("slow", "fast"), observation_space, action_space, 3 * start, renders=False)
        self.start, self.left, self.over = start, 0.0, True

    def observation(self):
        return {PROPRIOCEPTION: np.array([max(self.left, 0.0)], np.float32)}

    async def reset(self, *, seed=None, options=None):
        task = read_options(options, spec=self.spec).task
        self.pace = {"slow": 0.5, "fast": 1.0}[task]
        self.left, self.over, self.steps = self.start + np.random.default_rng(seed).random(), False, 0
        return self.observation(), {"task": task}

    async def step(self, action):
        action = checked_action(action, space=self.spec.action_space)
        if self.over:
            raise RuntimeError("The episode has ended or was never started: call reset before step.")
        self.left -= self.pace * float(action[0])
        self.steps += 1
        terminated = self.left <= 0
        truncated = not terminated and self.steps >= self.spec.max_episode_steps
        self.over = terminated or truncated
        return self.observation(), -1.0, terminated, truncated, {"success": terminated}

    def render(self):
        raise RuntimeError("There is nothing to see.")
'''


@pytest.fixture
def own_module(tmp_path, monkeypatch) -> ModuleType:
    """The user's module, found on the path as `tests_envs_own`."""
    (tmp_path / "tests_envs_own.py").write_text(textwrap.dedent(OWN_MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tests_envs_own", raising=False)
    import tests_envs_own

    return tests_envs_own
