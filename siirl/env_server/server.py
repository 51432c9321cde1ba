"""EnvServer: holds environments, answers batches of requests, stores frames until requested.

The class is independent of its transport: `siirl.env_server.transports` runs it in this process or
inside a Ray actor. Exceptions of an environment become answers (`RaisedError`), so that one
episode's exception does not fail the whole batch.

Left out: deadlines, replacement and replay. They belong to the client, which outlives a server.
"""

import asyncio
import errno
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Literal, NamedTuple

import numpy as np

from envs.base import (
    RESET_VALUES,
    Environment,
    EnvSpec,
    EpisodeFailed,
    Frames,
    Misbehaved,
    ServerAway,
    WrongForm,
    answer_of,
    frames_of,
)
from envs.mistakes import describe_exit, text_of
from envs.registry import make_env

PORT_TAKEN = (
    "Environments run side by side and cannot share a port: bind port 0, for which the system "
    "chooses a free one"
)
AGAIN_AFTER_S = 0.5  # pause between attempts to make an environment whose server is away


class Request(NamedTuple):
    """A call to environment number `env` of a server."""

    env: int
    method: Literal["reset", "step_chunk", "frames"]
    arguments: tuple[Any, ...]


class RaisedError(NamedTuple):
    """An exception of an environment as data, because exceptions may not be picklable."""

    kind: Literal["mistake", "episode", "form", "away", "fault"]
    """`mistake`: a ValueError; the environment refuses an argument, and would refuse it again.
    `episode`: an `EpisodeFailed`; this episode cannot be scored, even if repeated, and the
    environment works. `form`: a `WrongForm`. `away`: a `ServerAway`; the environment could not be
    made. `fault`: all else.
    """
    summary: str
    """Type and message; for a `mistake` the message only, since it is raised again."""
    trace: str
    """Traceback, after a newline; empty if the summary names the place."""

    @classmethod
    def of(cls, error: BaseException) -> "RaisedError":
        """Describe `error`."""
        raised = cls._of(error)
        if not _port_is_taken(error):
            return raised
        return raised._replace(summary=f"{raised.summary.rstrip('.')}. {PORT_TAKEN}")

    @classmethod
    def _of(cls, error: BaseException) -> "RaisedError":
        if isinstance(error, Misbehaved):
            return cls(
                kind="form" if isinstance(error, WrongForm) else "fault",
                summary=text_of(error).rstrip("."),
                trace="",
            )
        if isinstance(error, ServerAway):
            return cls(kind="away", summary=text_of(error).rstrip("."), trace="")
        trace = "\n" + "".join(traceback.format_exception(error))
        if isinstance(error, ValueError):
            return cls(kind="mistake", summary=text_of(error), trace=trace)
        kind: Literal["episode", "fault"] = (
            "episode" if isinstance(error, EpisodeFailed) else "fault"
        )
        text = text_of(error)
        named = type(error).__name__
        return cls(kind=kind, summary=f"{named}: {text}" if text else named, trace=trace)


def _port_is_taken(error: BaseException | None) -> bool:
    """Whether the error, or one that it was raised from, says that an address is in use."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return True
        error = error.__cause__ or error.__context__
    return False


class Answers(NamedTuple):
    """Results of requests in one batch that were ready together."""

    values: list[Any]
    """One entry per request: its result, or `RaisedError`."""
    busy_s: float
    """Seconds that the server worked since its last answers."""


Answered = Callable[[Sequence[int], Answers], object]
"""Called with the positions of requests in their batch, and with their answers."""


class EnvServer:
    """Hosts `num_envs` environments of one kind."""

    def __init__(self, *, env_name: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None:
        """Store the arguments; `open` makes the environments."""
        self._env_name = env_name
        self._env_kwargs = dict(env_kwargs)
        self._num_envs = num_envs
        self._hosted: list[_HostedEnvironment] = []
        self._clock = _BusyClock()

    async def open(self) -> RaisedError | None:
        """Make the environments; returns the exception if one was raised."""
        (outcome,) = await asyncio.gather(self._make(), return_exceptions=True)
        return _as_answer(outcome)

    @property
    def spec(self) -> EnvSpec:
        """The environments' spec; after `open`."""
        return self._hosted[0].environment.spec

    async def handle(self, requests: Sequence[Request], answered: Answered) -> None:
        """Execute `requests` of one or several environments; environments that await overlap.

        `answered` is called with each answer as soon as it is ready, so that a slow environment
        delays no other; answers that are ready at the same time share a call.
        """
        tasks = {
            asyncio.ensure_future(self._hosted[request.env].carry_out(request)): position
            for position, request in enumerate(requests)
        }
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                ready = sorted(done, key=tasks.__getitem__)
                values = [_answer_of(task) for task in ready]
                answered([tasks[task] for task in ready], Answers(values, self._clock.take()))
        finally:  # cancelled
            for task in pending:
                task.cancel()

    async def close(self) -> None:
        """Close every environment, even if some raise."""
        hosted, self._hosted = self._hosted, []
        closing = [_close(entry.environment) for entry in hosted]
        try:
            await asyncio.gather(*closing, return_exceptions=True)
        finally:  # a signal may end the process before all tasks have begun
            for coroutine in closing:
                if getcoroutinestate(coroutine) == CORO_CREATED:
                    coroutine.close()

    async def _make(self) -> None:
        with _exit_is_an_error():
            self._hosted = [
                _HostedEnvironment(await self._made(), clock=self._clock)
                for _ in range(self._num_envs)
            ]

    async def _made(self) -> Environment:
        """An environment; waits for a server behind it that is away."""
        begin = time.monotonic()
        while True:
            try:
                return make_env(self._env_name, **self._env_kwargs)
            except ServerAway as away:
                if not may_come_back(away, since=begin):
                    raise
            await asyncio.sleep(AGAIN_AFTER_S)


