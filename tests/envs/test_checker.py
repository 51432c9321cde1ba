"""`check_env` detects each violation that it documents: each environment here has one."""

import numpy as np
import pytest

from envs.base import PROPRIOCEPTION, Frames
from envs.checker import check_env

BREAKS = {}


def breaks(sentence):
    """Register a function from the good class to one with a fault; `sentence` is what the checker
    must say.
    """

    def register(make):
        BREAKS[make.__name__] = (make, sentence)
        return make

    return register


@breaks("gave another episode")
def ignores_the_seed(good):
    class Broken(good):
        async def reset(self, *, seed=None, options=None):
            return await super().reset(seed=None, options=options)

    return Broken


@breaks("gave another episode")
def remembers_the_last_episode(good):
    class Broken(good):
        episodes = 0

        async def reset(self, *, seed=None, options=None):
            observation, info = await super().reset(seed=seed, options=options)
            self.episodes += 1
            self.pace *= 1 + self.episodes / 100
            return observation, info

    return Broken


@breaks("has dtype float64, but its space has float32")
def wrong_dtype(good):
    class Broken(good):
        def observation(self):
            return {PROPRIOCEPTION: super().observation()[PROPRIOCEPTION].astype(np.float64)}

    return Broken


@breaks("has shape \\(2,\\), but its space has \\(1,\\)")
def wrong_shape(good):
    class Broken(good):
        def observation(self):
            return {PROPRIOCEPTION: np.repeat(super().observation()[PROPRIOCEPTION], 2)}

    return Broken


@breaks("is not finite")
def not_a_number(good):
    class Broken(good):
        def observation(self):
            return {PROPRIOCEPTION: np.full(1, np.nan, np.float32)}

    return Broken


@breaks("is not in its space")
def outside_of_its_space(good):
    class Broken(good):
        def observation(self):
            return {PROPRIOCEPTION: np.full(1, -5.0, np.float32)}

    return Broken


@breaks("has the keys \\['extra', 'proprioception'\\]")
def an_extra_key(good):
    class Broken(good):
        def observation(self):
            return {**super().observation(), "extra": 1}

    return Broken


@breaks("changed an observation that was returned before")
def reuses_its_buffer(good):
    class Broken(good):
        buffer = np.zeros(1, np.float32)

        def observation(self):
            self.buffer[:] = super().observation()[PROPRIOCEPTION]
            return {PROPRIOCEPTION: self.buffer}

    return Broken


@breaks("sum of its rewards")
def chunk_forgets_rewards(good):
    class Broken(good):
        async def step_chunk(self, actions):
            observation, _, terminated, truncated, info = await super().step_chunk(actions)
            return observation, -1.0, terminated, truncated, info

    return Broken


@breaks("must have `executed`")
def chunk_does_not_count(good):
    class Broken(good):
        async def step_chunk(self, actions):
            *values, info = await super().step_chunk(actions)
            return (*values, {key: value for key, value in info.items() if key != "executed"})

    return Broken


@breaks("step_chunk without actions must raise ValueError")
def empty_chunk(good):
    class Broken(good):
        async def step_chunk(self, actions):
            return await super().step_chunk(actions or [np.zeros(1, np.float32)])

    return Broken


@breaks("terminated must be a bool, got np.False_")
def numpy_flag(good):
    class Broken(good):
        async def step(self, action):
            observation, reward, terminated, truncated, info = await super().step(action)
            return observation, reward, np.bool_(terminated), truncated, info

    return Broken


@breaks(r"a reward must be a finite float of at most 1e\+15, got nan")
def nan_reward(good):
    class Broken(good):
        async def step(self, action):
            observation, _, terminated, truncated, info = await super().step(action)
            return observation, float("nan"), terminated, truncated, info

    return Broken


@breaks("must have `success`")
def no_success(good):
    class Broken(good):
        async def step(self, action):
            *values, _ = await super().step(action)
            return (*values, {})

    return Broken


