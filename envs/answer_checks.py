"""Checks results of an environment against its spec: shapes, dtypes, finite numbers, types.

The checks are cheap enough for every chunk. Each function returns a description of the first fault,
or None. Bounds of a `Box` are not checked, because working simulators overshoot them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np

from envs.base import LARGEST_REWARD, EnvSpec, is_reward


class NotFinite(str):
    """A fault of numbers, which a simulator may not repeat in a replay; other faults are of form,
    which the code of the environment repeats.
    """

    __slots__ = ()


def fault_of_reset(result: Any, *, spec: EnvSpec) -> str | None:
    """Check (observation, info)."""
    if not isinstance(result, tuple) or len(result) != 2:
        return f"reset returned {_shown(result)} instead of (observation, info)"
    observation, info = result
    return _fault_of_observations(observation, spec=spec) or _fault_of_info(info)


def fault_of_step(result: Any, *, spec: EnvSpec, num_actions: int) -> str | None:
    """Check (observation, reward, terminated, truncated, info) after a chunk of `num_actions`."""
    if not isinstance(result, tuple) or len(result) != 5:
        return f"step_chunk returned {_shown(result)} instead of five values"
    observation, reward, terminated, truncated, info = result
    fault = (
        _fault_of_observations(observation, spec=spec)
        or _fault_of_rewards(reward, spec=spec)
        or _fault_of_info(info)
    )
    if fault is not None:
        return fault
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            return f"{name} is {_shown(flag)} instead of a bool"
    executed = info.get("executed")
    if not isinstance(executed, int | np.integer) or not 1 <= executed <= num_actions:
        return f"info['executed'] is {_shown(executed)} after a chunk of {num_actions} actions"
    if executed < num_actions and not (terminated or truncated):
        return (
            f"only {executed} of {num_actions} actions were executed, but the episode has not ended"
        )
    return _fault_of_success(info, spec=spec) or _fault_of_distance(info)


def fault_of_observation(
    observation: Any, space: gymnasium.Space[Any], *, where: str = "observation"
) -> str | None:
    """Check one observation against its space."""
    match space:
        case gymnasium.spaces.Dict():
            if not isinstance(observation, Mapping) or set(observation) != set(space.spaces):
                names = ", ".join(space.spaces)
                return f"{where} is {_shown(observation)} instead of a dict with {names}"
            parts: Iterable[tuple[str | int, gymnasium.Space[Any]]] = space.spaces.items()
        case gymnasium.spaces.Tuple():
            if not isinstance(observation, tuple) or len(observation) != len(space.spaces):
                return f"{where} is {_shown(observation)} instead of a tuple of {len(space.spaces)}"
            parts = enumerate(space.spaces)
        case gymnasium.spaces.Box():
            return _fault_of_box(observation, space, where=where)
        case gymnasium.spaces.Text():
            if isinstance(observation, str):
                return None
            return f"{where} is {_shown(observation)} instead of text"
        case _:
            if space.contains(observation):
                return None
            return f"{where} is {_shown(observation)}, which is not in {space}"
    for key, part in parts:
        fault = fault_of_observation(observation[key], part, where=f"{where}[{key!r}]")
        if fault is not None:
            return fault
    return None


def _fault_of_box(observation: Any, space: gymnasium.spaces.Box, *, where: str) -> str | None:
    if not isinstance(observation, np.ndarray | np.generic):
        return f"{where} is {_shown(observation)} instead of an array"
    if observation.shape != space.shape or observation.dtype != space.dtype:
        found = f"{observation.dtype} {observation.shape}"
        return f"{where} is {found} instead of {space.dtype} {space.shape}"
    if observation.dtype.kind == "f" and not np.isfinite(observation).all():
        places = np.argwhere(~np.isfinite(observation))
        first = "".join(f"[{index}]" for index in places[0])
        return NotFinite(
            f"{where}{first} is {np.asarray(observation)[tuple(places[0])]}; {len(places)} of "
            f"{observation.size} values are NaN or infinite"
        )
    return None


def _fault_of_observations(observation: Any, *, spec: EnvSpec) -> str | None:
    if spec.num_agents == 1:
        return fault_of_observation(observation, spec.observation_space)
    if not isinstance(observation, list | tuple) or len(observation) != spec.num_agents:
        return (
            f"observation is {_shown(observation)} instead of one entry for each of "
            f"{spec.num_agents} agents"
        )
    for agent, entry in enumerate(observation):
        if entry is None:  # the agent waits
            continue
        place = f"observation[{agent}]"
        fault = fault_of_observation(entry, spec.observation_space, where=place)
        if fault is not None:
            return fault
    return None


def _fault_of_rewards(reward: Any, *, spec: EnvSpec) -> str | None:
    if spec.num_agents > 1 and (
        not isinstance(reward, list | tuple | np.ndarray) or len(reward) != spec.num_agents
    ):
        return (
            f"reward is {_shown(reward)} instead of one entry for each of {spec.num_agents} agents"
        )
    for entry in reward if spec.num_agents > 1 else [reward]:
        if not is_reward(entry):
            fault = (
                f"reward is {_shown(entry)} instead of a finite number of at most "
                f"{LARGEST_REWARD:g} in size"
            )
            return NotFinite(fault) if isinstance(entry, float | np.floating) else fault
    return None


def _fault_of_success(info: Mapping[str, Any], *, spec: EnvSpec) -> str | None:
    if not spec.reports_success:
        return None
    if spec.leaves_ungraded and info.get("success", False) is None:
        return None
    success = info.get("success")
    if isinstance(success, bool | np.bool_):
        return None
    return (
        f"info['success'] is {_shown(success)} instead of a bool, but the spec has reports_success"
    )


def _fault_of_distance(info: Mapping[str, Any]) -> str | None:
    """Check the optional key that is not part of the contract; NaN means unknown."""
    try:
        float(info.get("oracle_distance", 0.0))
    except (TypeError, ValueError, RuntimeError):
        return f"info['oracle_distance'] is {_shown(info['oracle_distance'])} instead of a number"
    return None


def _fault_of_info(info: Any) -> str | None:
    return None if isinstance(info, Mapping) else f"info is {_shown(info)} instead of a dict"


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "…"
