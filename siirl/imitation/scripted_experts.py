"""Scripted experts, whose actions stay within the environment's action space.

Left out: episodes of an expert (`siirl.imitation.behaviour_cloning`).
"""

# A action dimension

import functools
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.base import Environment, EnvSpec
from envs.mistakes import user_code
from siirl.errors import ConfigError
from siirl.params.references import load_reference


def half_range(low_A: NDArray[Any], high_A: NDArray[Any]) -> NDArray[Any]:
    """Unit of the noise on actions [A]: half their range; without two bounds 1, as from -1 to 1."""
    bounded_A = np.isfinite(low_A) & np.isfinite(high_A)
    return np.where(bounded_A, high_A / 2.0 - low_A / 2.0, 1.0)


class ScriptedExpert(ABC):
    """The expert of a task; `place` names it in messages."""

    def __init__(self, act: Callable[[Environment], Any], *, place: str) -> None:
        self._act, self._place = act, place

    def action(self, environment: Environment) -> NDArray[Any]:
        """The expert's next action, in the action space.

        Raises:
            ConfigError: The expert raised, or its action cannot be cloned.
        """
        with user_code(functools.partial(_raised, self._place)):
            returned = self._act(environment)
            numbers = np.asarray(returned)
        if numbers.dtype.kind not in "iuf":
            found = f"the text {reprlib.repr(returned)}" if type(returned) is str else None
            found = found or f"the type {type(returned).__name__} ({numbers.dtype})"
            raise self._refusal("a number or an array of numbers", found)
        return self._in_space(numbers)

    @abstractmethod
    def _in_space(self, numbers: NDArray[Any]) -> NDArray[Any]: ...

    @abstractmethod
    def disturbed(
        self, action: NDArray[Any], *, noise: float, generator: np.random.Generator
    ) -> NDArray[Any]:
        """The action that the environment gets: with noise, and in the action space."""

    def _refusal(self, expected: str, found: object) -> ConfigError:
        return ConfigError(
            f"{self._place} must act with {expected}, as EnvSpec.action_space says, but its "
            f"action has {found}: correct the expert."
        )


class VectorExpert(ScriptedExpert):
    """Acts in a Box of one dimension; actions beyond its bounds are clipped, as for a policy."""

    def __init__(
        self, act: Callable[[Environment], Any], *, space: gymnasium.spaces.Box, place: str
    ) -> None:
        super().__init__(act, place=place)
        self._space = space
        self._half_range_A = half_range(space.low, space.high)

    def _in_space(self, numbers: NDArray[Any]) -> NDArray[Any]:
        if numbers.shape != self._space.shape:
            raise self._refusal(f"the shape {self._space.shape}", f"the shape {numbers.shape}")
        if not np.isfinite(numbers).all():
            raise self._refusal("finite numbers", f"the numbers {reprlib.repr(numbers.tolist())}")
        return self._clipped(numbers)

    def disturbed(
        self, action: NDArray[Any], *, noise: float, generator: np.random.Generator
    ) -> NDArray[Any]:
        """See `ScriptedExpert.disturbed`; `noise` is a deviation in units of `half_range`."""
        noise_A = noise * generator.standard_normal(action.shape) * self._half_range_A
        return self._clipped(action + noise_A)

    def _clipped(self, numbers: NDArray[Any]) -> NDArray[Any]:
        clipped = np.clip(numbers, self._space.low, self._space.high)
        return clipped.astype(self._space.dtype)


class IntegerExpert(ScriptedExpert):
    """Acts in a Discrete space."""

    def __init__(
        self, act: Callable[[Environment], Any], *, space: gymnasium.spaces.Discrete, place: str
    ) -> None:
        super().__init__(act, place=place)
        self._first, self._last = int(space.start), int(space.start + space.n) - 1

    def _in_space(self, numbers: NDArray[Any]) -> NDArray[Any]:
        is_whole = numbers.shape == () and numbers.dtype.kind in "iu"
        if not is_whole or not self._first <= int(numbers) <= self._last:
            raise self._refusal(
                f"a whole number from {self._first} to {self._last}",
                f"the value {reprlib.repr(numbers.tolist())}",
            )
        return numbers.astype(np.int64)

    def disturbed(
        self, action: NDArray[Any], *, noise: float, generator: np.random.Generator
    ) -> NDArray[Any]:
        """See `ScriptedExpert.disturbed`; integers have no noise (`check_noise`)."""
        return action


def make_experts(
    reference: str, tasks: Sequence[str], *, spec: EnvSpec, place: str
) -> dict[str, ScriptedExpert]:
    """An expert per task, from `module:function`; `place` names its origin in messages.

    Raises:
        ConfigError: The function does not exist, or does not make an expert from a task's name, or
            the environment's actions cannot be cloned.
    """
    make_expert: Callable[[str], Any] = load_reference(reference, place=place)
    source = f"{place}={reference}"
    experts: dict[str, ScriptedExpert] = {}
    for task in tasks:
        with user_code(functools.partial(_not_made, source, task)):
            act = make_expert(task)
        if not callable(act):
            raise ConfigError(
                f"{source} made a {type(act).__name__} for {task!r}: it must be called with the "
                "environment."
            )
        experts[task] = _in_space_of(spec, act, place=f"{source}: the expert of {task!r}")
    return experts


def _in_space_of(spec: EnvSpec, act: Callable[[Environment], Any], *, place: str) -> ScriptedExpert:
    space = spec.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return IntegerExpert(act, space=space, place=place)
    if isinstance(space, gymnasium.spaces.Box) and _is_vector(space):
        return VectorExpert(act, space=space, place=place)
    raise ConfigError(
        f"The action space {space} of {spec.name!r} is neither Discrete nor a one-dimensional Box "
        "of floating-point numbers, so its actions cannot be cloned: wrap the environment to make "
        "it so."
    )


def _is_vector(space: gymnasium.spaces.Box) -> bool:
    return len(space.shape) == 1 and np.dtype(space.dtype).kind == "f"


def check_noise(flag: str, given: float | None, *, discrete: bool) -> None:
    """Raise ConfigError for noise on integer actions; None: the flag was not given."""
    if discrete and given is not None and given > 0:
        raise ConfigError(
            f"{flag} {given}: the actions are integers, to which no noise can be added; leave it "
            "out."
        )


def _not_made(source: str, task: str, raised: str) -> ConfigError:
    return ConfigError(f"{source}: making the expert of {task!r} raised {raised}.")


def _raised(place: str, raised: str) -> ConfigError:
    return ConfigError(f"{place} raised {raised}.")
