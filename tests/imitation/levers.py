"""Environments with different action spaces, and their scripted expert."""

import string
import sys
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.base import (
    IMAGES,
    INSTRUCTION,
    PROPRIOCEPTION,
    Environment,
    EnvSpec,
    EpisodeFailed,
    StepResult,
)

OBSERVATIONS = gymnasium.spaces.Dict(
    {
        IMAGES: gymnasium.spaces.Box(0, 255, (1, 16, 16, 3), np.uint8),
        PROPRIOCEPTION: gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
        INSTRUCTION: gymnasium.spaces.Text(20, charset=string.printable),
    }
)


class Wide(Environment):
    """Three steps, always a success; keeps the actions."""

    actions = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
    received: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.spec = EnvSpec(
            "lever", ("pull",), OBSERVATIONS, self.actions, 3, expert=f"{__name__}:expert"
        )
        self.steps = 0

    async def reset(self, **arguments: Any) -> Any:
        """Start."""
        self.steps = 0
        return self._observation(), {"task": "pull"}

    async def step(self, action: Any) -> StepResult:
        """Take an action of the space."""
        if not self.actions.contains(action):
            raise ValueError(f"The action {action} is not in {self.actions}.")
        self.received.append(action)
        self.steps += 1
        ended = self.steps == 3
        return self._observation(), float(ended), ended, False, {"task": "pull", "success": ended}

    def render(self) -> NDArray[np.uint8]:
        """A black image."""
        return np.zeros((16, 16, 3), np.uint8)

    def _observation(self) -> dict[str, Any]:
        return {
            IMAGES: np.zeros((1, 16, 16, 3), np.uint8),
            PROPRIOCEPTION: np.zeros(2, np.float32),
            INSTRUCTION: "pull the lever",
        }


class Narrow(Wide):
    """Actions of at most a tenth."""

    actions = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float32)


class Stuck(Wide):
    """Never a success."""

    async def step(self, action: Any) -> StepResult:
        """See Wide."""
        observation, reward, terminated, truncated, info = await super().step(action)
        return observation, reward, terminated, truncated, {**info, "success": False}


class Buttons(Wide):
    """Three buttons."""

    actions = gymnasium.spaces.Discrete(3)


def expert(task: str) -> Any:
    """Nine tenths of the largest action, or the last button."""
    return lambda environment: (
        np.int64(2)
        if isinstance(environment, Buttons)
        else 0.9 * environment.spec.action_space.high
    )


def leaver(task: str) -> Any:
    """Ends the process instead of acting."""

    def act(environment: Environment) -> Any:
        raise SystemExit(0)

    return act


def speaker(task: str) -> Any:
    """Acts with a text."""
    return lambda environment: "pull"


class Leaving(Wide):
    """Ends the process in its first step."""

    async def step(self, action: Any) -> StepResult:
        """Exit."""
        sys.exit(0)


class Unscored(Wide):
    """Its first episode cannot be scored."""

    episodes: ClassVar[int] = 0

    async def step(self, action: Any) -> StepResult:
        """Fail in the first episode."""
        if self.steps == 0:
            Unscored.episodes += 1
        if Unscored.episodes == 1:
            raise EpisodeFailed("the camera is gone")
        return await super().step(action)
