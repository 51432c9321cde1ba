"""Base classes of text engines: admission, counts, and scheduling on the callers' event loop."""

import abc
import asyncio
import time

from siirl.engine.rollout.admission import Admission, PendingRequest, check_length
from siirl.engine.rollout.engine import EngineCounts
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse


class TextEngineBase:
    """State that every text engine keeps; `TextEngine` documents the methods.

    Args:
        lockstep: Deterministic mode; see `Admission`.
    """

    def __init__(self, *, lockstep: bool) -> None:
        self.policy_version = 0
        self.admission = Admission(lockstep=lockstep)
        self.counts = EngineCounts()

    def expect(self, *, episodes: int, at_once: int) -> None:
        """See `TextEngine`."""
        self.admission.expect(episodes=episodes, at_once=at_once)

    def episode_ended(self) -> None:
        """See `TextEngine`."""
        self.admission.unfinished -= 1

    def update_weights(self, version: int) -> None:
        """See `TextEngine`."""
        self.policy_version = version

    def rest(self) -> None:
        """See `TextEngine`; does nothing by default."""

    def take_stats(self) -> dict[str, float]:
        """Busy seconds, requests, forward passes and generated tokens since the last call."""
        return self.counts.take()

    def take_memory(self) -> dict[str, float]:
        """See `TextEngine`; nothing by default."""
        return {}


class InProcessTextEngine(TextEngineBase, abc.ABC):
    """An engine that works in the caller's process, one synchronous step at a time.

    Other tasks of the event loop run between two steps.
    """

    longest: int
    """Maximum number of tokens of a prompt and its continuation."""
    step_scheduled = False

    def episode_ended(self) -> None:
        """See `TextEngine`."""
        super().episode_ended()
        self._schedule_step()

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """See `TextEngine`."""
        check_length(request, longest=self.longest)
        pending = PendingRequest(request, asyncio.get_running_loop().create_future())
        self.admission.waiting.append(pending)
        self.counts.calls += 1
        self._schedule_step()
        try:
            return await pending.answer
        finally:
            if pending.answer.cancelled():
                self._withdraw(pending)

    def close(self) -> None:
        """See `TextEngine`; pending requests are cancelled."""
        for pending in self._all_pending():
            pending.answer.cancel()
        self._clear()

    def _schedule_step(self) -> None:
        # call_soon: requests that become ready in this iteration of the loop join the same step.
        if not self.step_scheduled and self._all_pending():
            self.step_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_step)

    def _run_step(self) -> None:
        self.step_scheduled = False
        begin = time.perf_counter()
        try:
            work_left = self._step()
        except Exception as error:
            # waiting episodes must get the error, or they would wait forever
            for pending in self._all_pending():
                pending.fail(error)
            self._clear()
            raise
        self.counts.busy_s += time.perf_counter() - begin
        if work_left:
            self._schedule_step()

    @abc.abstractmethod
    def _step(self) -> bool:
        """Admit waiting requests, continue running ones, answer ended ones; return whether any is
        running.
        """

    @abc.abstractmethod
    def _all_pending(self) -> list[PendingRequest]:
        """All requests without an answer."""

    @abc.abstractmethod
    def _clear(self) -> None:
        """Drop all requests."""

    @abc.abstractmethod
    def _withdraw(self, pending: PendingRequest) -> None:
        """Stop working on a request whose caller was cancelled."""
