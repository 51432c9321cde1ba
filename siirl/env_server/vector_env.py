"""The pool as a `gymnasium.vector.VectorEnv`, for trainers of other projects.

    pool = EnvPool("gymnasium", {"id": "CartPole-v1"}, 2, 4, cluster="ray", deadline_s=30.0)
    envs = PoolVectorEnv(pool)
    observations, infos = envs.reset(seed=0)
    observations, rewards, terminations, truncations, infos = envs.step(actions)

The interface requires one action per call and a barrier after each. It is therefore slower than
`EnvPool` (chunks, no barrier), but has its fault tolerance: replacement of servers, replay,
deterministic episodes. `step` raises SimulationFailed.

Left out: rendering, and the attributes and methods of single environments, which live in other
processes. In a notebook, whose thread already runs an event loop, use `EnvPool` itself.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from envs.base import Info, Observation
from siirl.env_server.pool import EnvPool
from siirl.env_server.slot import Slot
from siirl.errors import ConfigError, UnknownNameError

Result = TypeVar("Result")


class EnvOutcome(NamedTuple):
    """One environment's result of a joint step."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: Info
    final: tuple[Observation, Info] | None = None
    """Last observation and info of an episode that ended, if the next one began in this step."""


class PoolVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """All slots of a pool, stepped together.

    Environment `i` always runs task `i` of `spec.tasks`, modulo their number.
    """

    def __init__(
        self,
        pool: EnvPool,
        *,
        observation_entry: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,  # Gymnasium's own default
    ) -> None:
        """Start `pool`, which this object then owns and closes.

        Args:
            pool: A pool that was not started.
            observation_entry: Entry of a `Dict` observation to return alone; by default the entry
                of a Dict that has only one.
            autoreset_mode: When the next episode begins: `NEXT_STEP` (the step after the last one
                returns its first observation and ignores the action), `SAME_STEP` (the last step
                does; the final observation is `infos["final_obs"]`) or `DISABLED`
                (`reset(options={"reset_mask": …})` does).
        """
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self._mode}
        self._entry = _entry_of(pool.spec.observation_space, observation_entry)
        self.num_envs = pool.num_slots
        self.single_observation_space = _space_of(pool.spec.observation_space, self._entry)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = pool.spec.action_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._pool = pool
        self._tasks = [
            pool.spec.tasks[index % len(pool.spec.tasks)] for index in range(self.num_envs)
        ]
        self._ended = np.ones(self.num_envs, np.bool_)  # until the first reset
        self._options: dict[str, Any] = {}
        self._reseed([None] * self.num_envs)
        self._latest: list[Observation] = [None] * self.num_envs
        self._loop = asyncio.new_event_loop()
        self._lent = AsyncExitStack()
        self._slots: list[Slot] = self._run(self._open())

    @property
    def observations(self) -> Any:
        """Current observations of all environments, in `observation_space`; a new array."""
        buffer: Any = create_empty_array(
            self.single_observation_space, n=self.num_envs, fn=np.zeros
        )
        return concatenate(self.single_observation_space, self._latest, buffer)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes, in all environments or those of `options["reset_mask"]`.

        Args:
            seed: Seed of environment 0, from which the others count up; or one seed for each. Seeds
                of later episodes are drawn from it.
            options: Passed to every environment, here and at automatic resets; `reset_mask` is a
                bool array [num_envs].
        """
        options = dict(options or {})
        mask = _checked_mask(options.pop("reset_mask", None), num_envs=self.num_envs)
        self._options = options
        if seed is not None:
            seeds = (
                [seed + index for index in range(self.num_envs)]
                if isinstance(seed, int)
                else list(seed)
            )
            if len(seeds) != self.num_envs:
                raise ValueError(f"reset got {len(seeds)} seeds for {self.num_envs} environments.")
            self._reseed(seeds)
        chosen = np.flatnonzero(mask).tolist()
        infos: dict[str, Any] = {}
        for index, (observation, info) in zip(
            chosen, self._run(_all(map(self._reset_one, chosen))), strict=True
        ):
            self._latest[index] = observation
            infos = self._add_info(infos, info, index)
        return self.observations, infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Apply one action in every environment; see `VectorEnv.step` and `autoreset_mode`."""
        outcomes = self.step_each(actions)
        infos: dict[str, Any] = {}
        for index, outcome in enumerate(outcomes):
            if outcome.final is not None:
                infos = self._add_info(
                    infos, {"final_obs": outcome.final[0], "final_info": outcome.final[1]}, index
                )
            infos = self._add_info(infos, outcome.info, index)
        rewards = np.array([outcome.reward for outcome in outcomes], np.float64)
        terminations = np.array([outcome.terminated for outcome in outcomes], np.bool_)
        truncations = np.array([outcome.truncated for outcome in outcomes], np.bool_)
        return self.observations, rewards, terminations, truncations, infos

    def step_each(self, actions: Any) -> list[EnvOutcome]:
        """Like `step`, with one entry per environment."""
        each = list(iterate(self.action_space, actions))
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            raise RuntimeError(
                f"Episodes of environments {np.flatnonzero(self._ended).tolist()} have ended and "
                'autoreset is disabled: call reset(options={"reset_mask": …}) for them before step.'
            )
        outcomes: list[EnvOutcome] = self._run(
            _all(self._step_one(index, action) for index, action in enumerate(each))
        )
        self._latest = [outcome.observation for outcome in outcomes]
        return outcomes

    def close_extras(self, **kwargs: Any) -> None:
        """End all servers; `close` calls it once."""
        self._run(self._lent.aclose())
        self._run(self._pool.close())
        self._loop.close()

    async def _open(self) -> list[Slot]:
        await self._pool.start()
        return [
            await self._lent.enter_async_context(self._pool.slot()) for _ in range(self.num_envs)
        ]

    async def _reset_one(self, index: int) -> tuple[Observation, Info]:
        first = self._first_seeds[index]
        generator = self._generators[index]
        self._first_seeds[index] = None
        seed = int(generator.integers(2**31)) if first is None else first
        observation, info = await self._slots[index].reset(
            seed=seed, options={"task": self._tasks[index], **self._options}
        )
        self._ended[index] = False
        return self._chosen(observation), info

    async def _step_one(self, index: int, action: Any) -> EnvOutcome:
        if self._ended[index] and self._mode is AutoresetMode.NEXT_STEP:
            observation, info = await self._reset_one(index)
            return EnvOutcome(observation, 0.0, False, False, info)
        observation, reward, terminated, truncated, info = await self._slots[index].step_chunk(
            [action]
        )
        observation = self._chosen(observation)
        self._ended[index] = terminated or truncated
        if not self._ended[index] or self._mode is not AutoresetMode.SAME_STEP:
            return EnvOutcome(observation, reward, terminated, truncated, info)
        following, following_info = await self._reset_one(index)
        return EnvOutcome(
            following, reward, terminated, truncated, following_info, final=(observation, info)
        )

    def _reseed(self, seeds: Sequence[int | None]) -> None:
        self._first_seeds = list(seeds)
        self._generators = [np.random.default_rng(seed) for seed in seeds]

    def _chosen(self, observation: Observation) -> Observation:
        return observation if self._entry is None else observation[self._entry]

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(coroutine)


