"""Invalid answers of an environment are detected."""

import asyncio
import dataclasses

import gymnasium
import numpy as np
import pytest
from probe_envs import WalkEnv

from envs.answer_checks import fault_of_observation, fault_of_reset, fault_of_step
from envs.base import PROPRIOCEPTION
from siirl.env_server.server import EnvServer, RaisedError, Request

SPEC = WalkEnv().spec
GOOD = {PROPRIOCEPTION: np.zeros(2, np.float32), "instruction": "walk"}
INFO = {"success": False, "executed": 8}


def test_good_results_have_no_fault():
    assert fault_of_reset((GOOD, {}), spec=SPEC) is None
    assert fault_of_step((GOOD, 0.5, False, True, INFO), spec=SPEC, num_actions=8) is None


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(3, np.float32), r"float32 \(3,\) instead of float32 \(2,\)"),
        (np.zeros(2, np.float64), r"float64 \(2,\) instead of float32 \(2,\)"),
        (np.array([0.0, np.nan], np.float32), r"\[1\] is nan; 1 of 2 values are NaN or infinite"),
        (np.array([-np.inf, np.nan], np.float32), r"\[0\] is -inf; 2 of 2 values"),
        ([0.0, 0.0], "instead of an array"),
    ],
)
def test_a_bad_array_is_named_with_its_place(array, words):
    with pytest.raises(AssertionError, match=rf"observation\['proprioception'\].*{words}"):
        fault = fault_of_reset(({**GOOD, PROPRIOCEPTION: array}, {}), spec=SPEC)
        raise AssertionError(fault)


@pytest.mark.parametrize(
    "observation", [None, {PROPRIOCEPTION: GOOD[PROPRIOCEPTION]}, {**GOOD, "more": 1}]
)
def test_an_observation_must_have_exactly_the_keys_of_its_space(observation):
    assert "instead of a dict with" in (fault_of_reset((observation, {}), spec=SPEC) or "")


@pytest.mark.parametrize(
    "reward", [float("nan"), float("inf"), 1e300, -1.1e15, 10**400, None, "1", np.zeros(2)]
)
def test_a_reward_must_be_a_finite_number_whose_square_float32_holds(reward):
    assert "instead of a finite number" in (
        fault_of_step((GOOD, reward, False, False, INFO), spec=SPEC, num_actions=8) or ""
    )


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((GOOD, 0.0, False, INFO), "instead of five values"),
        ((GOOD, 0.0, 0, False, INFO), "terminated is int 0"),
        ((GOOD, 0.0, False, False, {"success": False}), "executed"),
        ((GOOD, 0.0, False, False, {"success": False, "executed": 9}), "after a chunk of 8"),
        (
            (GOOD, 0.0, False, False, {"success": False, "executed": 5}),
            "but the episode has not ended",
        ),
        ((GOOD, 0.0, False, False, {"executed": 8}), "reports_success"),
        ((GOOD, 0.0, False, False, None), "info is NoneType"),
        ((GOOD, 0.0, False, False, {**INFO, "oracle_distance": None}), "instead of a number"),
        ((GOOD, 0.0, False, False, {**INFO, "oracle_distance": "far"}), "is str 'far' instead of"),
    ],
)
def test_a_bad_step_is_named(result, words):
    assert words in (fault_of_step(result, spec=SPEC, num_actions=8) or "")


def test_success_may_be_missing_only_if_the_spec_says_that_some_episodes_are_not_graded():
    result = (GOOD, 0.0, True, False, {"success": None, "executed": 8})
    assert "info['success'] is NoneType None" in (
        fault_of_step(result, spec=SPEC, num_actions=8) or ""
    )
    lenient = dataclasses.replace(SPEC, leaves_ungraded=True)
    assert fault_of_step(result, spec=lenient, num_actions=8) is None
    unsaid = (GOOD, 0.0, True, False, {"executed": 8})
    assert "reports_success" in (fault_of_step(unsaid, spec=lenient, num_actions=8) or "")


def test_bounds_of_a_box_are_not_checked():
    space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert fault_of_observation(np.array([1.01], np.float32), space) is None


def test_other_spaces_check_their_own_observations():
    assert fault_of_observation(3, gymnasium.spaces.Discrete(4)) is None
    assert "is not in Discrete(4)" in (fault_of_observation(4, gymnasium.spaces.Discrete(4)) or "")
    nested = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(0, 255, (2,), np.uint8)]
    )
    assert fault_of_observation((1, np.zeros(2, np.uint8)), nested) is None
    assert "observation[1] is" in (fault_of_observation((1, np.zeros(2, np.int64)), nested) or "")


def test_the_observation_of_one_of_several_agents_is_named_by_its_number():
    spec = dataclasses.replace(SPEC, num_agents=3)
    bad = {**GOOD, "instruction": 1}
    assert (fault_of_reset(([None, GOOD, bad], {}), spec=spec) or "").startswith(
        "observation[2]['instruction'] is int 1 instead of text"
    )


class OldStep(WalkEnv):
    """Gym's step before 0.26."""

    async def step(self, action):
        observation, reward, terminated, _, info = await super().step(action)
        return observation, reward, terminated, info


class PlainStep(WalkEnv):
    """Not `async def`."""

    def step(self, action):
        return None


class AloneReset(WalkEnv):
    """Gym's reset before 0.26."""

    async def reset(self, *, seed, options=None):
        observation, _ = await super().reset(seed=seed, options=options)
        return observation


class PlainReset(WalkEnv):
    """Not `async def`."""

    def reset(self, *, seed, options=None):
        return {}, {}


class WordReward(WalkEnv):
    """Its reward is a text."""

    async def step(self, action):
        observation, _, *rest = await super().step(action)
        return observation, "1.0", *rest


class ListInfo(WalkEnv):
    """Its info is a list."""

    async def step(self, action):
        *values, _ = await super().step(action)
        return *values, []


@pytest.mark.parametrize(
    ("cls", "sentence"),
    [
        (WordReward, "WordReward.step returned the reward '1.0': return a number."),
        (ListInfo, "ListInfo.step returned the info []: return a dict."),
        (
            OldStep,
            "OldStep.step must return (observation, reward, terminated, truncated, info), but "
            "returned 4 values.",
        ),
        (PlainStep, "PlainStep.step is a plain function: define it with `async def`."),
        (AloneReset, "AloneReset.reset must return (observation, info), but returned a dict."),
        (PlainReset, "PlainReset.reset is a plain function: define it with `async def`."),
    ],
)
def test_a_method_of_an_older_form_is_refused_with_the_form_that_it_needs(cls, sentence):
    server = EnvServer(env_name=f"{__name__}:{cls.__name__}", env_kwargs={}, num_envs=1)
    answers = []

    async def play():
        assert await server.open() is None
        for method, arguments in (("reset", (0, None)), ("step_chunk", ([np.zeros(1)],))):
            request = Request(0, method, arguments)
            await server.handle([request], lambda _, answered: answers.extend(answered.values))
        await server.close()

    asyncio.run(play())
    told = [answer for answer in answers if isinstance(answer, RaisedError)]
    assert (told[0].kind, told[0].summary + ".", told[0].trace) == ("form", sentence, "")
