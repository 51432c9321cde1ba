"""The `data` of an observation message: `{"observation": {…}, "reward": …, "done": …}`."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from envs.text import shortened


class Reply(NamedTuple):
    """An observation message."""

    observation: dict[str, Any]
    reward: float | None
    """None if the server sent null: no reward yet."""
    done: bool


def read_reply(data: Mapping[str, Any]) -> Reply:
    """Check the fields of an observation message.

    Raises:
        ValueError: A field is missing or of another type, or the reward is not finite.
    """
    observation, reward, done = (data.get(name) for name in ("observation", "reward", "done"))
    if not isinstance(observation, dict):
        raise ValueError(f"observation is {shortened(observation)} instead of an object")
    if not isinstance(done, bool):
        raise ValueError(f"done is {shortened(done)} instead of true or false")
    if reward is not None and not _is_finite(reward):
        raise ValueError(f"reward is {shortened(reward)} instead of a finite number or null")
    return Reply(observation, None if reward is None else float(reward), done)


def _is_finite(reward: Any) -> bool:
    try:
        return isinstance(reward, int | float) and math.isfinite(reward)
    except OverflowError:  # a whole number beyond the range of floating-point ones
        return False
