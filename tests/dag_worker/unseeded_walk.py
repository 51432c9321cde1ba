"""An environment whose steps do not depend on its seed."""

import gymnasium
import numpy as np


class UnseededWalk(gymnasium.Env):
    """A random walk that draws from a generator of its own."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        drawn = np.random.default_rng().uniform(-1, 1, 1).astype(np.float32)
        return drawn, 0.0, False, False, {}


gymnasium.register("UnseededWalk-v0", UnseededWalk, max_episode_steps=100)
