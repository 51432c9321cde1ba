"""JSON forms of infos and specs on an OpenEnv connection."""

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envs.base import EnvSpec, decision_space
from envs.openenv.wire import from_json, info_to_json, spec_from_json, spec_to_json


def test_an_array_without_numbers_stays_at_the_server() -> None:
    info = {
        "place": np.array([1.0], np.float32),
        "parts": np.array([object()], object),  # its bytes are an address in memory
        "names": np.array(["ab"]),
    }
    assert info_to_json(info) == {"place": {"dtype": "float32", "shape": [1], "base64": "AACAPw=="}}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": 1}, 'action 0 is {"a": 1} instead of float32 (2,) in lists or in {dtype, shape, '),
        ([True, 0.5], "action 0 is [true, 0.5] instead of float32 (2,)"),
        ([1, False], "action 0 is [1, false] instead of float32 (2,)"),
        (
            {"dtype": "int8", "shape": [2], "base64": ""},
            "action 0 is int8 [2] instead of float32 (2,)",
        ),
    ],
)
def test_an_array_of_another_form_is_refused_by_what_was_sent(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        from_json(value, spaces.Box(-1.0, 1.0, (2,)), where="action 0")


def test_a_spec_with_numbers_of_numpy_is_sent_as_json() -> None:
    spec = EnvSpec(
        "walk",
        ("walk",),
        spaces.Discrete(10),
        spaces.Discrete(2),
        max_episode_steps=np.int64(30),
        replayable=np.bool_(False),
    )
    received = spec_from_json(json.loads(json.dumps(spec_to_json(spec))))
    assert (received.max_episode_steps, received.replayable) == (30, False)


def test_tasks_of_a_spec_that_are_one_text_are_refused() -> None:
    spec = spec_to_json(EnvSpec("walk", ("walk",), spaces.Discrete(10), spaces.Discrete(2), 30))
    with pytest.raises(ValueError, match="tasks are 'walk' instead of a list"):
        spec_from_json({**spec, "tasks": "walk"})


def test_decisions_of_a_spec_are_received() -> None:
    counts = tuple(np.array([3, 5]))  # numbers of numpy
    spec = EnvSpec("pick", ("pick",), spaces.Discrete(10), decision_space(counts), 30)
    spec = dataclasses.replace(spec, decisions=counts)
    received = spec_from_json(json.loads(json.dumps(spec_to_json(spec))))
    assert (received.decisions, received.action_space) == ((3, 5), spec.action_space)
