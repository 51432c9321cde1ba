"""A user's environments that fail when they are stepped; their specs are valid.

Before a run, one step is played from seed 0 (`envs.trial`): these fail later, or from other seeds.
"""

import ctypes
import os
import time
from typing import Any

import gymnasium
import numpy as np

from envs.base import PROPRIOCEPTION, Environment, EnvSpec, StepResult

OBSERVATIONS = gymnasium.spaces.Dict(
    {PROPRIOCEPTION: gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)}
)
LAST_STEP = 4


class StillEnv(Environment):
    """Four steps in which nothing happens; without images and without instruction."""

    def __init__(self) -> None:
        self.spec = EnvSpec(
            "still", ("wait",), OBSERVATIONS, gymnasium.spaces.Discrete(2), LAST_STEP, renders=False
        )
        self.steps = self.seed = 0

    async def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start."""
        self.steps, self.seed = 0, seed or 0
        return self.observe(), {"task": "wait", "success": False}

    async def step(self, action: Any) -> StepResult:
        """Wait."""
        self.steps += 1
        return (
            self.observe(),
            1.0,
            False,
            self.steps == LAST_STEP,
            {"task": "wait", "success": False},
        )

    def observe(self) -> dict[str, Any]:
        """Proprioception of the robot."""
        return {PROPRIOCEPTION: np.zeros(2, np.float32)}

    def render(self) -> Any:
        """Nothing to see."""
        raise NotImplementedError


class NanEnv(StillEnv):
    """Its third observation is NaN."""

    def observe(self) -> dict[str, Any]:
        """See StillEnv."""
        return {PROPRIOCEPTION: np.full(2, np.nan if self.steps > 1 else 0.0, np.float32)}


class WrongShapeEnv(StillEnv):
    """One number too many, from the second step on."""

    def observe(self) -> dict[str, Any]:
        """See StillEnv."""
        return {PROPRIOCEPTION: np.zeros(3 if self.steps > 1 else 2, np.float32)}


class WrongDtypeEnv(StillEnv):
    """float64 where float32 was announced, from the second step on."""

    def observe(self) -> dict[str, Any]:
        """See StillEnv."""
        return {PROPRIOCEPTION: np.zeros(2, np.float64 if self.steps > 1 else np.float32)}


class SomeSeedsFailEnv(StillEnv):
    """Cannot be simulated from seeds of the parities in the environment variable FAILING, `0`, `1`
    or `01`.
    """

    async def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """See StillEnv."""
        if seed and str(seed % 2) in os.environ["FAILING"]:
            raise RuntimeError("this start cannot be simulated")
        return await super().reset(seed=seed, options=options)


class RefusingEnv(StillEnv):
    """Refuses to start from most seeds, as one whose files do not fit together."""

    async def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """See StillEnv."""
        if seed:
            raise ValueError(
                "The states of task 'wait' do not fit its model: take both from one release."
            )
        return await super().reset(seed=seed, options=options)


class StuckEnv(StillEnv):
    """Blocks its process for ever in the seventh reset there: the second step of the small job in
    one process.
    """

    resets = 0
    block = staticmethod(time.sleep)

    async def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """See StillEnv."""
        StuckEnv.resets += 1
        if StuckEnv.resets == 7:
            print("stuck", flush=True)
            self.block(1_000_000)
        return await super().reset(seed=seed, options=options)


class LockedEnv(StuckEnv):
    """A StuckEnv that keeps the interpreter's lock, as code in C may."""

    block = staticmethod(ctypes.PyDLL(None).sleep)
