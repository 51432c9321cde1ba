"""A Gymnasium environment whose return is not its success: three steps of 0.5, then a success."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class PaidSteps(gymnasium.Env[Any, Any]):
    """Observes the number of the step; any action will do."""

    observation_space = spaces.Box(0.0, 3.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {"is_success": False}

    def step(self, action: Any) -> Any:
        """Go on."""
        self.time += 1
        done = self.time == 3
        return np.full(1, self.time, np.float32), 0.5, done, False, {"is_success": done}


gymnasium.register("PaidSteps-v0", entry_point=PaidSteps, max_episode_steps=5)
