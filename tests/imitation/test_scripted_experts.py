"""Actions of scripted experts: within the environment's own space, or refused."""

import dataclasses
import json
import math

import numpy as np
import pytest
from gymnasium import spaces

from siirl.errors import ConfigError
from siirl.imitation.scripted_experts import IntegerExpert, VectorExpert, half_range, make_experts
from siirl.terminal.exit_status import FAILED, REFUSED
from siirl.warm_start import main
from tests.imitation import levers
from tests.imitation.levers import Buttons, Leaving, Narrow, Stuck, Unscored, Wide

EXPERT = "tests.imitation.levers:expert"
JOB = ("--demonstrations=2", "--updates=2", "--batch-rows=4", "--groups=0", "env=custom")


def vector(action: object, *, low: float = -2.0, high: float = 2.0) -> VectorExpert:
    space = spaces.Box(low, high, (1,), np.float32)
    return VectorExpert(lambda environment: action, space=space, place="the expert")


def integer(action: object, *, start: int = 0) -> IntegerExpert:
    space = spaces.Discrete(3, start=start)
    return IntegerExpert(lambda environment: action, space=space, place="the expert")


def warm_start(tmp_path, world: type[Wide], *words: str) -> int:
    world.received.clear()
    name = f"env.name=tests.imitation.levers:{world.__name__}"
    return main(["--output", str(tmp_path / "out"), *JOB, name, *words])


@pytest.mark.parametrize(
    ("world", "noise", "expected"),
    [(Wide, "0", 1.8), (Narrow, "0", 0.09), (Buttons, None, 2)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_environment_gets_its_experts_actions(tmp_path, world, noise, expected) -> None:
    words = [] if noise is None else ["--noise", noise]
    assert warm_start(tmp_path, world, *words) == 0
    assert np.ravel(world.received) == pytest.approx([expected] * 6)
    notes = json.loads((tmp_path / "out" / "config.json").read_text())["notes"]
    assert (notes["demonstrations"], notes["observations"]) == (2, 6)


def test_noise_stays_in_the_space_and_is_in_units_of_half_its_range(tmp_path) -> None:
    assert warm_start(tmp_path, Narrow, "--noise", "5") == 0
    assert max(np.abs(np.ravel(Narrow.received))) == np.float32(0.1)
    generator = np.random.default_rng(0)
    expert = vector(0.0, low=-200.0, high=200.0)
    disturbed = [
        expert.disturbed(np.zeros(1, np.float32), noise=0.1, generator=generator)
        for _ in range(1000)
    ]
    assert np.std(disturbed) == pytest.approx(20.0, rel=0.1)


def test_between_minus_one_and_one_noise_is_added_and_clipped_as_numbers() -> None:
    wanted = vector(np.array([0.9]), low=-1.0, high=1.0).action(Wide())
    expert, generator = vector(0.0, low=-1.0, high=1.0), np.random.default_rng(3)
    drawn = np.random.default_rng(3).standard_normal((50, 1))
    for noise in drawn:
        expected = np.clip(wanted + 0.3 * noise, -1.0, 1.0).astype(np.float32)
        found = expert.disturbed(wanted, noise=0.3, generator=generator)
        assert found.dtype == np.float32
        assert np.array_equal(found, expected)


def test_half_a_range_without_two_bounds_is_one() -> None:
    low, high = np.array([-math.inf, -3.0, 0.0]), np.array([math.inf, math.inf, 4.0])
    assert half_range(low, high).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("action", [np.array([5.0]), [3], np.array([7], np.int64)], ids=repr)
def test_an_action_beyond_the_bounds_is_clipped(action: object) -> None:
    found = vector(action).action(Wide())
    assert (found.dtype, found.tolist()) == (np.float32, [2.0])


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ("left", "a number or an array of numbers, .* has the text 'left'"),
        (None, r"has the type NoneType \(object\)"),
        (np.array([True]), r"has the type ndarray \(bool\)"),
        (np.array([math.nan]), r"finite numbers, .* has the numbers \[nan\]"),
        (np.array([math.inf]), r"has the numbers \[inf\]"),
        (np.zeros((3, 3)), r"the shape \(1,\), .* has the shape \(3, 3\)"),
        (0.5, r"has the shape \(\)"),
        ([[1.0], [2.0, 3.0]], "raised ValueError"),
    ],
    ids=str,
)
def test_an_action_that_is_no_vector_of_the_space_is_refused(action, sentence) -> None:
    with pytest.raises(ConfigError, match=f"^the expert .*{sentence}"):
        vector(action).action(Wide())


@pytest.mark.parametrize("action", [3, -1, 1.0, np.array([1]), np.array([0.0, 1.0])], ids=repr)
def test_an_action_that_is_no_number_of_a_discrete_space_is_refused(action: object) -> None:
    with pytest.raises(ConfigError, match=r"must act with a whole number from 0 to 2, .*has the"):
        integer(action).action(Buttons())


def test_a_discrete_space_may_start_above_zero() -> None:
    assert integer(3, start=1).action(Buttons()) == 3
    with pytest.raises(ConfigError, match="a whole number from 1 to 3"):
        integer(0, start=1).action(Buttons())


@pytest.mark.parametrize(
    ("world", "words", "sentence"),
    [
        (Wide, ["--expert", "tests.imitation.levers:leaver"], "raised SystemExit: 0 ("),
        (Buttons, ["--expert", "tests.imitation.levers:speaker"], "has the text 'pull': correct"),
        (
            Stuck,
            ["--noise", "0.2"],
            "in 0 of 20 episodes: lower --noise=0.2, or raise env.max_episode_steps if",
        ),
        (
            Stuck,
            ["--noise", "0"],
            "in 0 of 20 episodes: without noise, correct it, or raise",
        ),
        (Buttons, ["--noise", "0.2"], "--noise 0.2: the actions are integers"),
    ],
)
def test_what_cannot_be_cloned_is_one_sentence(tmp_path, capsys, world, words, sentence) -> None:
    assert warm_start(tmp_path, world, *words) == REFUSED
    told = capsys.readouterr().err.replace("\n", " ")
    assert sentence in told
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "space",
    [spaces.MultiDiscrete([2, 2]), spaces.Box(0, 3, (1,), np.int64), spaces.Box(0, 1, (2, 2))],
)
def test_a_space_without_a_coding_is_refused(space: spaces.Space) -> None:
    spec = dataclasses.replace(levers.Wide().spec, action_space=space)
    with pytest.raises(ConfigError, match="is neither Discrete nor a one-dimensional Box"):
        make_experts(EXPERT, spec.tasks, spec=spec, place="--expert")


def test_an_environment_that_calls_sys_exit_fails_the_warm_start_with_a_sentence(
    tmp_path, capsys
) -> None:
    assert warm_start(tmp_path, Leaving) == FAILED
    message = capsys.readouterr().err
    assert "the environment raised in a demonstration of 'pull' with seed 900000" in message
    assert "SystemExit: 0" in message and "Traceback" not in message


def test_an_episode_that_cannot_be_scored_is_no_demonstration(tmp_path) -> None:
    Unscored.episodes = 0
    assert warm_start(tmp_path, Unscored) == 0
    assert Unscored.episodes == 3
