"""Environments for the tests of the pool: a cheap deterministic one, and its children that
misbehave a given number of times.

Servers are processes that get replaced, so each occurrence of a misbehaviour is a file.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

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
    FrameBuffer,
    FrameRequest,
    StepResult,
)


class WalkEnv(Environment):
    """A point that walks by the action plus noise from the seed; its position is the reward."""

    def __init__(self, max_episode_steps: int = 40, step_s: float = 0.0) -> None:
        if max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be positive, got {max_episode_steps}.")
        self._step_s = step_s
        self.spec = EnvSpec(
            name="walk",
            tasks=("left", "right"),
            observation_space=gymnasium.spaces.Dict(
                {
                    PROPRIOCEPTION: gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
                    INSTRUCTION: gymnasium.spaces.Text(20),
                }
            ),
            action_space=gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
            max_episode_steps=max_episode_steps,
        )
        self._x, self._steps = 0.0, 0
        self._streams: dict[str, FrameRequest] = {}

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        options = options or {}
        self._task, self._seed = options.get("task", "left"), seed
        if self._task not in self.spec.tasks:
            raise ValueError(f"Unknown task {self._task!r}. Known: left, right.")
        self._random = np.random.default_rng(seed)
        self._x, self._steps, self._streams = (
            float(self._random.normal()),
            0,
            options.get("frames", {}),
        )
        return self._observe(), {"task": self._task, "success": False, **self._frames(last=True)}

    async def step(self, action: Any) -> StepResult:
        if np.shape(action) != (1,):
            raise ValueError(f"An action must have shape (1,), got {np.shape(action)}.")
        if self._step_s:
            time.sleep(self._step_s)
        self._x += 0.1 * float(action[0]) + 0.05 * float(self._random.normal())
        self._steps += 1
        terminated, truncated = self._x > 3.0, self._steps >= self.spec.max_episode_steps
        info = {
            "success": terminated,
            "task": self._task,
            "pid": os.getpid(),
            **self._frames(last=terminated or truncated),
        }
        return self._observe(), self._x, terminated, truncated, info

    def render(self) -> NDArray[np.uint8]:
        return np.full((4, 4, 3), self._steps, np.uint8)

    def _observe(self) -> dict[str, Any]:
        return {
            PROPRIOCEPTION: np.array([self._x, self._steps], np.float32),
            INSTRUCTION: f"walk {self._task}",
        }

    def _frames(self, *, last: bool) -> dict[str, Any]:
        buffer = FrameBuffer()
        for stream, request in self._streams.items():
            if last or self._steps % request.every == 0:
                buffer.add(stream, self.render(), self._steps)
        return {"frames": buffer.take()} if self._streams else {}


class CameraEnv(WalkEnv):
    """Shows two images that encode seed, step and position and are large enough for shared memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        assert isinstance(self.spec.observation_space, gymnasium.spaces.Dict)
        parts = dict(self.spec.observation_space.spaces)
        parts[IMAGES] = gymnasium.spaces.Box(0, 255, (2, 48, 48, 3), np.uint8)
        space = gymnasium.spaces.Dict(parts)
        self.spec = EnvSpec(**{**vars(self.spec), "observation_space": space})

    def _observe(self) -> dict[str, Any]:
        images = np.full((2, 48, 48, 3), self._steps, np.uint8)
        images[0] += np.uint8(self._seed)
        images[1, :, :, 0] = np.uint8(int(100 * abs(self._x)) % 256)
        return {**super()._observe(), IMAGES: images}


class FaultyEnv(WalkEnv):
    """Misbehaves `times` times in all processes together, at step `at_step` of the episode with
    seed `faulty_seed`.
    """

    def __init__(
        self,
        fault: str,
        ledger: str,
        times: int = 1,
        faulty_seed: int = 1,
        at_step: int = 12,
        replayable: bool = True,
    ) -> None:
        super().__init__()
        self.spec = EnvSpec(**{**vars(self.spec), "replayable": replayable})
        self._fault, self._ledger, self._times = fault, Path(ledger), times
        self._faulty_seed, self._at_step = faulty_seed, at_step

    async def step(self, action: Any) -> StepResult:
        result = await super().step(action)
        if (
            self._seed != self._faulty_seed
            or self._steps != self._at_step
            or len(list(self._ledger.iterdir())) >= self._times
        ):
            return result
        (self._ledger / f"{time.time_ns()}").touch()
        return await self._misbehave(result)

    async def _misbehave(self, result: StepResult) -> StepResult:
        observation, reward, terminated, truncated, info = result
        match self._fault:
            case "raise":
                raise RuntimeError("the simulation diverged")
            case "give_up":
                raise EpisodeFailed("its gripper is stuck")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "leave":
                sys.exit("no licence for the simulator")
            case "unpicklable":
                info = {**info, "lock": threading.Lock()}
            case "unreadable":
                info = {**info, "odd": Unreadable()}
            case "hang_awaiting":
                await asyncio.sleep(3600)
            case "nan_observation":
                observation = {**observation, PROPRIOCEPTION: np.array([np.nan, 0.0], np.float32)}
            case "nan_reward":
                reward = float("nan")
            case "wrong_shape":
                observation = {**observation, PROPRIOCEPTION: np.zeros(3, np.float32)}
            case "wrong_dtype":
                observation = {**observation, PROPRIOCEPTION: np.zeros(2, np.float64)}
        return observation, reward, terminated, truncated, info


