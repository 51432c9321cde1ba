"""Environments with mistakes behind env=gymnasium: each is refused with a sentence of its own."""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from envs.base import FrameRequest, Misbehaved
from envs.gymnasium import GymnasiumEnv
from siirl.env_server.server import RaisedError

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


class Drawn(Sound):
    """Its `render` draws `picture`, or fails without one."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's form)

    def __init__(self, picture=None, render_mode=None):
        self.picture, self.render_mode = picture, render_mode

    def render(self):
        if self.picture is None:
            raise OSError("no display")
        return self.picture


class Undrawn(Sound):
    """Declares pictures, but has no `render`."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's form)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode


class Painter(gymnasium.Wrapper):
    """Draws the environment that it wraps."""

    def render(self):
        return np.full((8, 8, 3), 7, np.uint8)


class Painted:
    """Makes an environment whose wrapper has the `render`."""

    metadata = Undrawn.metadata

    def __new__(cls, render_mode=None):
        return Painter(Undrawn(render_mode))


class NoRenderMode(Sound):
    """Has a render mode, and a constructor that does not take it."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's form)

    def __init__(self):
        self.render_mode = None


class WordReward(Sound):
    """Its reward is a text."""

    def step(self, action):
        return SEEN, "1.0", False, False, {}


class Later(Sound):
    """Makes the mistake `kind` at its second step."""

    def __init__(self, kind):
        self.kind = kind

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return super().reset(seed=seed)[0], {"is_success": False}

    def step(self, action):
        self.time += 1
        sound = {"seen": SEEN, "terminated": False, "is_success": False}
        values = sound if self.time < 2 else sound | LATER[self.kind][0]
        if "raises" in values:
            raise ZeroDivisionError(values["raises"])
        info = values.get("info", {"is_success": values["is_success"]})
        return values["seen"], 1.0, values["terminated"], False, info


LATER = {
    "nan": ({"seen": np.array([np.nan, 0.0])}, "returned an observation that is not finite"),
    "large": (
        {"seen": np.array([1e300, 0.0])},
        r"observation beyond the range of float32, in which policies read it: \[1\.e\+300 0",
    ),
    "raises": ({"raises": "boom"}, r"step 2 raised ZeroDivisionError: boom \(.*mistakes\.py, line"),
    "raises lines": ({"raises": "two\nlines"}, r"raised ZeroDivisionError: two lines \(.*, line"),
    "success": ({"is_success": "yes"}, "returned is_success='yes', which must be true or false"),
    "successes": ({"is_success": np.array([True, False])}, "is_success=array.* true or false"),
    "half a success": ({"is_success": 0.5}, "returned is_success=0.5, which must be true or false"),
    "no number": ({"is_success": np.nan}, "returned is_success=nan, which must be true or false"),
    "no info": ({"info": None}, "returned None as its info after 2 steps, which must be a dict"),
    "ended": ({"terminated": "no"}, "returned terminated='no', which must be true or false"),
    "size": (
        {"seen": np.zeros(3)},
        r"outside its space Box\(.* after 2 steps: .*shape \(3,\) where the shape is \(2,\)",
    ),
    "none": ({"seen": None}, "after 2 steps: ValueError: None where the shape is"),
    "words": ({"seen": np.array(["1", "2"])}, "ValueError: array.* where numbers are expected"),
    "complex": ({"seen": np.array([1j, 0])}, "ValueError: array.* where numbers are expected"),
}
"""By kind: what the second step changes, and the sentence."""


class RaisesAtOnce(Sound):
    """Its `reset` fails."""

    def reset(self, *, seed=None, options=None):
        raise OSError("no file")


def several(**kwargs):
    return SyncVectorEnv([Sound, Sound])


@pytest.fixture(scope="module", autouse=True)
def registered():
    made = (Sound, OldStep, OldReset, NoDict, NoSpace, Drawn, NoRenderMode, WordReward, Later)
    made = (*made, RaisesAtOnce, several, Undrawn, Painted)
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
        ("RaisesAtOnce", r"its first reset and step raised OSError: no file \(.*, line"),
        ("NoDict", r"returned \[\] as the info of .* of step, which must be a dict"),
        ("NoSpace", "has observation_space None, which is not a Gymnasium space: set it"),
        ("several", "cannot be made: The environment must inherit from the gymnasium.Env class"),
    ],
)
def test_a_mistake_is_named_when_the_environment_is_made(name, sentence):
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        GymnasiumEnv(id=f"siirl-wrong/{name}-v0")


@pytest.mark.parametrize("kind", LATER)
def test_a_mistake_in_a_step_is_one_sentence_without_a_traceback(kind):
    async def play():
        env = GymnasiumEnv(id="siirl-wrong/Later-v0", kind=kind)
        await env.reset(seed=0)
        await env.step(0)
        await env.step(0)

    with pytest.raises(Misbehaved, match=LATER[kind][1]) as found:
        asyncio.run(play())
    raised = RaisedError.of(found.value)
    repeatable = kind in ("nan", "large", "raises", "raises lines")
    assert (raised.kind, raised.summary, raised.trace) == (
        "fault" if repeatable else "form",
        str(found.value).rstrip("."),
        "",
    )


def test_a_reward_that_is_a_text_is_refused():
    async def play():
        env = GymnasiumEnv(id="siirl-wrong/WordReward-v0")
        await env.reset(seed=0)
        await env.step(0)

    with pytest.raises(
        RuntimeError, match=r"returned reward '1\.0', but a reward must be a number"
    ):
        asyncio.run(play())


def test_an_environment_without_a_mistake_is_made():
    assert GymnasiumEnv(id="siirl-wrong/Sound-v0").spec.max_episode_steps == 3


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        (None, r"render raised OSError: no display \(.*, line"),
        (
            np.zeros((8, 8, 3)),
            "render returned no picture after 0 steps: .* must be uint8, got float64",
        ),
        ([np.zeros((8, 8, 3), np.uint8)], r"after 0 steps: .* shape .*, got \(1, 8, 8, 3\)"),
        (np.zeros((0, 0, 3), np.uint8), r"after 0 steps: .* shape .*, got \(0, 0, 3\)"),
    ],
)
def test_a_picture_that_is_none_is_a_fault_of_the_environment(picture, sentence):
    env = GymnasiumEnv(id="siirl-wrong/Drawn-v0", picture=picture)
    streams = {"video": FrameRequest(every=1, size=8)}
    with pytest.raises(Misbehaved, match=f"'siirl-wrong/Drawn-v0': .*{sentence}"):
        asyncio.run(env.reset(seed=0, options={"frames": streams}))


@pytest.mark.parametrize("picture", [None, np.zeros((8, 8, 3))])
@pytest.mark.parametrize("streams", [["recorder"], ["encoder"], ["recorder", "encoder"]])
def test_a_picture_that_only_the_videos_need_names_the_keys_that_turn_them_off(picture, streams):
    env = GymnasiumEnv(id="siirl-wrong/Drawn-v0", picture=picture)
    with pytest.raises(Misbehaved) as raised:
        asyncio.run(
            env.reset(
                seed=0, options={"frames": dict.fromkeys(streams, FrameRequest(every=1, size=8))}
            )
        )
    keys = "set trainer.record_episodes=0 trainer.record_val_episodes=0."
    assert (keys in str(raised.value)) == (streams == ["recorder"])


def test_an_environment_without_a_render_is_known_to_have_no_pictures():
    env = GymnasiumEnv(id="siirl-wrong/Undrawn-v0")
    assert not env.spec.renders
    with pytest.raises(ValueError, match="ask for no frames"):
        asyncio.run(env.reset(options={"frames": {"recorder": FrameRequest(every=1, size=8)}}))


def test_a_wrapper_may_draw_an_environment_without_a_render():
    env = GymnasiumEnv(id="siirl-wrong/Painted-v0")
    streams = {"recorder": FrameRequest(every=1, size=8)}
    _, info = asyncio.run(env.reset(seed=0, options={"frames": streams}))
    assert (info["frames"]["recorder"].images == 7).all()


def test_a_constructor_that_takes_no_render_mode_is_made_without_pictures():
    assert not GymnasiumEnv(id="siirl-wrong/NoRenderMode-v0").spec.renders


def test_an_environment_registered_as_nondeterministic_is_not_replayed():
    name = "siirl-wrong/Dice-v0"
    gymnasium.register(name, Sound, max_episode_steps=3, nondeterministic=True)
    try:
        assert not GymnasiumEnv(id=name).spec.replayable
    finally:
        del gymnasium.registry[name]
    assert GymnasiumEnv(id="siirl-wrong/Sound-v0").spec.replayable
