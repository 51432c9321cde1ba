"""An environment with two tasks by siirl's own contract; no file of siirl changes.

    siirl train pipeline=grpo env=custom env.name=own_environment:Corridor

A cart in a corridor has to reach the left or the right wall; the task, which is the instruction of
the policy, says which. Position and wall are observed, and nothing is drawn.
"""

import string
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.base import INSTRUCTION, PROPRIOCEPTION, Environment, EnvSpec, Info, StepResult

WALLS = {"left": -1.0, "right": 1.0}
STEPS = 16


class Corridor(Environment):
    """Success at the wall that the task names; a step moves the cart by at most 0.2."""

    def __init__(self) -> None:
        observation = {
            PROPRIOCEPTION: gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
            INSTRUCTION: gymnasium.spaces.Text(40, charset=string.printable),
        }
        self.spec = EnvSpec(
            name="corridor",
            tasks=tuple(WALLS),
            observation_space=gymnasium.spaces.Dict(observation),
            action_space=gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
            max_episode_steps=STEPS,
            renders=False,
        )
        self._runs = False

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Info]:
        """Start near the middle; the seed determines where."""
        self._task = (options or {}).get("task", self.spec.tasks[0])
        if self._task not in WALLS:
            raise ValueError(f"The task {self._task!r} is unknown. Known: {', '.join(WALLS)}.")
        if unknown := set(options or {}) - {"task", "frames"}:
            raise ValueError(f"reset takes task and frames, not {sorted(unknown)}.")
        if (options or {}).get("frames"):
            raise ValueError("corridor draws nothing (EnvSpec.renders).")
        self._position = float(np.random.default_rng(seed).uniform(-0.3, 0.3))
        self._step, self._runs = 0, True
        return self._observation(), {"task": self._task}

    async def step(self, action: Any) -> StepResult:
        """Move; the episode ends at either wall, or after `STEPS` steps."""
        if not self._runs:
            raise RuntimeError("No episode runs: call reset first.")
        action = np.asarray(action, np.float32)
        if not self.spec.action_space.contains(action):
            raise ValueError(f"The action {action} is not in {self.spec.action_space}.")
        self._step += 1
        self._position = float(np.clip(self._position + 0.2 * action[0], -1.0, 1.0))
        success = self._position == WALLS[self._task]
        terminated = abs(self._position) == 1.0
        truncated = not terminated and self._step >= STEPS
        self._runs = not (terminated or truncated)
        info = {"task": self._task, "success": success}
        return self._observation(), float(success), terminated, truncated, info

    def render(self) -> NDArray[np.uint8]:
        """Refuse: there is no image."""
        raise RuntimeError("corridor draws nothing.")

    def _observation(self) -> dict[str, Any]:
        return {
            PROPRIOCEPTION: np.array([self._position, WALLS[self._task]], np.float32),
            INSTRUCTION: f"go to the {self._task} wall",
        }
