"""A Gymnasium arm with the spaces of the tiny checkpoints, whose instruction changes every step."""

import gymnasium
import numpy as np
from gymnasium import spaces

WORDS = ("pick up the bowl", "open", "put the black bowl on the plate")


class TalkingArm(gymnasium.Env):
    """Its reward is the first number of an action."""

    observation_space = spaces.Dict(
        {
            "mission": spaces.Text(40),
            "front": spaces.Box(0, 255, (48, 64, 3), np.uint8),
            "state": spaces.Box(-np.inf, np.inf, (8,), np.float32),
            "wrist": spaces.Box(0, 255, (48, 64, 3), np.uint8),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.picture = self.np_random.integers(0, 256, (48, 64, 3), np.uint8)
        self.state = self.np_random.normal(size=8).astype(np.float32)
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        self.state[:7] += 0.1 * action
        return self.seen(), float(action[0]), False, False, {}

    def seen(self):
        return {
            "mission": WORDS[self.time % len(WORDS)],
            "front": self.picture,
            "state": self.state,
            "wrist": self.picture[::-1],
        }


gymnasium.register("siirl-test/TalkingArm-v0", TalkingArm, max_episode_steps=8)
