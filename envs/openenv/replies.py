"""The `data` of an observation message: `{"observation": {…}, "reward": …, "done": …}`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from envs.base import LARGEST_REWARD, is_reward
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
        ValueError: A field is missing or of another type, or the reward is no usable number.
    """
    observation, reward, done = (data.get(name) for name in ("observation", "reward", "done"))
    if not isinstance(observation, dict):
        raise ValueError(f"observation is {shortened(observation)} instead of an object")
    if not isinstance(done, bool):
        raise ValueError(f"done is {shortened(done)} instead of true or false")
    if reward is not None and not is_reward(reward):
        raise ValueError(
            f"reward is {shortened(reward)} instead of a finite number or null (at most "
            f"{LARGEST_REWARD:g} in size)"
        )
    return Reply(observation, None if reward is None else float(reward), done)
