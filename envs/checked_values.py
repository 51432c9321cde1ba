"""Checks of single values against `envs.base`: a spec, an observation, the result of a step.

Each raises AssertionError for the first violation, in one sentence. Left out: episodes
(`envs.checker`).
"""

import asyncio
import pickle
from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.base import LARGEST_REWARD, EnvSpec, Observation, acting_agents, is_reward


def check_spec(spec: EnvSpec) -> None:
    """Fields of a spec have valid types and values."""
    require(isinstance(spec, EnvSpec), f"spec must be an EnvSpec, got {type(spec).__name__}")
    require(
        len(spec.tasks) > 0 and len(set(spec.tasks)) == len(spec.tasks),
        f"spec.tasks must be distinct names, got {spec.tasks}",
    )
    require(
        isinstance(spec.observation_space, gymnasium.Space),
        "spec.observation_space must be a gymnasium space",
    )
    require(
        isinstance(spec.action_space, gymnasium.Space),
        "spec.action_space must be a gymnasium space",
    )
    require(
        spec.max_episode_steps >= 1,
        f"spec.max_episode_steps must be at least 1, got {spec.max_episode_steps}",
    )
    require(spec.num_agents >= 1, f"spec.num_agents must be at least 1, got {spec.num_agents}")
    require_picklable(spec, "spec")


def check_step(spec: EnvSpec, result: Any) -> None:
    """The five values of a step have the declared types and number of agents."""
    require(
        isinstance(result, tuple) and len(result) == 5,
        f"step must return five values, got {result!r}",
    )
    observation, reward, terminated, truncated, info = result
    check_observation(spec, observation, "step", ended=bool(terminated) or bool(truncated))
    rewards = [reward] if spec.num_agents == 1 else reward
    for value in rewards:
        require(
            isinstance(value, (int, float)) and is_reward(value),
            f"a reward must be a finite float of at most {LARGEST_REWARD:g}, got {value!r}",
        )
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        require(
            isinstance(flag, bool),
            f"{name} must be a bool, got {flag!r} of type {type(flag).__name__}",
        )
    require(isinstance(info, dict), f"info of step must be a dict, got {info!r}")
    if spec.reports_success and not (spec.leaves_ungraded and info.get("success", False) is None):
        require(
            isinstance(info.get("success"), bool),
            f"info of step must have `success`, a bool, got {info.get('success')!r}",
        )
    require_picklable(result, "the result of step")


def check_unearned(spec: EnvSpec, reward: Any, acted: set[int]) -> None:
    """Before its first action an agent has not earned a reward."""
    if spec.num_agents == 1:
        return
    for agent, value in enumerate(reward):
        require(
            agent in acted or value == 0,
            f"agent {agent} got the reward {value!r} before its first action",
        )


def waits(observation: Observation) -> bool:
    """Whether an agent has nothing to do now."""
    return isinstance(observation, (list, tuple)) and any(entry is None for entry in observation)


def in_turn(action: Any, observation: Observation) -> Any:
    """The action, with None for agents that wait."""
    if not waits(observation):
        return action
    return [
        None if seen is None else entry for entry, seen in zip(action, observation, strict=True)
    ]


def check_observation(spec: EnvSpec, observation: Observation, where: str, *, ended: bool) -> None:
    """An observation lies in the spec's space; one entry for each of several agents."""
    observations = [observation] if spec.num_agents == 1 else observation
    require(
        len(observations) == spec.num_agents,
        f"{where} must return one observation per agent ({spec.num_agents})",
    )
    require(
        ended or bool(acting_agents(observation, spec=spec)),
        f"after {where} every agent's observation is None, so no agent acts, but the episode has "
        "not ended",
    )
    for entry in observations:
        if entry is not None or spec.num_agents == 1:
            check_member(spec.observation_space, entry, f"the observation of {where}")


def check_member(space: spaces.Space[Any], value: Any, what: str) -> None:
    """`value` lies in `space`, with the types of its arrays."""
    if isinstance(space, spaces.Dict):
        require(isinstance(value, Mapping), f"{what} must be a dict, got {type(value).__name__}")
        require(
            set(value) == set(space.spaces),
            f"{what} has the keys {sorted(value)}, but its space has {sorted(space.spaces)}",
        )
        for key, part in space.spaces.items():
            check_member(part, value[key], f"{key!r} in {what}")
        return
    if isinstance(space, spaces.Box):
        require(
            isinstance(value, np.ndarray), f"{what} must be an array, got {type(value).__name__}"
        )
        require(
            value.dtype == space.dtype,
            f"{what} has dtype {value.dtype}, but its space has {space.dtype}",
        )
        require(
            value.shape == space.shape,
            f"{what} has shape {value.shape}, but its space has {space.shape}",
        )
        require(bool(np.isfinite(value).all()), f"{what} is not finite")
    require(space.contains(value), f"{what} is not in its space {space}")


async def must_raise(call: Coroutine[Any, Any, Any], kind: type[Exception], what: str) -> None:
    """Fail unless `call` raises `kind`."""
    outcome: Any = (await asyncio.gather(call, return_exceptions=True))[0]
    if isinstance(outcome, kind):
        return
    if isinstance(outcome, KeyboardInterrupt):
        raise outcome
    if isinstance(outcome, BaseException):
        raise AssertionError(
            f"check_env: {what} must raise {kind.__name__}, but raised {outcome!r}."
        ) from outcome
    fail(f"{what} must raise {kind.__name__}, but was accepted")


def same(left: Any, right: Any) -> bool:
    """Whether two nested values are equal."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return set(left) == set(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.array_equal(left, right)
    return bool(left == right)


def require_equal(left: Any, right: Any, sentence: str) -> None:
    """Fail with `sentence` unless the values are the same."""
    require(same(left, right), sentence)


def require_picklable(value: Any, what: str) -> None:
    """Fail unless `value` can be sent to another process."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise AssertionError(
            f"{what} must be picklable, because it is sent between processes: {error}"
        ) from error


def require(holds: bool, sentence: str) -> None:
    """Fail with `sentence` unless it holds."""
    if not holds:
        fail(sentence)


def fail(sentence: str) -> NoReturn:
    """Raise AssertionError with the sentence."""
    raise AssertionError(f"check_env: {sentence}.")
