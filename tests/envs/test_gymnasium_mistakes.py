"""Environments with mistakes behind env=gymnasium: each is refused with a sentence of its own."""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from envs.gymnasium import GymnasiumEnv

SEEN = np.zeros(2, np.float32)


class Sound(gymnasium.Env):
    """An environment without a mistake."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return SEEN, {}

    def step(self, action):
        return SEEN, 1.0, False, False, {}


class OldStep(Sound):
    """`step` as in Gym 0.25."""

    def step(self, action):
        return SEEN, 1.0, False, {}


class OldReset(Sound):
    """`reset` as in Gym 0.25."""

    def reset(self, *, seed=None, options=None):
        return SEEN


class NoDict(Sound):
    """Its info is a list."""

    def step(self, action):
        return SEEN, 1.0, False, False, []


class NoSpace(Sound):
    """Its observation space is not set."""

    observation_space = None


class WordReward(Sound):
    """Its reward is a text."""

    def step(self, action):
        return SEEN, "1.0", False, False, {}


def several(**kwargs):
    return SyncVectorEnv([Sound, Sound])


@pytest.fixture(scope="module", autouse=True)
def registered():
    made = (Sound, OldStep, OldReset, NoDict, NoSpace, WordReward, several)
    for entry in made:
        gymnasium.register(f"siirl-wrong/{entry.__name__}-v0", entry, max_episode_steps=3)
    yield
    for entry in made:
        del gymnasium.registry[f"siirl-wrong/{entry.__name__}-v0"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "OldStep",
            r"returned 4 values where \(observation, reward, terminated, truncated, info\)",
        ),
        ("OldReset", r"returned a ndarray where \(observation, info\) of reset is expected"),
        ("NoDict", r"returned \[\] as the info of .* of step, which is a dict"),
        ("NoSpace", "has observation_space None, which is no space of Gymnasium's: set it"),
        ("several", "cannot be made: The environment must inherit from the gymnasium.Env class"),
    ],
)
def test_a_mistake_is_named_when_the_environment_is_made(name, sentence):
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        GymnasiumEnv(id=f"siirl-wrong/{name}-v0")


def test_a_reward_that_is_a_text_is_refused():
    async def play():
        env = GymnasiumEnv(id="siirl-wrong/WordReward-v0")
        await env.reset(seed=0)
        await env.step(0)

    with pytest.raises(RuntimeError, match=r"returned reward '1\.0', and a reward is a number"):
        asyncio.run(play())


def test_an_environment_without_a_mistake_is_made():
    assert GymnasiumEnv(id="siirl-wrong/Sound-v0").spec.max_episode_steps == 3
