"""Gymnasium environments that declare pictures and draw none; the broken one is registered at
import.
"""

from typing import Any

import gymnasium
import numpy as np

ID = "siirl-undrawn/Broken-v0"


class Undrawn(gymnasium.Env[Any, Any]):
    """Declares pictures, but has no `render`."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's form)
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Start."""
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Broken(Undrawn):
    """Its `render` always fails."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on, without success."""
        return (*super().step(action)[:4], {"success": False})

    def render(self) -> Any:
        """Fail."""
        raise OSError("no display")


gymnasium.register(ID, Broken, max_episode_steps=3)
