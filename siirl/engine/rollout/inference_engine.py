"""InferenceEngine: runs episodes on an engine and environments. `Rollout` adds what a graph needs;
scripts without a graph use it as follows.

    pool = EnvPool("math", {}, 1, 16, cluster="local", deadline_s=60)
    with InferenceEngine(HFEngine(...), pool=pool) as inference:
        # every request, in order
        result = inference.rollout_batch(requests, workflow)
        # further requests replace those that are rejected
        result = inference.prepare_batch(requests_without_end, workflow, count=64)
        inference.update_weights(version)

`with` calls `initialize` and `destroy`.

The names are those of AReaLite's design document. Two differences are deliberate. Results come in
the order of submission: short episodes finish first, and training on the first to finish would
favour them. Episodes advance only while a method of this class waits for one, so weights may change
between two calls without locks.

Episodes that could not be simulated are reported as failed and never scored. Episodes that the
workflow rejects are reported as rejected.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

from siirl.engine.rollout import outer_task
from siirl.engine.rollout.acting import ActRequest, ActResponse
from siirl.engine.rollout.engine import RolloutEngine
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse, TextEngine
from siirl.engine.rollout.workflow import (
    Outcome,
    RolloutResult,
    RolloutWorkflow,
    Trajectory,
    trajectories_of,
)
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError, SimulationFailed
from siirl.interrupts import STOP

Result = TypeVar("Result")
Accept = Callable[[Sequence[Trajectory]], bool]
"""Decides from the trajectories of one episode whether to accept it."""

# Episodes at once if there are no environments: fills a batch and bounds the memory of keys and
# values.
AT_ONCE = 64
# Episodes tried per accepted one, as verl's DAPO script generates (max_num_gen_batches).
ATTEMPTS = 10


@dataclass(frozen=True, eq=False)
class _SubmittedEpisode:
    data: Any
    task: "asyncio.Task[Outcome]"


class InferenceEngine:
    """Runs episodes on an engine.

    Args:
        engine: A TextEngine, or the EmbodiedEngine of a VLA policy.
        pool: Environments, started by `initialize` and ended by `destroy`; None for workflows that
            need none.
        at_once: Episodes that run at the same time; by default the number of slots of the pool.

    Raises:
        ConfigError: `at_once` below 1.
    """

    def __init__(
        self, engine: RolloutEngine, *, pool: EnvPool | None = None, at_once: int | None = None
    ) -> None:
        if at_once is not None and at_once < 1:
            raise ConfigError(f"at_once={at_once} must be at least 1.")
        slots = AT_ONCE if pool is None else pool.num_slots
        self.engine = engine
        self.pool = pool
        self.at_once = slots if at_once is None else at_once
        # not asyncio.Runner: it took a second for a result of 96 trajectories (measured)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_silence_interrupts)
        self._has_own_loop = True
        self._permits = asyncio.Semaphore(self.at_once)
        self._submitted: deque[_SubmittedEpisode] = deque()  # in order of submission

    # Lifecycle

    def advance_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let episodes advance on the loop of another engine, beside its episodes; call it before
        `initialize`. The other engine must be destroyed last.
        """
        self.loop.close()
        self.loop, self._has_own_loop = loop, False

    def initialize(self) -> Self:
        """Start the environments; returns itself."""
        if self.pool is not None:
            outer_task.run(self.loop, self.pool.start())
        return self

    def destroy(self) -> None:
        """End episodes and environments; safe to call twice. The owner closes the engine."""
        if self.loop.is_closed():
            return
        self._drop_submitted()
        if self.pool is not None:
            self.loop.run_until_complete(self.pool.close())
        if self._has_own_loop:
            self.loop.close()

    def __enter__(self) -> Self:
        return self.initialize()

    def __exit__(self, *exception: object) -> None:
        self.destroy()

    # Single requests

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """Continue one prompt; see `TextEngine.agenerate`."""
        return await cast(TextEngine, self.engine).agenerate(request)

    async def act(self, request: ActRequest) -> ActResponse:
        """Generate a chunk of actions for one observation; see `EmbodiedEngine.act`."""
        found: ActResponse = await cast(Any, self.engine).act(request)
        return found

    def update_weights(self, version: int) -> "Future[None]":
        """Set the version of the engine's weights.

        Running episodes keep their tokens and continue with the new weights.

        Returns:
            A completed future: the weights are in place when this returns.
        """
        if self._submitted:
            self.engine.interrupt()
        self.engine.update_weights(version)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    # Episodes

    def submit(self, data: Any, workflow: RolloutWorkflow) -> None:
        """Add an episode; it advances while another method waits for episodes."""
        self.engine.expect(episodes=1, at_once=self.at_once)
        task = self.loop.create_task(self._run_episode(data, workflow))
        # even if it is cancelled before it began
        task.add_done_callback(lambda _: self.engine.episode_ended())
        self._submitted.append(_SubmittedEpisode(data, task))

    def wait(
        self, count: int, timeout: float | None = None, should_accept: Accept | None = None
    ) -> RolloutResult:
        """Wait for the next `count` accepted episodes, in the order of submission.

        The result also has the episodes that failed or were rejected meanwhile.

        Args:
            count: Accepted episodes; each may have several trajectories.
            timeout: Seconds; None: no limit.
            should_accept: Decides by an episode's trajectories; None accepts all.

        Raises:
            TimeoutError: Not all finished in time. Finished ones are kept for the next call.
            RuntimeError: Fewer have been submitted. Finished ones are kept for the next call.
        """
        until = None if timeout is None else time.monotonic() + timeout
        taken: list[_SubmittedEpisode] = []
        result = RolloutResult()
        num_accepted = 0
        try:
            while num_accepted < count:
                taken.append(self._next(until))
                num_accepted += _add_outcome(result, taken[-1], should_accept)
        except (TimeoutError, RuntimeError):
            self._submitted.extendleft(reversed(taken))
            raise
        return result

    def rollout_batch(
        self,
        data: Sequence[Any],
        workflow: RolloutWorkflow,
        *,
        should_accept: Accept | None = None,
        on_done: Callable[[Any], None] = lambda data: None,
    ) -> RolloutResult:
        """Run an episode for each entry of `data` and return when all have ended.

        Rejected episodes are not replaced. If the process receives a stop signal, the episodes are
        cancelled, and the result has only `broken_off`.
        """
        episodes = self.episodes(data, workflow, should_accept=should_accept, on_done=on_done)
        return self._run_until_stop(episodes) or RolloutResult(broken_off=STOP.number or 0)

    async def episodes(
        self,
        data: Sequence[Any],
        workflow: RolloutWorkflow,
        *,
        should_accept: Accept | None = None,
        on_done: Callable[[Any], None] = lambda data: None,
    ) -> RolloutResult:
        """Run an episode for each entry of `data`, beside those of other calls.

        `at_once` bounds all of them together. Any error but SimulationFailed cancels the other
        episodes of this call and is raised.

        Args:
            data: Passed to `arun_episode`, one entry per episode.
            workflow: Runs an episode.
            should_accept: Decides by an episode's trajectories; None accepts all.
            on_done: Called with each entry when its episode has ended.
        """
        self.engine.expect(episodes=len(data), at_once=self.at_once)

        def done(entry: Any) -> None:
            self.engine.episode_ended()
            on_done(entry)

        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_episode(entry, workflow, on_done=done))
                    for entry in data
                ]
        except ExceptionGroup as errors:
            failure = errors.exceptions[0]
        if failure is not None:  # outside of the group's context, which repeats every episode's
            raise failure
        result = RolloutResult()
        for entry, task in zip(data, tasks, strict=True):
            result.add(entry, _accepted(task.result(), should_accept))
        return result

    def prepare_batch(
        self,
        dataloader: Iterator[Any],
        workflow: RolloutWorkflow,
        *,
        count: int,
        ahead: int = 0,
        should_accept: Accept | None = None,
    ) -> RolloutResult:
        """Collect `count` accepted episodes.

        Further entries of the data replace rejected and failed ones.

        Args:
            dataloader: Yields one episode's data at a time. If it is exhausted, there are fewer
                episodes.
            workflow: Runs an episode.
            count: Accepted episodes.
            ahead: Further episodes that run meanwhile and finish in a later call, with tokens of
                both policies.
            should_accept: Decides by an episode's trajectories; None accepts all.

        Returns:
            The episodes found, possibly fewer than `count` after `ATTEMPTS` times `count` episodes.
        """
        result = RolloutResult()
        num_accepted = 0
        for _ in range(ATTEMPTS * count):
            if num_accepted == count:
                break
            while len(self._submitted) < count - num_accepted + ahead:
                data = next(dataloader, None)
                if data is None:
                    break
                self.submit(data, workflow)
            if not self._submitted:
                break
            num_accepted += _add_outcome(result, self._next(None), should_accept)
        return result

    async def _run_episode(
        self,
        data: Any,
        workflow: RolloutWorkflow,
        *,
        on_done: Callable[[Any], None] = lambda data: None,
    ) -> Outcome:
        """Run one episode when a permit is free; a failed simulation is a result."""
        try:
            async with self._permits:
                return trajectories_of(workflow, await workflow.arun_episode(self.engine, data))
        except SimulationFailed as failure:
            return failure
        finally:
            on_done(data)

    def _next(self, until: float | None) -> _SubmittedEpisode:
        """Wait for the oldest episode; an error of any episode cancels all."""
        if not self._submitted:
            raise RuntimeError(
                "No submitted episode is left to wait for: submit as many as you need, plus "
                "replacements for rejected ones."
            )
        outer_task.run(self.loop, self._oldest_or_error(until))
        for entry in self._submitted:
            error = entry.task.exception() if entry.task.done() else None
            if error is not None:
                self._drop_submitted()
                raise error
        if not self._submitted[0].task.done():
            raise TimeoutError(
                f"An episode did not end within the timeout; {len(self._submitted)} submitted "
                "episodes continue."
            )
        return self._submitted.popleft()

    async def _oldest_or_error(self, until: float | None) -> None:
        oldest = self._submitted[0].task
        pending = {entry.task for entry in self._submitted}
        while not oldest.done():
            left = None if until is None else max(0.0, until - time.monotonic())
            done, pending = await asyncio.wait(
                pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if not done or any(task.exception() is not None for task in done):
                return

    def _drop_submitted(self) -> None:
        tasks = [entry.task for entry in self._submitted]
        self._submitted.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))

    def _run_until_stop(self, episodes: Coroutine[Any, Any, Result]) -> Result | None:
        """Run `episodes` to the end; None if `STOP` was requested.

        In a script Ctrl-C raises. The episodes are cancelled first: otherwise each would raise when
        its environment is closed.
        """
        task = outer_task.OuterTask(episodes, loop=self.loop)

        def break_off() -> None:
            if STOP.requested:
                task.cancel()

        try:
            with STOP.waking(lambda: self.loop.call_soon_threadsafe(break_off)):
                break_off()  # STOP may have been requested before
                return self.loop.run_until_complete(task)
        except asyncio.CancelledError as cancelled:
            if not STOP.requested:
                raise task.failure() or cancelled from None
            return None
        finally:
            task.cancel()
            while not task.done():
                # asyncio raises it again from every task that saw it
                with contextlib.suppress(KeyboardInterrupt):
                    self.loop.run_until_complete(asyncio.wait({task}))
            if not task.cancelled():
                task.exception()  # marks the exception as retrieved


def _silence_interrupts(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Silence asyncio's complaint about abandoned tasks that saw KeyboardInterrupt.

    The command reports the interrupt once.
    """
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


def _accepted(outcome: Outcome, should_accept: Accept | None) -> Outcome:
    """`outcome`, or no trajectories if `should_accept` rejects them; None accepts all."""
    if isinstance(outcome, SimulationFailed) or not outcome or should_accept is None:
        return outcome
    return outcome if should_accept(outcome) else []


def _add_outcome(
    result: RolloutResult, entry: _SubmittedEpisode, should_accept: Accept | None
) -> bool:
    """Add a finished episode to `result`; return whether it was accepted."""
    outcome = _accepted(entry.task.result(), should_accept)
    result.add(entry.data, outcome)
    return not isinstance(outcome, SimulationFailed) and bool(outcome)
