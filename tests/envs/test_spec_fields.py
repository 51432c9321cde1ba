"""Fields of a spec that are refused, and numbers that are accepted as well."""

import dataclasses
import math

import numpy as np
import pytest
from gymnasium import spaces

from envs.base import EnvSpec, SimulatorMemory, decision_space

SPEC = EnvSpec("walk", ("walk",), spaces.Discrete(10), spaces.Discrete(2), max_episode_steps=30)
BYTES = r"must be a number of bytes from 0 to 1e\+15, got "


@pytest.mark.parametrize("field", ["server", "scene", "simulator"])
@pytest.mark.parametrize(
    "value",
    ["x", None, [1], np.ones(2), True, math.nan, math.inf, np.float32("nan"), -1e12, 10**400, 2e15],
    ids=str,
)
def test_memory_that_is_no_number_of_bytes_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^SimulatorMemory\.{field} {BYTES}"):
        SimulatorMemory(**{"server": 1.0, field: value})


def test_whether_simulators_are_bounded_is_true_or_false() -> None:
    with pytest.raises(ValueError, match=r"bounded must be True or False, got 'no'\."):
        SimulatorMemory(server=1.0, bounded="no")


@pytest.mark.parametrize("number", [0, 3, 3.0, np.float32(3), np.float16(3), np.int64(3)])
def test_numbers_of_numpy_are_numbers(number: float) -> None:
    memory = SimulatorMemory(server=number, scene=number)
    assert dataclasses.replace(SPEC, slowest_step_s=number, memory=memory).memory.scene == number


@pytest.mark.parametrize("value", ["3", None, True, -1, math.nan, math.inf, 10**400], ids=str)
def test_a_duration_that_is_no_finite_number_is_refused(value: object) -> None:
    expected = r"EnvSpec\.slowest_step_s must be a finite number of seconds, at least 0, got "
    with pytest.raises(ValueError, match=expected):
        dataclasses.replace(SPEC, slowest_step_s=value)


@pytest.mark.parametrize("tasks", [("left", "left"), ("a",) * 200_000], ids=["two", "many"])
def test_a_task_that_is_named_twice_is_refused_in_a_short_sentence(tasks: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"tasks must be .* each once, got ") as refusal:
        dataclasses.replace(SPEC, tasks=tasks)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("tasks", ["walk", ["walk"], ("",), (1,)], ids=str)
def test_tasks_with_a_distance_are_a_tuple_of_names_or_unknown(tasks: object) -> None:
    assert dataclasses.replace(SPEC, tasks_with_distance=()).tasks_with_distance == ()
    assert SPEC.tasks_with_distance is None
    with pytest.raises(ValueError, match="must be a tuple of tasks' names, or None, got "):
        dataclasses.replace(SPEC, tasks_with_distance=tasks)


def test_a_thousand_agents_are_the_most() -> None:
    assert dataclasses.replace(SPEC, num_agents=1000).num_agents == 1000
    with pytest.raises(ValueError, match=r"num_agents must be a whole number from 1 to 1000, got "):
        dataclasses.replace(SPEC, num_agents=10**9)


def test_memory_set_behind_the_back_of_the_frozen_class_is_refused() -> None:
    memory = SimulatorMemory(server=1.0)
    spec = dataclasses.replace(SPEC, memory=memory)
    vars(memory)["scene"] = "x"
    with pytest.raises(ValueError, match=rf"^SimulatorMemory\.scene {BYTES}'x'\.$"):
        spec.check()


@pytest.mark.parametrize("decisions", [[3, 5], (3, 0), (3.0, 5.0), (True,), 3], ids=str)
def test_decisions_that_are_not_whole_numbers_are_refused(decisions: object) -> None:
    with pytest.raises(ValueError, match=r"decisions must be a tuple of whole numbers of at least"):
        dataclasses.replace(SPEC, action_space=decision_space((3, 5)), decisions=decisions)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(2), spaces.Box(-1, 1, (2,)), decision_space((5, 3))], ids=str
)
def test_decisions_need_their_action_space(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"decisions \(3, 5\) need the action space Box\(-0\.5, "):
        dataclasses.replace(SPEC, action_space=space, decisions=(3, 5))
    fits = dataclasses.replace(SPEC, action_space=decision_space((3, 5)), decisions=(3, 5))
    assert fits.decisions == (3, 5)
