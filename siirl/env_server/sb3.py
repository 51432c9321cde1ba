"""Adapter of the pool to a `VecEnv` of Stable-Baselines3.

    envs = stable_baselines3_env(PoolVectorEnv(pool, autoreset_mode="SameStep"))

Stable-Baselines3 is not a dependency of siirl: it is imported when the adapter is made. The return
values of its step differ from Gymnasium's; `StableBaselines3Steps` translates them without
importing it.

Left out: attributes and methods of single environments, which live in other processes.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from siirl.env_server.vector_env import EnvOutcome, PoolVectorEnv
from siirl.errors import ConfigError, MissingAssetError

INSTALL = "pip install stable-baselines3"


class StableBaselines3Steps:
    """The methods of a `VecEnv`: seed, reset, step_async, step_wait, close."""

    def __init__(self, envs: PoolVectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                "Stable-Baselines3 resets within the step: make PoolVectorEnv with "
                "autoreset_mode='SameStep'."
            )
        self._envs = envs
        self._seed: int | None = None
        self._actions: Any = None
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(envs.num_envs)]

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the episodes from the next reset on."""
        self._seed = seed
        return [None if seed is None else seed + index for index in range(self._envs.num_envs)]

    def reset(self) -> Any:
        """Start new episodes; returns their observations."""
        observations, _ = self._envs.reset(seed=self._seed)
        self._seed = None
        return observations

    def step_async(self, actions: Any) -> None:
        """Store the actions of the next step."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Execute the step; returns observations, rewards, whether episodes ended, and infos.

        If an episode ended, the observation is the first of the next episode.
        """
        outcomes = self._envs.step_each(self._actions)
        rewards = np.array([outcome.reward for outcome in outcomes], np.float32)
        ended = np.array([outcome.final is not None for outcome in outcomes], np.bool_)
        self.reset_infos = [
            outcome.info if outcome.final is not None else {} for outcome in outcomes
        ]
        infos = [_step_info(outcome) for outcome in outcomes]
        return self._envs.observations, rewards, ended, infos

    def close(self) -> None:
        """End all servers."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return None for `render_mode`, which Stable-Baselines3 reads; refuse other attributes."""
        if attr_name != "render_mode":
            raise AttributeError(
                f"{attr_name!r} cannot be read: the environments live in their servers' processes."
            )
        return [None for _ in range(self._envs.num_envs)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: the environments live in their servers' processes."""
        raise AttributeError(f"{attr_name!r} cannot be set: pass it to EnvPool in env_kwargs.")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refused: the environments live in their servers' processes."""
        raise AttributeError(
            f"Method {method_name!r} cannot be called: the environments live in their servers' "
            "processes."
        )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """False: Stable-Baselines3 does not wrap environments inside servers."""
        return [False for _ in range(self._envs.num_envs)]


def stable_baselines3_env(envs: PoolVectorEnv) -> Any:
    """`envs` as a `stable_baselines3.common.vec_env.VecEnv`; closing it closes the pool.

    Raises:
        MissingAssetError: Stable-Baselines3 is not installed.
        ConfigError: `envs` does not reset within the step.
    """
    try:
        vec_env = importlib.import_module("stable_baselines3.common.vec_env").VecEnv
    except ModuleNotFoundError as error:
        raise MissingAssetError(
            f"The adapter needs Stable-Baselines3, but {error.name} is not installed: {INSTALL}"
        ) from error

    # the base class is only known here
    class PoolVecEnv(StableBaselines3Steps, vec_env):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            StableBaselines3Steps.__init__(self, envs)
            vec_env.__init__(
                self, envs.num_envs, envs.single_observation_space, envs.single_action_space
            )

    return PoolVecEnv()


def _step_info(outcome: EnvOutcome) -> dict[str, Any]:
    if outcome.final is None:
        return outcome.info
    final_observation, info = outcome.final
    # Keys of Stable-Baselines3: it bootstraps the last observation's value after a truncation.
    return {
        **info,
        "terminal_observation": final_observation,
        "TimeLimit.truncated": outcome.truncated and not outcome.terminated,
    }
