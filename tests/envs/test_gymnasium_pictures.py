"""Pictures of Gymnasium observations: stacks of frames, channels first, and what is no picture."""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from envs.base import IMAGES, PROPRIOCEPTION
from envs.checker import check_env
from envs.gymnasium import GymnasiumEnv
from envs.gymnasium_spaces import ObservationLayout


def box(*shape, high=255, dtype=np.uint8):
    return spaces.Box(0, high, shape, dtype)


def numbered(shape, axis):
    """A picture whose values are its place along `axis`."""
    places = np.arange(shape[axis], dtype=np.uint8)
    return np.broadcast_to(
        places.reshape([-1 if other == axis else 1 for other in range(len(shape))]), shape
    )


class Film(gymnasium.Env):
    """Grey pictures of 8 x 9 pixels that show the step's number."""

    observation_space = box(8, 9)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros((8, 9), np.uint8), {}

    def step(self, action):
        self.time += 1
        return np.full((8, 9), self.time, np.uint8), 0.0, False, False, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    name = "siirl-film/Stacked-v0"
    gymnasium.register(name, lambda: FrameStackObservation(Film(), 4), max_episode_steps=6)
    yield name
    del gymnasium.registry[name]


def test_four_stacked_frames_are_four_pictures_the_oldest_first(registered):
    async def play():
        env = GymnasiumEnv(id=registered)
        await env.reset(seed=0)
        return [(await env.step(0))[0] for _ in range(3)][-1]

    observation = asyncio.run(play())
    assert set(observation) == {IMAGES}
    assert observation[IMAGES].shape == (4, 8, 9, 3)
    assert observation[IMAGES][:, 2, 3, 1].tolist() == [0, 1, 2, 3]


def test_a_stack_of_frames_keeps_the_contract(registered):
    check_env(GymnasiumEnv(id=registered))


@pytest.mark.parametrize(
    ("shape", "axis", "pictures", "pixel"),
    [
        ((4, 84, 80), 0, 4, [[0] * 3, [1] * 3, [2] * 3, [3] * 3]),  # frames, grey
        ((84, 80, 4), 2, 4, [[0] * 3, [1] * 3, [2] * 3, [3] * 3]),
        ((1, 84, 80), 0, 1, [[0, 0, 0]]),
        ((3, 84, 80), 0, 1, [[0, 1, 2]]),  # channels first
        ((84, 80, 6), 2, 2, [[0, 1, 2], [3, 4, 5]]),  # two coloured frames
        ((2, 84, 80, 3), 3, 2, [[0, 1, 2], [0, 1, 2]]),
        ((2, 3, 84, 80), 1, 2, [[0, 1, 2], [0, 1, 2]]),
        ((2, 84, 80, 1), 0, 2, [[0] * 3, [1] * 3]),
    ],
)
def test_each_layout_of_frames_and_channels_is_read_as_pictures(shape, axis, pictures, pixel):
    layout = ObservationLayout(box(*shape), name="film")
    assert layout.space[IMAGES].shape == (pictures, 84, 80, 3)
    seen = layout.read(numbered(shape, axis))[IMAGES]
    assert seen.shape == (pictures, 84, 80, 3)
    assert seen[:, 5, 6].tolist() == pixel
    assert layout.notice == ""


@pytest.mark.parametrize(
    "space",
    [
        box(84, 80, 3, high=1, dtype=np.float32),
        box(5, 6, 7),  # no axis is channels
        box(4, 10, 10, high=1),  # layers of zeros and ones
    ],
)
def test_what_may_be_meant_as_a_picture_and_is_not_is_said_in_the_notice(space):
    layout = ObservationLayout(spaces.Dict({"eye": space}), name="film")
    assert layout.space[PROPRIOCEPTION].shape == (np.prod(space.shape),)
    assert "at 'eye' is read as numbers; a picture is uint8 from 0 to 255" in layout.notice


def test_a_table_of_numbers_is_not_a_picture_and_needs_no_notice():
    table = spaces.Box(-1.0, 1.0, (5, 5))
    assert ObservationLayout(table, name="traffic").notice == ""


def test_a_picture_of_another_shape_than_its_space_is_refused():
    layout = ObservationLayout(box(4, 84, 80), name="film")
    with pytest.raises(ValueError, match=r"must have shape \(4, 84, 80\), got \(3, 84, 80\)"):
        layout.read(np.zeros((3, 84, 80), np.uint8))
