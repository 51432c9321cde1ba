"""Gymnasium environments with pictures of 36 pixels, the smallest side that the convolutions of
control_policy accept.
"""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

SIDE, QUARTERS = 36, 4


class MovingSquare(gymnasium.Env):
    """A white square covers one quarter and then another; its number earns a reward of 1."""

    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    action_space = spaces.Discrete(QUARTERS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.moved(), {}

    def step(self, action):
        reward = float(action == self.quarter)
        return self.moved(), reward, False, False, {}

    def moved(self):
        self.quarter = int(self.np_random.integers(QUARTERS))
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        row, column = (SIDE // 2 * part for part in divmod(self.quarter, 2))
        picture[row : row + SIDE // 2, column : column + SIDE // 2] = 255
        return picture


gymnasium.register("siirl-test/MovingSquare-v0", MovingSquare, max_episode_steps=6)
gymnasium.register(
    "siirl-test/StackedSquare-v0",
    lambda: FrameStackObservation(MovingSquare(), 2),
    max_episode_steps=6,
)
