"""A Gymnasium environment of your own; no file of siirl changes.

    siirl train pipeline=grpo env=gymnasium env.id=own_gymnasium:Dock-v0

A boat on a line has to stop at a dock. Observation: position, speed, position of the dock. Actions:
push left, drift, push right. `info["is_success"]` makes success rates; without it only returns are
reported.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Dock(gymnasium.Env[Observation, np.int64]):
    """Reach the dock and stop there: reward 1 at the end, 0 before."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's form

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw start and dock from the seed."""
        super().reset(seed=seed)
        self.position, self.dock = self.np_random.uniform(-1.0, 1.0, size=2)
        self.speed = 0.0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Push by 0.05 to the left (0) or right (2); water slows the boat by a tenth."""
        self.speed = 0.9 * self.speed + 0.05 * (int(action) - 1)
        self.position = float(np.clip(self.position + self.speed, -2.0, 2.0))
        docked = abs(self.position - self.dock) < 0.1 and abs(self.speed) < 0.06
        return self._observation(), float(docked), docked, False, {"is_success": docked}

    def render(self) -> NDArray[np.uint8]:
        """The line from above: the dock is green, the boat orange."""
        image = np.full((64, 64, 3), (20, 40, 80), np.uint8)
        for place, height, colour in (
            (self.dock, 12, (60, 200, 90)),
            (self.position, 4, (255, 150, 40)),
        ):
            x = int(np.interp(place, (-2.0, 2.0), (3, 60)))
            image[32 - height : 32 + height, x - 3 : x + 4] = colour
        return image

    def _observation(self) -> Observation:
        return np.array([self.position, self.speed, self.dock], np.float32)


gymnasium.register("Dock-v0", entry_point=Dock, max_episode_steps=40)
