"""A Gymnasium environment whose `render` always fails, registered at import."""

from typing import Any

import gymnasium
import numpy as np

ID = "siirl-undrawn/Broken-v0"


class Broken(gymnasium.Env[Any, Any]):
    """Declares pictures that cannot be drawn."""

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
        return np.zeros(1, np.float32), 0.0, False, False, {"success": False}

    def render(self) -> Any:
        """Fail."""
        raise OSError("no display")


gymnasium.register(ID, Broken, max_episode_steps=3)
