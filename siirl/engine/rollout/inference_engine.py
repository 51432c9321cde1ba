"""InferenceEngine: what acts, with the environments and the episodes around it, for a script that
walks no graph.

    with InferenceEngine(HFEngine(...), pool=EnvPool("math", {}, 1, 16, cluster="local", deadline_s=60)) as inference:
        # every request, in order
        result = inference.rollout_batch(requests, workflow)
        # others make up for what is rejected
        result = inference.prepare_batch(requests_without_end, workflow, count=64)
        inference.update_weights(version)

`with` is `initialize` and `destroy`.

The names are those of AReaLite's design document. What differs on purpose: results come in the
order of submission, because the first to finish are the short ones; and episodes move only while
somebody waits for one, so weights may be changed between two calls without locks.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, cast

from siirl.engine.rollout.acting import ActionEngine, ActRequest, ActResponse
from siirl.engine.rollout.executor import Outcome, RolloutResult, rollout_batch, run_episode
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse, TextEngine
from siirl.engine.rollout.workflow import RolloutWorkflow, Trajectory
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError, SimulationFailed
from siirl.interrupts import STOP

Result = TypeVar("Result")
Accept = Callable[[Sequence[Trajectory]], bool]
"""Decides from the trajectories of one episode whether they are wanted."""

# episodes without environments: enough to fill a batch, few enough for the memory of their keys and
# values
AT_ONCE = 64
# episodes tried for each one wanted: as often as verl's DAPO script generates (max_num_gen_batches)
ATTEMPTS = 10


class BatchingEngine(Protocol):
    """What all engines have in common."""

    policy_version: int

    def expect(self, *, episodes: int, at_once: int) -> None:
        """Announce `episodes` more episodes, of which `at_once` can run at the same time."""

    def episode_ended(self) -> None:
        """One of the expected episodes is over, finished or failed."""

    def interrupt(self) -> None:
        """End every running request now; whoever asked may ask again."""

    def update_weights(self, version: int) -> None:
        """Tell the engine that its weights are those of `version`."""


@dataclass(frozen=True, eq=False)
class _Submitted:
    data: Any
    task: "asyncio.Task[Outcome]"


class InferenceEngine:
    """Runs episodes on an engine.

    Args:
        engine: A TextEngine or an ActionEngine.
        pool: Environments, which `initialize` starts and `destroy` ends; None for workflows that
            need none.
        at_once: Episodes that run at the same time; by default as many as the pool has slots.

    Raises:
        ConfigError: `at_once` below 1.
    """

    def __init__(
        self, engine: BatchingEngine, *, pool: EnvPool | None = None, at_once: int | None = None
    ) -> None:
        if at_once is not None and at_once < 1:
            raise ConfigError(f"at_once={at_once} must be at least 1.")
        slots = AT_ONCE if pool is None else pool.num_slots
        self.engine, self.pool = engine, pool
        self.at_once = slots if at_once is None else at_once
        self.agents = 1 if pool is None else pool.spec.num_agents
        self.loop = (
            asyncio.new_event_loop()
        )  # not asyncio.Runner: it was measured to take a second for a result of 96 trajectories
        self.loop.set_exception_handler(_tell_of_no_interrupt)
        self._permits = asyncio.Semaphore(self.at_once)
        self._submitted: deque[_Submitted] = deque()  # in order, not taken yet

    # Life

    def initialize(self) -> Self:
        """Start the environments; returns itself."""
        if self.pool is not None:
            self.loop.run_until_complete(self.pool.start())
        return self

    def destroy(self) -> None:
        """End episodes and environments; safe to call twice. The engine is its owner's to close."""
        if self.loop.is_closed():
            return
        self._drop_submitted()
        if self.pool is not None:
            self.loop.run_until_complete(self.pool.close())
        self.loop.close()

    def __enter__(self) -> Self:
        return self.initialize()

    def __exit__(self, *exception: object) -> None:
        self.destroy()

    # One request

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """Continue one prompt; see `TextEngine.agenerate`."""
        return await cast(TextEngine, self.engine).agenerate(request)

    async def act(self, request: ActRequest) -> ActResponse:
        """A chunk of actions for one observation; see `ActionEngine.act`."""
        return await cast(ActionEngine, self.engine).act(request)

    def update_weights(self, version: int) -> "Future[None]":
        """The engine's weights are those of `version` now. Episodes in the middle go on with them,
        and keep the tokens they have.

        Returns:
            A future that is done: the weights are in place when this returns.
        """
        if self._submitted:
            self.engine.interrupt()
        self.engine.update_weights(version)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    # Episodes

    def submit(self, data: Any, workflow: RolloutWorkflow) -> None:
        """Add an episode; it moves while somebody waits."""
        self.engine.expect(episodes=self.agents, at_once=self.at_once * self.agents)
        task = self.loop.create_task(self._episode(data, workflow))
        task.add_done_callback(self._episode_ended)  # also of one that is cancelled before it began
        self._submitted.append(_Submitted(data, task))

    def wait(
        self, count: int, timeout: float | None = None, should_accept: Accept | None = None
    ) -> RolloutResult:
        """The next `count` accepted episodes in the order of submission, with those that failed or
        were rejected on the way.

        Args:
            count: Accepted episodes; each may have several trajectories.
            timeout: Seconds; None waits as long as it takes.
            should_accept: Decides by an episode's trajectories; None accepts all.

        Raises:
            TimeoutError: They were not all there in time. What is there is kept for the next call.
            RuntimeError: Fewer have been submitted than that. What is there is kept for the next
                call.
        """
        until = None if timeout is None else time.monotonic() + timeout
        taken: list[_Submitted] = []
        result, accepted = RolloutResult(), 0
        try:
            while accepted < count:
                taken.append(self._next(until))
                accepted += _sort_in(result, taken[-1], should_accept)
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
        """Run an episode for each entry of `data`, and return when all are over; rejected ones are
        not made up for.

        Where the process is asked to end, the episodes are broken off, and the result says only
        that.
        """
        self.engine.expect(episodes=len(data) * self.agents, at_once=self.at_once * self.agents)

        def done(entry: Any) -> None:
            self._episode_ended(entry)
            on_done(entry)

        accepting = _Accepting(workflow, should_accept)
        rollout = rollout_batch(accepting, self.engine, data, at_once=self.at_once, on_done=done)
        return self._to_the_end(rollout) or RolloutResult(broken_off=STOP.number or 0)

    def prepare_batch(
        self,
        dataloader: Iterator[Any],
        workflow: RolloutWorkflow,
        *,
        count: int,
        ahead: int = 0,
        should_accept: Accept | None = None,
    ) -> RolloutResult:
        """`count` accepted episodes; rejected and failed ones are made up for with further entries
        of the data.

        Args:
            dataloader: One episode's data at a time. Where it ends, there are fewer episodes.
            workflow: How they run.
            count: Accepted episodes.
            ahead: Further episodes that are under way meanwhile, and finish in a later call, with
                tokens of both policies.
            should_accept: Decides by an episode's trajectories; None accepts all.

        Returns:
            What there is, also if `ATTEMPTS` times `count` episodes did not yield enough.
        """
        result, accepted = RolloutResult(), 0
        for _ in range(ATTEMPTS * count):
            if accepted == count:
                break
            while (
                len(self._submitted) < count - accepted + ahead
                and (data := next(dataloader, None)) is not None
            ):
                self.submit(data, workflow)
            if not self._submitted:
                break
            accepted += _sort_in(result, self._next(None), should_accept)
        return result

    async def _episode(self, data: Any, workflow: RolloutWorkflow) -> Outcome:
        async with self._permits:
            return await run_episode(workflow, self.engine, data)

    def _episode_ended(self, _: Any) -> None:
        for _ in range(self.agents):
            self.engine.episode_ended()

    def _next(self, until: float | None) -> _Submitted:
        """The oldest episode, when it is over; an error of any episode ends all."""
        if not self._submitted:
            raise RuntimeError(
                "There are no more episodes to wait for: submit as many as are wanted, and some for those that are rejected."
            )
        self.loop.run_until_complete(self._oldest_or_error(until))
        errors = [
            entry.task.exception()
            for entry in self._submitted
            if entry.task.done() and entry.task.exception() is not None
        ]
        for error in errors:
            self._drop_submitted()
            assert error is not None
            raise error
        if not self._submitted[0].task.done():
            raise TimeoutError(
                f"An episode was not over in time; {len(self._submitted)} are under way, and kept."
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

    def _to_the_end(self, rollout: Coroutine[Any, Any, Result]) -> Result | None:
        """Run to the end, or until `STOP`, then return None.

        Ctrl-C raises in a script. The episodes are ended first then: each would complain when its
        environment is closed.
        """
        task = self.loop.create_task(rollout)

        def break_off() -> None:
            if STOP.requested:
                task.cancel()

        try:
            with STOP.waking(lambda: self.loop.call_soon_threadsafe(break_off)):
                break_off()  # asked before
                return self.loop.run_until_complete(task)
        except asyncio.CancelledError:
            if not STOP.requested:
                raise
            return None
        finally:
            task.cancel()
            while not task.done():
                with contextlib.suppress(
                    KeyboardInterrupt
                ):  # asyncio raises it again from every task that it met
                    self.loop.run_until_complete(asyncio.wait({task}))
            if not task.cancelled():
                task.exception()  # taken note of


def _tell_of_no_interrupt(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A task in which Ctrl-C was met, and that nobody waits for any more, says so when it is
    forgotten; the command says it once.
    """
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


class _Accepting(RolloutWorkflow):
    """A workflow whose episodes are rejected unless `should_accept` says yes."""

    def __init__(self, workflow: RolloutWorkflow, should_accept: Accept | None) -> None:
        self.workflow, self.should_accept = workflow, should_accept

    async def arun_episode(self, engine: Any, data: Any) -> Sequence[Trajectory] | None:
        """See `RolloutWorkflow.arun_episode`."""
        outcome = await run_episode(self.workflow, engine, data)
        if isinstance(outcome, SimulationFailed):
            raise outcome
        return _accepted(outcome, self.should_accept)


def _accepted(trajectories: list[Trajectory], should_accept: Accept | None) -> list[Trajectory]:
    return (
        trajectories
        if should_accept is None or not trajectories or should_accept(trajectories)
        else []
    )


def _sort_in(result: RolloutResult, entry: _Submitted, should_accept: Accept | None) -> bool:
    """Add a finished episode to `result`; whether it was accepted."""
    outcome = entry.task.result()
    if not isinstance(outcome, SimulationFailed):
        outcome = _accepted(outcome, should_accept)
    result.add(entry.data, outcome)
    return not isinstance(outcome, SimulationFailed) and bool(outcome)
