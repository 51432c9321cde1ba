"""Checks of the fields of an environment's spec, each with the expectation that a message states.

Left out: conditions on several fields, which the dataclasses of `envs.base` check themselves.
"""

import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Check = tuple[Callable[[Any], bool], str]
"""Whether a value is sound, and what it must be."""

MOST_AGENTS = 1000  # a step has an action and an observation of each
MOST_BYTES = 1e15  # a petabyte: more memory than any machine has


def check_fields(owner: object, checks: Mapping[str, Check]) -> None:
    """Raise ValueError for the first field of `owner` that is not sound."""
    for name, (is_sound, expected) in checks.items():
        value = getattr(owner, name)
        if not is_sound(value):
            raise ValueError(
                f"{type(owner).__name__}.{name} must be {expected}, got {reprlib.repr(value)}."
            )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_tasks(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and all(map(_is_name, value))
        and len(set(value)) == len(value) > 0
    )


def _are_agents(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and all(map(_is_name, value))
        and len(set(value)) == len(value) != 1
    )


def _are_decisions(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_count, value))


def _is_count(value: object, most: int = sys.maxsize) -> bool:
    return (
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and 1 <= int(value) <= most
    )


def _is_number(value: Any, most: float = sys.float_info.max) -> bool:
    """Whether it is a number from 0 to `most`, of Python or of numpy."""
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        return False
    number = value.item() if isinstance(value, np.generic) else value  # `most` is no float16
    return bool(0 <= number <= most)


def _is_space(value: object) -> bool:
    import gymnasium

    return isinstance(value, gymnasium.Space)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


_SPACE = (_is_space, "a gymnasium.Space")
_COUNT = (_is_count, "a whole number of at least 1")
_FLAG = (_is_flag, "True or False")
_TEXT = (lambda value: isinstance(value, str), "text")
_BYTES = (
    lambda value: _is_number(value, MOST_BYTES),
    f"a number of bytes from 0 to {MOST_BYTES:g}",
)

SPEC_FIELDS: dict[str, Check] = {
    "name": (_is_name, "a name"),
    "tasks": (_are_tasks, "a tuple of at least one task's name, each once"),
    "observation_space": _SPACE,
    "action_space": _SPACE,
    "max_episode_steps": _COUNT,
    "reports_success": _FLAG,
    "tasks_with_distance": (
        lambda value: value is None or (isinstance(value, tuple) and all(map(_is_name, value))),
        "a tuple of tasks' names, or None",
    ),
    "renders": _FLAG,
    "replayable": _FLAG,
    "decisions": (_are_decisions, "a tuple of whole numbers of at least 1, or empty"),
    "instruction_changes": _FLAG,
    "num_agents": (
        lambda value: _is_count(value, MOST_AGENTS),
        f"a whole number from 1 to {MOST_AGENTS}",
    ),
    "agent_names": (_are_agents, "a tuple of distinct names, or empty"),
    "check_row": (lambda value: value is None or callable(value), "a function, or None"),
    "leaves_ungraded": _FLAG,
    "slowest_step_s": (_is_number, "a finite number of seconds, at least 0"),
    "needs_opengl": _FLAG,
    "notice": _TEXT,
    "expert": _TEXT,
    "expert_seed": (
        lambda value: value is None or _is_count(value),
        "a seed of at least 1, or None",
    ),
}
"""Fields of `envs.base.EnvSpec`, except `memory`."""

MEMORY_FIELDS: dict[str, Check] = {
    "server": _BYTES,
    "scene": _BYTES,
    "simulator": _BYTES,
    "bounded": _FLAG,
}
"""Fields of `envs.base.SimulatorMemory`."""
