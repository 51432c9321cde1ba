"""Arms of gymnasium-robotics and robosuite: the contract, the scripted experts, the pictures.

gymnasium-robotics is in no lock of siirl: its cases are skipped here, and run where
`test_gymnasium_ids` installs it.
"""

import asyncio
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION
from envs.checker import check_env
from envs.gymnasium import GymnasiumEnv
from envs.gymnasium_arms import expert
from siirl.params.parser import parse_config

ROBOTICS = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium_robotics") is None,
    reason="gymnasium-robotics is not installed (docs/environments.md has the command)",
)
ROBOSUITE = pytest.mark.skipif(
    importlib.util.find_spec("robosuite") is None, reason="robosuite is not installed"
)
ARMS = [
    pytest.param("fetch_reach", 10, marks=ROBOTICS),
    pytest.param("fetch_push", 10, marks=ROBOTICS),
    pytest.param("robosuite_lift", 9, marks=[ROBOSUITE, pytest.mark.slow]),  # compiles by Numba
]


def arm(preset: str, **kwargs) -> GymnasiumEnv:
    config = parse_config([f"env={preset}"])
    assert config.env.name == "gymnasium"
    return GymnasiumEnv(**config.env.constructor_kwargs(), **kwargs)


@pytest.mark.parametrize(("preset", "numbers"), ARMS)
def test_an_arm_is_seen_by_its_preset_and_passes_the_contract(preset, numbers):
    environment = arm(preset, size=48)
    spaces = environment.spec.observation_space.spaces
    assert spaces.keys() == {IMAGES, PROPRIOCEPTION, INSTRUCTION}
    assert (spaces[IMAGES].shape, spaces[PROPRIOCEPTION].shape) == ((1, 48, 48, 3), (numbers,))
    assert environment.spec.reports_success and environment.spec.renders
    check_env(environment)


@pytest.mark.parametrize(("preset", "numbers"), ARMS)
def test_the_scripted_expert_succeeds_and_the_goal_moves_in_the_picture_alone(preset, numbers):
    environment = arm(preset)
    act = expert(environment.spec.tasks[0])

    async def play(seed: int):
        first, _ = await environment.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, info = await environment.step(act(environment))
            ended = terminated or truncated
        return first, info["success"]

    async def plays():
        return [await play(seed) for seed in range(3)]

    played = asyncio.run(plays())
    asyncio.run(environment.close())
    assert [success for _, success in played] == [True] * 3
    one, other = played[0][0], played[1][0]
    assert (one[IMAGES] != other[IMAGES]).any()
    if preset != "robosuite_lift":  # whose robot begins with noise of its own
        assert np.allclose(one[PROPRIOCEPTION], other[PROPRIOCEPTION], atol=1e-3)


@pytest.mark.parametrize(("preset", "numbers"), ARMS)
def test_a_picture_may_be_larger_than_mujocos_own_buffer(preset, numbers):
    environment = arm(preset, size=648)
    observation, _ = asyncio.run(environment.reset(seed=0))
    asyncio.run(environment.close())
    assert observation[IMAGES].shape == (1, 648, 648, 3)


@pytest.mark.parametrize(("preset", "numbers"), ARMS)
def test_seeds_of_more_than_32_bits_are_different_episodes(preset, numbers):
    environment = arm(preset)

    async def first_picture(seed: int):
        return (await environment.reset(seed=seed))[0][IMAGES]

    async def pictures():
        return [await first_picture(seed) for seed in (2**32 - 1, 2**32, 2**64, 2**32)]

    last, first, far, again = asyncio.run(pictures())
    asyncio.run(environment.close())
    assert (first == again).all()
    assert all((first != other).any() for other in (last, far))


def test_without_its_package_the_remedy_is_the_documents_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(
        RuntimeError, match=r"not installed: .*Type: pip install --no-deps gym"
    ) as told:
        arm("fetch_reach")
    documents = Path(__file__).parents[2] / "docs" / "environments.md"
    assert str(told.value).partition("Type: ")[2] in documents.read_text()


@pytest.mark.parametrize("preset", ["fetch_reach", "robosuite_lift"])
@pytest.mark.parametrize("size", [0, 7.5, "big"])
def test_a_size_that_is_not_a_number_of_pixels_is_refused(preset, size):
    with pytest.raises(ValueError, match="size must be a whole number of at least 1, got"):
        arm(preset, size=size)
