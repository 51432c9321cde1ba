"""An environment that can be filmed, reports success, and needs no simulator: enough for every
check before a start.
"""

from typing import Any

import gymnasium
import numpy as np

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, Environment, EnvSpec, EpisodeFailed


class FilmedEnv(Environment):
    """Is described and never played."""

    def __init__(self, pixels: int = 32) -> None:
        parts = {
            IMAGES: gymnasium.spaces.Box(0, 255, (1, pixels, pixels, 3), np.uint8),
            PROPRIOCEPTION: gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
            INSTRUCTION: gymnasium.spaces.Text(20),
        }
        self.spec = EnvSpec(
            "filmed",
            ("wait",),
            gymnasium.spaces.Dict(parts),
            gymnasium.spaces.Discrete(2),
            max_episode_steps=8,
        )

    async def reset(self, **arguments: Any) -> Any:
        """Not played, not even in the trial before a job."""
        raise EpisodeFailed("It is never played.")

    async def step(self, action: Any) -> Any:
        """Not played."""
        raise NotImplementedError

    def render(self) -> Any:
        """Not played."""
        raise NotImplementedError
