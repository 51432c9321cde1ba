"""A Gymnasium environment whose text names the right action, another one at every step.

The other observation is constant, so a policy that does not read the text cannot do better than
chance, 8 steps / 4 words = 2.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

WORDS = ("north", "east", "south", "west")
STEPS = 8


class Spoken(gymnasium.Env[Any, Any]):
    """Pays 1 for the named action; if `silent`, nothing is said.

    With `directions`, the action is a number, and its sign follows the words' order: east and west
    are positive.
    """

    def __init__(self, silent: bool = False, directions: bool = False) -> None:
        self.silent, self.directions = silent, directions
        self.observation_space = spaces.Dict(
            {"body": spaces.Box(-1.0, 1.0, (2,), np.float32), "mission": spaces.Text(20)}
        )
        self.action_space = (
            spaces.Box(-1.0, 1.0, (1,), np.float32) if directions else spaces.Discrete(len(WORDS))
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self.time = 0
        return self.observed(), {}

    def step(self, action: Any) -> Any:
        """Pay, and name the next action."""
        chosen = self.word % 2 == (action[0] > 0) if self.directions else action == self.word
        self.time += 1
        return self.observed(), float(chosen), self.time == STEPS, False, {}

    def observed(self) -> dict[str, Any]:
        """Draw a word and say it."""
        self.word = int(self.np_random.integers(len(WORDS)))
        said = "go on" if self.silent else f"go {WORDS[self.word]}"
        return {"body": np.ones(2, np.float32), "mission": said}


gymnasium.register("Spoken-v0", entry_point=Spoken, max_episode_steps=STEPS)
