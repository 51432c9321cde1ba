"""EnvServer: holds one heavy or several light environments, answers batches of requests, keeps
frames until they are asked for.

A plain class that knows no transport: `siirl.env_server.transports` runs it in this process or inside a
Ray actor. What an environment raises becomes an answer (`Raised`), so that one episode's exception
never travels as the failure of the whole batch.

Left out: deadlines, replacement and replay. They belong to the client, which outlives a server.
"""

import asyncio
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from envs.base import Environment, EpisodeFailed, Frames, Info, Observation, StepResult
from envs.registry import make_env


class Request(NamedTuple):
    """What environment number `env` of a server shall do."""

    env: int
    method: Literal["reset", "step_chunk", "frames"]
    arguments: tuple[Any, ...]


class Raised(NamedTuple):
    """An exception of an environment, as data: an exception of a user's own class may not survive
    pickling.
    """

    kind: Literal["mistake", "episode", "fault"]
    """`mistake`: a ValueError, an argument that the environment refuses, and would refuse again.
    `episode`: an `EpisodeFailed`, which says that this episode cannot be scored, now or when
    repeated, and that the environment is sound. `fault`: everything else."""
    summary: str
    """Type and message."""
    trace: str
    """Where it was raised."""

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        """Describe `error`; a ValueError is told by its message alone, since it is raised again as
        a ValueError.
        """
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, ValueError):
            return cls(kind="mistake", summary=str(error), trace=trace)
        kind: Literal["episode", "fault"] = (
            "episode" if isinstance(error, EpisodeFailed) else "fault"
        )
        return cls(kind=kind, summary=f"{type(error).__name__}: {error}", trace=trace)


class Answers(NamedTuple):
    """What a server returns for a batch of requests."""

    values: list[Any]
    """One entry a request, in their order: its result, or `Raised`."""
    busy_s: float
    """Seconds that the server worked since its last answers."""


class EnvServer:
    """Hosts `num_envs` environments of one kind."""

    def __init__(self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None:
        """Cheap: `open` makes the environments."""
        self._env_name, self._env_kwargs, self._num_envs = env_name, dict(env_kwargs), num_envs
        self._hosted: list[_HostedEnvironment] = []
        self._clock = _BusyClock()

    async def open(self) -> Raised | None:
        """Make the environments; returns what went wrong, or None."""
        (outcome,) = await asyncio.gather(self._make(), return_exceptions=True)
        return _as_answer(outcome)

    async def handle(self, requests: Sequence[Request]) -> Answers:
        """Carry out `requests`, of one environment or of several; environments that wait for
        something else overlap.
        """
        outcomes = await asyncio.gather(*map(self._carry_out, requests), return_exceptions=True)
        return Answers([_as_answer(outcome) for outcome in outcomes], self._clock.take())

    async def close(self) -> None:
        """Close every environment; one that raises does not keep the others open."""
        hosted, self._hosted = self._hosted, []
        await asyncio.gather(
            *(entry.environment.close() for entry in hosted), return_exceptions=True
        )

    async def _make(self) -> None:
        self._hosted = [
            _HostedEnvironment(make_env(self._env_name, **self._env_kwargs))
            for _ in range(self._num_envs)
        ]

    async def _carry_out(self, request: Request) -> Any:
        hosted = self._hosted[request.env]
        async with hosted.turn:
            with self._clock:
                return await hosted.carry_out(request)


def _as_answer(outcome: Any) -> Any:
    """What an environment raised becomes an answer. An interrupt is nobody's fault, and ends the
    process that it was meant for.
    """
    if isinstance(outcome, KeyboardInterrupt):
        raise outcome
    return Raised.of(outcome) if isinstance(outcome, BaseException) else outcome


class _HostedEnvironment:
    """One environment, and the frames of its running episode."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        # One request at a time: the step of an episode that was given up must not run into the
        # reset of the next.
        self.turn = asyncio.Lock()
        self._frames: dict[str, list[Frames]] = {}

    async def carry_out(self, request: Request) -> Any:
        match request.method:
            case "reset":
                return await self._reset(*request.arguments)
            case "step_chunk":
                return await self._step_chunk(*request.arguments)
            case "frames":
                return self._frames_of(*request.arguments)

    async def _reset(self, seed: int, options: Mapping[str, Any]) -> tuple[Observation, Info]:
        self._frames = {}
        observation, info = await self.environment.reset(seed=seed, options=options)
        return observation, self._keep_frames(info)

    async def _step_chunk(self, actions: Sequence[Any]) -> StepResult:
        observation, reward, terminated, truncated, info = await self.environment.step_chunk(
            actions
        )
        return observation, reward, terminated, truncated, self._keep_frames(info)

    def _frames_of(self, stream: str) -> Frames:
        if stream not in self._frames:
            known = ", ".join(sorted(self._frames)) or "(none)"
            raise ValueError(
                f'No frames of stream {stream!r} in this episode. Asked for at reset (options={{"frames": …}}): {known}.'
            )
        parts = self._frames[stream]
        images = np.concatenate([part.images for part in parts])
        return Frames(images, tuple(step for part in parts for step in part.steps))

    def _keep_frames(self, info: Info) -> Info:
        if "frames" not in info:
            return info
        for stream, part in info["frames"].items():
            self._frames.setdefault(stream, []).append(part)
        return {name: value for name, value in info.items() if name != "frames"}


class _BusyClock:
    """Measures how long at least one environment was at work: entered by each, whether they overlap
    or not.
    """

    def __init__(self) -> None:
        self._at_work = 0
        self._since = self._busy_s = 0.0

    def __enter__(self) -> None:
        self._count()
        self._at_work += 1

    def __exit__(self, *_: object) -> None:
        self._count()
        self._at_work -= 1

    def take(self) -> float:
        """Seconds since the last call."""
        self._count()
        busy_s, self._busy_s = self._busy_s, 0.0
        return busy_s

    def _count(self) -> None:
        now = time.perf_counter()
        if self._at_work:
            self._busy_s += now - self._since
        self._since = now
