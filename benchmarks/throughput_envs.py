"""Environments of the throughput benchmarks: siirl's as plain `gymnasium.Env`s for AsyncVectorEnv,
and two controls for the pool.

Light to import: every worker process does.
"""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.base import IMAGES, PROPRIOCEPTION, Environment, EnvSpec, StepResult
from envs.metaworld.metaworld_env import DEFAULT_TASKS, MetaWorldEnv
from envs.registry import make_env

CHUNK = 8  # the shipped policy's
NUM_TASKS = len(DEFAULT_TASKS)


class PlainEnv(gymnasium.Env):
    """Any of siirl's environments as Gymnasium wants it. With `chunk` K > 1 an action is a chunk
    [K, A]: our trick, for the baseline.

    Instructions are left out, which spares AsyncVectorEnv the copying of text. Tasks take turns,
    beginning with number `index`.
    """

    def __init__(
        self, env_name: str, env_kwargs: Mapping[str, Any], *, chunk: int, index: int
    ) -> None:
        self.environment = make_env(env_name, **env_kwargs)
        spec = self.environment.spec
        assert isinstance(spec.observation_space, gymnasium.spaces.Dict) and isinstance(
            spec.action_space, gymnasium.spaces.Box
        )
        self.observation_space = gymnasium.spaces.Dict(
            {name: spec.observation_space[name] for name in (IMAGES, PROPRIOCEPTION)}
        )
        low, high = spec.action_space.low, spec.action_space.high
        one = spec.action_space
        self.action_space = (
            one
            if chunk == 1
            else gymnasium.spaces.Box(
                np.tile(low, (chunk, 1)), np.tile(high, (chunk, 1)), dtype=np.float32
            )
        )
        self._chunk, self._tasks, self._episode, self._index = chunk, spec.tasks, index, index

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The next task, unless `options["tasks"]` has one for this environment."""
        super().reset(seed=seed)
        task = (
            self._tasks[self._episode % len(self._tasks)]
            if not options
            else options["tasks"][self._index]
        )
        self._episode += 1
        observation, _ = finished(self.environment.reset(seed=seed, options={"task": task}))
        return self._visible(observation), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One action or one chunk; info has the number of executed actions."""
        actions: Sequence[Any] = [action] if self._chunk == 1 else [*action]
        observation, reward, terminated, truncated, info = finished(
            self.environment.step_chunk(actions)
        )
        return (
            self._visible(observation),
            reward,
            terminated,
            truncated,
            {"executed": info["executed"]},
        )

    def close(self) -> None:
        finished(self.environment.close())

    def _visible(self, observation: Any) -> dict[str, Any]:
        return {name: observation[name] for name in (IMAGES, PROPRIOCEPTION)}


class WaitingEnv(PlainEnv):
    """A `PlainEnv` for lockstep loops: after the end of its episode it waits for the reset of all.

    Until then it does nothing, or with `go_on` plays further episodes, like a vector environment
    with autoreset.
    """

    def __init__(
        self, env_name: str, env_kwargs: Mapping[str, Any], *, chunk: int, index: int, go_on: bool
    ) -> None:
        super().__init__(env_name, env_kwargs, chunk=chunk, index=index)
        self._go_on, self._ended, self._restart = go_on, True, False

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode that counts."""
        self._ended = self._restart = False
        self._last, info = super().reset(seed=seed, options=options)
        return self._last, info

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One chunk; that the episode ended stands in info, since Gymnasium would reset it or
        refuse to step the others.
        """
        if self._ended and not self._go_on:
            return self._last, 0.0, False, False, {"executed": 0, "ended": True, "success": False}
        if self._restart:
            self._last, _ = super().reset()
            self._restart = False
            return self._last, 0.0, False, False, {"executed": 0, "ended": True, "success": False}
        self._last, reward, terminated, truncated, info = super().step(action)
        self._restart = terminated or truncated
        self._ended |= self._restart
        return (
            self._last,
            reward,
            False,
            False,
            {**info, "ended": self._ended, "success": terminated},
        )


class NullEnv(Environment):
    """Simulates and renders nothing, which isolates the transport. Same observations and episode
    length as the default `metaworld`.
    """

    def __init__(self, image_size: int = 64, max_episode_steps: int = 120) -> None:
        self.spec = EnvSpec(
            name="null",
            tasks=("nothing",),
            observation_space=gymnasium.spaces.Dict(
                {
                    IMAGES: gymnasium.spaces.Box(0, 255, (1, image_size, image_size, 3), np.uint8),
                    PROPRIOCEPTION: gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32),
                }
            ),
            action_space=gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32),
            max_episode_steps=max_episode_steps,
        )
        self._observation: dict[str, NDArray[Any]] = {
            IMAGES: np.zeros((1, image_size, image_size, 3), np.uint8),
            PROPRIOCEPTION: np.zeros(4, np.float32),
        }
        self._steps = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._observe(), {"task": "nothing", "success": False}

    async def step(self, action: Any) -> StepResult:
        self._steps += 1
        return (
            self._observe(),
            0.0,
            False,
            self._steps >= self.spec.max_episode_steps,
            {"success": False},
        )

    def render(self) -> NDArray[np.uint8]:
        return self._observation[IMAGES][0]

    def _observe(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self._observation.items()}


class RebuiltMetaWorldEnv(MetaWorldEnv):
    """Builds its simulator anew for every episode, as many systems do. The renderer stays as long
    as others of the server hold it.
    """

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        await self.close()
        return await super().reset(seed=seed, options=options)


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Result of a coroutine that never waits, which those of simulators do not: no event loop is
    needed.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("The environment waits for something: it needs an event loop.")


def random_chunks(*, seed: int, chunk: int, size: int) -> Sequence[NDArray[np.float32]]:
    """Actions to take in turn: 64 chunks [K, A], drawn before the clock starts."""
    return list(
        np.random.default_rng(seed).uniform(-1.0, 1.0, (64, chunk, size)).astype(np.float32)
    )
