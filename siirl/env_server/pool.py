"""EnvPool: environments behind servers, lent as slots to coroutines that each run an episode.

    kwargs = {"tasks": ["door-open"]}
    streams = {"recorder": FrameRequest(every=2, size=256)}
    async with EnvPool("metaworld", kwargs, num_servers=2, cluster="ray", deadline_s=30.0) as pool:
        async with pool.slot() as slot:
            observation, info = await slot.reset(seed=7, options={"frames": streams})
            observation, reward, terminated, truncated, info = await slot.step_chunk(actions)
            frames = await slot.frames("recorder")

A server that dies, hangs, raises or returns an invalid number is replaced. Its episodes are
simulated again, each from its seed and its executed chunks; to their coroutines, the call only
takes longer. An episode that is charged with more than `max_replays` failures ends with
`SimulationFailed`; the others continue. A result of a wrong form ends its episode so at once, and
two such episodes in a row of one environment replace the server, unless its episodes cannot be
replayed. An episode is therefore either returned unchanged or reported as failed, and never scored
after a broken simulation. Use the pool from one event loop.
"""

import asyncio
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from envs.base import EnvSpec, EpisodeFailed, ServerAway
from envs.registry import ENVS, env_spec
from siirl.env_server.server import AGAIN_AFTER_S, may_come_back
from siirl.env_server.server_supervisor import ServerFault, ServerSupervisor
from siirl.env_server.slot import Slot
from siirl.env_server.tally import Tally
from siirl.env_server.transports import transport_class
from siirl.errors import ConfigError, SimulationFailed


class EnvPool:
    """Owns the servers; `slot` lends one environment at a time."""

    def __init__(
        self,
        env_name: str,
        env_kwargs: Mapping[str, Any],
        num_servers: int = 1,
        envs_per_server: int = 1,
        *,
        cluster: str = "local",
        deadline_s: float = 60.0,
        max_replays: int = 2,
        start_deadline_s: float = 180.0,
    ) -> None:
        """Checks the arguments and reads the spec; `start` starts the servers.

        Args:
            env_name: Registered name or `module:Class`.
            env_kwargs: The environment's constructor arguments.
            num_servers: Server processes; for a simulator the number of cores.
            envs_per_server: Environments in each; with two or more a server simulates one while the
                policy computes for another.
            cluster: `ray` (one actor per server) or `local` (in this process, without Ray).
            deadline_s: Seconds that one reset or chunk may take; deadlines of queued requests add
                up. The same as `env.deadline_s`.
            max_replays: Server failures that an episode survives.
            start_deadline_s: Seconds that a server may take to start; allows for imports from a
                cold disk by many processes at once.

        Raises:
            ConfigError: A value out of range.
            ValueError: The registry refuses the environment or its arguments.
            SimulationFailed: A server behind the environment is away, and does not come back.
        """
        _check_positive(
            num_servers=num_servers,
            envs_per_server=envs_per_server,
            deadline_s=deadline_s,
            start_deadline_s=start_deadline_s,
        )
        if max_replays < 0:
            raise ConfigError(f"max_replays must be 0 or more, got {max_replays}.")
        self.spec = _spec_of(env_name, env_kwargs)
        # Resolved here: a server does not know names that this process registered.
        make_transport = functools.partial(
            transport_class(cluster),
            env_name=ENVS.get(env_name, env_name),
            env_kwargs=env_kwargs,
            num_envs=envs_per_server,
        )
        self._supervisors = [
            ServerSupervisor(
                name=f"{index + 1} of {num_servers} ({env_name})",
                make_transport=functools.partial(make_transport, number=index),
                num_envs=envs_per_server,
                deadline_s=deadline_s,
                start_deadline_s=start_deadline_s,
            )
            for index in range(num_servers)
        ]
        self._tally = Tally()
        make_slot = functools.partial(
            Slot, spec=self.spec, max_replays=max_replays, tally=self._tally
        )
        self._free: dict[ServerSupervisor, deque[Slot]] = {}
        for supervisor in self._supervisors:
            slots = [make_slot(supervisor=supervisor, env=env) for env in range(envs_per_server)]
            self._free[supervisor] = deque(slots)
        self._num_slots = num_servers * envs_per_server
        self._permits = asyncio.Semaphore(self._num_slots)

    @property
    def num_slots(self) -> int:
        """Number of episodes that can run at once."""
        return self._num_slots

    async def start(self) -> None:
        """Start all servers concurrently and wait until each has made its environments.

        Raises:
            ValueError: The environment refuses its arguments.
            SimulationFailed: A server did not start; the others are closed.
        """
        starts = [asyncio.ensure_future(supervisor.start()) for supervisor in self._supervisors]
        try:
            await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            ended = [start for start in starts if start.done() and not start.cancelled()]
            failures = [error for start in ended if (error := start.exception()) is not None]
            if failures or len(ended) < len(starts):
                await self.close()
                await asyncio.gather(*starts, return_exceptions=True)
        for failure in failures:
            if isinstance(failure, ServerFault | EpisodeFailed):
                raise SimulationFailed(
                    f"The environment servers could not be started. {failure}"
                ) from failure
            raise failure
        self._tally.restart()

    async def close(self) -> None:
        """End every server; running episodes raise RuntimeError. Safe to call twice."""
        self._tally.report_failures()
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def slot(self) -> "AsyncIterator[Slot]":
        """Lend an environment; waits until one is free."""
        async with self._permits:
            # The least loaded server, so that few episodes use all servers.
            supervisor = min(
                (supervisor for supervisor, slots in self._free.items() if slots),
                key=lambda supervisor: supervisor.num_lent,
            )
            lent = self._free[supervisor].popleft()
            supervisor.num_lent += 1
            try:
                yield lent
            finally:
                lent.end_episode()
                supervisor.num_lent -= 1
                self._free[supervisor].append(lent)

    def stats(self) -> dict[str, float]:
        """Counts and rates since the last call, or since `start`."""
        busy_s = sum(supervisor.take_busy_s() for supervisor in self._supervisors)
        return self._tally.take(busy_s=busy_s, num_servers=len(self._supervisors))


def _spec_of(env_name: str, env_kwargs: Mapping[str, Any]) -> EnvSpec:
    """The environment's spec; waits for a server behind it that left since the plan."""
    begin = time.monotonic()
    while True:
        try:
            return env_spec(env_name, **env_kwargs)
        except ServerAway as away:
            if not may_come_back(away, since=begin):
                raise SimulationFailed(f"The environment cannot be made. {away}") from away
        time.sleep(AGAIN_AFTER_S)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ConfigError(f"{name} must be positive, got {value}.")