async def _all(coroutines: Any) -> list[Any]:
    """Results of all. An error is raised when all have ended: an environment that continued would
    meet the next call.
    """
    outcomes = await asyncio.gather(*coroutines, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def _entry_of(space: gymnasium.Space[Any], wanted: str | None) -> str | None:
    """The entry of a Dict observation to return alone; None for the whole observation."""
    if not isinstance(space, gymnasium.spaces.Dict):
        if wanted is not None:
            raise ConfigError(
                f"observation_entry={wanted!r}, but observations are {space} and have no entries."
            )
        return None
    if wanted is None:
        return next(iter(space.spaces)) if len(space.spaces) == 1 else None
    if wanted not in space.spaces:
        raise UnknownNameError.of(kind="observation_entry", name=wanted, known=space.spaces)
    return wanted


def _space_of(space: gymnasium.Space[Any], entry: str | None) -> gymnasium.Space[Any]:
    # `_entry_of` found it in a Dict
    return space if entry is None else space[entry]  # type: ignore[index]


def _checked_mask(mask: Any, *, num_envs: int) -> NDArray[np.bool_]:
    if mask is None:
        return np.ones(num_envs, np.bool_)
    if (
        not isinstance(mask, np.ndarray)
        or mask.dtype != np.bool_
        or mask.shape != (num_envs,)
        or not mask.any()
    ):
        raise ValueError(
            f"reset_mask must be a bool array of shape ({num_envs},) with at least one True, got "
            f"{mask!r}."
        )
    return mask
