"""An environment that succeeds from its third step on and ends at its step limit."""

import gymnasium
import numpy as np


class EarlySuccess(gymnasium.Env):
    """Reports `is_success` at every step from the third on; never terminates."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation = np.full(1, self.steps, np.float32)
        return observation, 0.0, False, False, {"is_success": self.steps >= 3}


gymnasium.register("EarlySuccess-v0", EarlySuccess, max_episode_steps=20)
