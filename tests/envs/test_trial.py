"""The first step that a user's environment plays before a job."""

import asyncio
import dataclasses
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envs.base import PROPRIOCEPTION, Environment, EnvSpec, EpisodeFailed, Misbehaved
from envs.gymnasium import GymnasiumEnv
from envs.registry import env_spec, is_known
from envs.text import MESSAGES, Messages
from envs.trial import try_first_step

SPACE = spaces.Dict({PROPRIOCEPTION: spaces.Box(-1.0, 1.0, (2,), np.float32)})
SPEC = EnvSpec("still", ("wait", "go"), SPACE, spaces.Discrete(2), 4, renders=False)


class Still(Environment):
    """An environment without a mistake."""

    reward = 1.0

    def __init__(self, spec=SPEC):
        self.spec, self.closed = spec, False

    def look(self):
        return {PROPRIOCEPTION: np.zeros(2, np.float32)}

    async def reset(self, *, seed=None, options=None):
        assert options == {"task": "wait"}
        return self.look(), {"task": "wait"}

    async def step(self, action):
        assert action in (0, 1)
        return self.look(), self.reward, False, False, {"task": "wait", "success": False}

    def render(self):
        raise NotImplementedError

    async def close(self):
        self.closed = True


class Wide(Still):
    """Three numbers instead of two."""

    def look(self):
        return {PROPRIOCEPTION: np.zeros(3, np.float32)}


class NanReward(Still):
    """Its reward is no number."""

    reward = float("nan")


class Raises(Still):
    """Its `reset` fails."""

    async def reset(self, *, seed=None, options=None):
        raise OSError("mesh file missing")


class Exits(Still):
    """Its `step` ends the process."""

    async def step(self, action):
        raise SystemExit("no licence")


class NoSeed(Still):
    """Its `reset` takes no seed."""

    async def reset(self, options=None):
        return self.look(), {}


class NoAction(Still):
    """Its `step` takes no action."""

    async def step(self):
        return None


class Plain(Still):
    """Its `reset` is not `async def`."""

    def reset(self, *, seed=None, options=None):
        return self.look(), {}


class ListInfo(Still):
    """Its info is a list."""

    async def step(self, action):
        return self.look(), 1.0, False, False, []


class Noisy(Still):
    """Its generator is not seeded."""

    def look(self):
        return {PROPRIOCEPTION: np.random.default_rng().random(2).astype(np.float32)}


class Seeded(Still):
    """A new observation in the same array at each reset."""

    array = np.zeros(2, np.float32)

    async def reset(self, *, seed=None, options=None):
        self.array[:] = np.random.default_rng(seed).random(2)
        return {PROPRIOCEPTION: self.array}, {"task": "wait"}


class SlowNoisy(Noisy):
    """Its `reset` takes time."""

    async def reset(self, *, seed=None, options=None):
        time.sleep(0.02)
        return await super().reset(seed=seed, options=options)


class GivesUp(Still):
    """Its episode cannot be scored."""

    async def reset(self, *, seed=None, options=None):
        raise EpisodeFailed("its gripper is stuck")


def tried(environment):
    return asyncio.run(try_first_step(environment))


@pytest.mark.parametrize(
    ("cls", "sentence"),
    [
        (
            Wide,
            r"its first reset: .*'proprioception'\] is float32 \(3,\) instead of float32 \(2,\)",
        ),
        (NanReward, r"its first step: reward is float nan instead of a finite number"),
        (Raises, r"its first reset raised OSError: mesh file missing"),
        (Exits, r"its first step raised SystemExit: no licence"),
        (NoSeed, r"NoSeed\.reset got an unexpected keyword argument 'seed' .*seed=None, options="),
        (NoAction, r"NoAction\.step too many positional arguments .*: give it one argument, the"),
        (Plain, r"Plain\.reset .*is a plain function: define it with `async def`"),
        (ListInfo, r"its first step: info is list \[\] instead of a dict"),
    ],
)
def test_a_mistake_in_the_first_reset_or_step_is_a_sentence_with_its_line(cls, sentence):
    with pytest.raises(Misbehaved, match=sentence) as found:
        tried(cls())
    assert "test_trial.py, line " in str(found.value)


def test_an_environment_without_a_mistake_passes_and_is_closed():
    environment = Still()
    assert tried(environment) == ""
    assert environment.closed


def test_an_environment_that_does_not_use_its_seed_gives_a_warning_with_the_remedy():
    warning = tried(Noisy())
    assert warning.startswith(
        "two resets with seed=0 gave different observations: observation['proprioception'] was"
    )
    assert "reset must seed all its generators from `seed`" in warning


def test_an_environment_that_seeds_its_generator_gives_no_warning():
    assert tried(Seeded()) == ""


def test_a_slow_reset_is_not_repeated(monkeypatch):
    monkeypatch.setattr("envs.trial.SLOW_S", 0.01)
    assert tried(SlowNoisy()) == ""


def test_an_episode_that_cannot_be_scored_is_no_mistake():
    environment = GivesUp()
    assert tried(environment) == ""
    assert environment.closed


def test_real_robots_and_chats_play_no_first_step():
    assert tried(Raises(dataclasses.replace(SPEC, replayable=False))) == ""
    chat = dataclasses.replace(SPEC, observation_space=spaces.Dict({MESSAGES: Messages()}))
    assert tried(Raises(chat)) == ""


class Unseeded(gymnasium.Env):
    """A Gymnasium environment whose `reset` does not use its seed, with `kind` of mistake."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, kind=None):
        self.kind = kind

    def reset(self, *, seed=None, options=None):
        size = 3 if self.kind == "size" else 2
        return np.random.default_rng().random(size).astype(np.float32), {}

    def step(self, action):
        reward = float("nan") if self.kind == "reward" else 1.0
        info = {"is_success": "no"} if self.kind == "success" else {}
        return np.zeros(2, np.float32), reward, False, False, info


@pytest.fixture
def unseeded():
    name = "siirl-tried/Unseeded-v0"
    gymnasium.register(name, Unseeded, max_episode_steps=3)
    yield name
    del gymnasium.registry[name]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("size", r"returned an observation outside its space .* shape \(3,\)"),
        ("reward", "returned reward nan at step 1"),
        ("success", "returned is_success='no', which must be true or false"),
    ],
)
def test_a_bad_value_of_a_gymnasium_environment_is_found_before_the_job(unseeded, kind, sentence):
    place = r"\(.*test_trial\.py, line [0-9]+\) "
    with pytest.raises(Misbehaved, match=place + sentence):
        env_spec("gymnasium", (), True, id=unseeded, kind=kind)


def test_a_gymnasium_environment_that_does_not_use_its_seed_gives_a_warning(unseeded):
    with pytest.warns(UserWarning, match=r"env\.id=siirl-tried/Unseeded-v0: two resets with seed"):
        env_spec("gymnasium", (), True, id=unseeded)


def test_environments_of_gymnasium_itself_play_no_first_step(unseeded):
    reference = "envs.gymnasium:GymnasiumEnv"
    assert is_known(reference, GymnasiumEnv(id="CartPole-v1"))
    assert not is_known(reference, GymnasiumEnv(id=unseeded))
    assert not is_known("my_module:Still", Still())