def may_come_back(away: ServerAway, *, since: float) -> bool:
    """Whether to try again after `AGAIN_AFTER_S`; `since` is the first try, in monotonic time."""
    return time.monotonic() + AGAIN_AFTER_S <= since + away.patience_s


async def _close(environment: Environment) -> None:
    with _exit_is_an_error():
        await environment.close()


@contextmanager
def _exit_is_an_error() -> Iterator[None]:
    """Raise an environment's `sys.exit` as an ordinary error.

    asyncio takes SystemExit out of the event loop, so `sys.exit(0)` would end a command silently.
    Ray's handler of SIGTERM raises it too, with a mark; this one ends the process.
    """
    try:
        yield
    except SystemExit as error:
        if "ray_terminate_msg" in vars(error):
            raise
        raise RuntimeError(f"the environment called {describe_exit(error)}") from error


def _answer_of(task: "asyncio.Task[Any]") -> Any:
    if task.cancelled():  # by the environment itself
        return RaisedError.of(asyncio.CancelledError())
    error = task.exception()
    return _as_answer(task.result() if error is None else error)


def _as_answer(outcome: Any) -> Any:
    """The outcome as an answer; KeyboardInterrupt is raised again and ends the process."""
    if isinstance(outcome, KeyboardInterrupt):
        raise outcome
    return RaisedError.of(outcome) if isinstance(outcome, BaseException) else outcome


class _HostedEnvironment:
    """One environment, and the frames of its running episode; `clock` counts its work."""

    def __init__(self, environment: Environment, *, clock: "_BusyClock") -> None:
        self.environment = environment
        self._clock = clock
        # One request at a time: the step of an abandoned episode must not overlap with the reset of
        # the next.
        self._turn = asyncio.Lock()
        self._frames: dict[str, list[Frames]] = {}

    async def carry_out(self, request: Request) -> Any:
        """Execute `request` after all earlier ones."""
        async with self._turn:
            with self._clock, _exit_is_an_error():
                match request.method:
                    case "reset":
                        seed, options = request.arguments
                        self._frames = {}
                        call = f"{type(self.environment).__name__}.reset"
                        observation, info = await answer_of(
                            self.environment.reset(seed=seed, options=options),
                            call=call,
                            values=RESET_VALUES,
                        )
                        return observation, self._keep_frames(info, call=call)
                    case "step_chunk":
                        *result, info = await self.environment.step_chunk(*request.arguments)
                        call = f"{type(self.environment).__name__}.step_chunk"
                        return *result, self._keep_frames(info, call=call)
                    case "frames":
                        return self._frames_of(*request.arguments)

    def _frames_of(self, stream: str) -> Frames:
        if stream not in self._frames:
            known = ", ".join(sorted(self._frames)) or "(none)"
            raise ValueError(
                f"No frames of stream {stream!r} in this episode. Requested at reset "
                f'(options={{"frames": …}}): {known}.'
            )
        parts = self._frames[stream]
        images = np.concatenate([part.images for part in parts])
        return Frames(images, tuple(step for part in parts for step in part.steps))

    def _keep_frames(self, info: Any, *, call: str) -> Any:
        if not isinstance(info, Mapping) or "frames" not in info:
            return info  # the client's checks refuse what is no Mapping
        for stream, part in frames_of(info, call=call).items():
            self._frames.setdefault(stream, []).append(part)
        return {name: value for name, value in info.items() if name != "frames"}


class _BusyClock:
    """Measures how long at least one environment was working; environments may overlap."""

    def __init__(self) -> None:
        self._at_work = 0
        self._since = 0.0
        self._busy_s = 0.0

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