class FaultyStartEnv(FaultyEnv):
    """Raises in the reset of the episode with seed `faulty_seed`, `times` times in all processes
    together.
    """

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed == self._faulty_seed and len(list(self._ledger.iterdir())) < self._times:
            (self._ledger / f"{time.time_ns()}").touch()
            raise RuntimeError("the simulator is not there")
        return await super().reset(seed=seed, options=options)


class WanderingEnv(WalkEnv):
    """Changes the working directory in each step."""

    async def step(self, action: Any) -> StepResult:
        os.chdir("elsewhere")
        return await super().step(action)


class Unreadable:
    """Can be pickled, and raises a ValueError when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class FlickeringEnv(FaultyEnv):
    """Draws its noise from the process, not from the seed: a replay takes another course."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        await super().reset(seed=seed, options=options)
        self._random = np.random.default_rng(time.time_ns())
        return self._observe(), {"task": self._task, "success": False}


class UnbuildableEnv(WalkEnv):
    """Its simulator is missing where servers run, though not where the spec is read."""

    def __init__(self, home: int) -> None:
        super().__init__()
        if home not in (os.getpid(), os.getppid()):
            raise ImportError("libsimulator.so: cannot open shared object file")


class InterruptedEnv(WalkEnv):
    """Receives Ctrl-C in its reset, where Python's own handler raises."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        signal.raise_signal(signal.SIGINT)
        return await super().reset(seed=seed, options=options)


class RaisesInterruptEnv(WalkEnv):
    """Raises in its reset, after `waits_s`, what a server takes for Ctrl-C, and which ends its
    process.
    """

    def __init__(self, waits_s: float = 0.0) -> None:
        super().__init__()
        self._waits_s = waits_s

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self._waits_s:
            await asyncio.sleep(self._waits_s)
        raise KeyboardInterrupt


class GatedEnv(WalkEnv):
    """Waits in a step with the action 1 until the file `gate` exists."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self._gate = Path(gate)

    async def step(self, action: Any) -> StepResult:
        while float(action[0]) == 1.0 and not self._gate.exists():
            await asyncio.sleep(0.001)
        return await super().step(action)


async def random_steps(
    environment: Any, random: np.random.Generator, *, chunk: int = 4
) -> AsyncIterator[StepResult]:
    """Steps of an environment or a slot with random actions, until the episode ends."""
    ended = False
    while not ended:
        actions = random.uniform(-1, 1, (chunk, 1)).astype(np.float32)
        step = await environment.step_chunk(actions)
        yield step
        _, _, terminated, truncated, _ = step
        ended = terminated or truncated


def numbers_of(step: StepResult) -> tuple[Any, ...]:
    """A step as numbers that can be compared: proprioception, reward, end, executed actions."""
    observation, reward, terminated, truncated, info = step
    return (
        observation["proprioception"].tolist(),
        reward,
        terminated,
        truncated,
        info["executed"],
    )


async def answers_around_a_gate(pool, gate):
    """Order of answers where one environment of two waits for what follows the other's."""
    said = []

    async def episode(action, after):
        async with pool.slot() as slot:
            await slot.reset(seed=0)
            ready.append(action)
            while len(ready) < 2:  # so that both requests share a message
                await asyncio.sleep(0)
            await slot.step_chunk(np.full((1, 1), action, np.float32))
            said.append(action)
            for _ in range(after):  # further messages, while the other environment waits
                await slot.step_chunk(np.zeros((1, 1), np.float32))
            gate.touch()

    ready: list[float] = []
    async with pool:
        await asyncio.gather(episode(1.0, 0), episode(0.0, 2))
    return said