@breaks(r"returns info\['task'\]='slow'")
def plays_another_task(good):
    class Broken(good):
        async def reset(self, *, seed=None, options=None):
            await super().reset(seed=seed, options=options)
            return await super().reset(seed=seed)

    return Broken


@breaks("unknown task must raise ValueError, but was accepted")
def any_task(good):
    class Broken(good):
        async def reset(self, *, seed=None, options=None):
            known = (options or {}).get("task") in self.spec.tasks or "task" not in (options or {})
            return await super().reset(seed=seed, options=options if known else None)

    return Broken


@breaks("step with an action with NaN must raise ValueError")
def cleans_actions(good):
    class Broken(good):
        async def step(self, action):
            clean = np.nan_to_num(action) if np.asarray(action).dtype.kind == "f" else action
            return await super().step(clean)

    return Broken


@breaks("above its bounds must raise ValueError, but was accepted")
def clips_actions(good):
    class Broken(good):
        async def step(self, action):
            finite = np.asarray(action).dtype.kind == "f" and np.isfinite(action).all()
            return await super().step(np.clip(action, 0, 1) if finite else action)

    return Broken


@breaks("refused changed the episode")
def moves_before_it_refuses(good):
    class Broken(good):
        async def step(self, action):
            self.left -= 0.125
            return await super().step(action)

    return Broken


@breaks("did not end within")
def never_ends(good):
    class Broken(good):
        async def step(self, action):
            self.left, self.steps = 20.0, 0
            return await super().step(action)

    return Broken


@breaks("step after the end of the episode must raise RuntimeError")
def goes_on_after_the_end(good):
    class Broken(good):
        steps = None

        async def step(self, action):
            if self.steps is not None:
                self.over = False
            return await super().step(action)

    return Broken


@breaks("step before reset must raise RuntimeError, but raised AttributeError")
def step_before_reset(good):
    class Broken(good):
        async def step(self, action):
            self.steps += 0
            return await super().step(action)

    return Broken


@breaks("must have `frames` with the stream 'often'")
def no_frames(good):
    class Broken(good):
        def __init__(self):
            super().__init__()
            self.spec = self.spec.__class__(**{**vars(self.spec), "renders": True})

    return Broken


@breaks("came with steps \\[0, 4\\] instead of \\[0, 4, 8, 12\\]")
def first_frames_only(good):
    class Broken(no_frames(good)):
        async def reset(self, *, seed=None, options=None):
            observation, info = await super().reset(seed=seed, options=options)
            self.streams = (options or {}).get("frames", {})
            return observation, info | {"frames": self.taken([0])}

        async def step(self, action):
            *values, info = await super().step(action)
            every_step = {
                name: request for name, request in self.streams.items() if request.every == 1
            }
            seldom = self.streams if self.steps == 4 else every_step
            return (*values, info | {"frames": self.taken([self.steps], seldom)})

        def taken(self, steps, streams=None):
            chosen = self.streams if streams is None else streams
            images = {
                name: np.zeros((1, request.size, request.size, 3), np.uint8)
                for name, request in chosen.items()
            }
            return {name: Frames(image, tuple(steps)) for name, image in images.items()}

    return Broken


@pytest.mark.parametrize("name", BREAKS)
def test_broken_environment_is_caught(name, own_module):
    make, sentence = BREAKS[name]
    with pytest.raises(AssertionError, match=sentence):
        check_env(make(own_module.CountdownEnv)())


def test_good_environment_passes_and_is_closed(own_module):
    class Counted(own_module.CountdownEnv):
        closed = 0

        async def close(self):
            self.closed += 1

    env = Counted()
    check_env(env)
    assert env.closed == 2


def test_environment_that_cannot_be_replayed_may_differ(own_module):
    class Real(ignores_the_seed(own_module.CountdownEnv)):
        def __init__(self):
            super().__init__()
            self.spec = self.spec.__class__(**{**vars(self.spec), "replayable": False})

    check_env(Real())
