"""What engines of language models have in common: who waits, what is counted, and turns on the
event loop of those who ask.
"""

import abc
import asyncio
import time

from siirl.engine.rollout.admission import Admission, Job, check_length
from siirl.engine.rollout.counts import EngineCounts
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse


class Announced:
    """The bookkeeping of every text engine; see `TextEngine` for all of its methods.

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
        self.admission.episode_ended()

    def update_weights(self, version: int) -> None:
        """See `TextEngine`."""
        self.policy_version = version

    def take_stats(self) -> dict[str, float]:
        """Seconds of work, requests, forward passes and generated tokens, since the last call."""
        return self.counts.take()


class TurnTaking(Announced, abc.ABC):
    """An engine that works in the process of who asks, one synchronous turn at a time; between two
    of them the event loop has its own.
    """

    longest: int
    """Tokens of a prompt and its continuation, at most."""
    turn_scheduled = False

    def episode_ended(self) -> None:
        """See `TextEngine`."""
        super().episode_ended()
        self._schedule_turn()

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """See `TextEngine`."""
        check_length(request, longest=self.longest)
        job = Job(request, asyncio.get_running_loop().create_future())
        self.admission.waiting.append(job)
        self.counts.calls += 1
        self._schedule_turn()
        try:
            return await job.answer
        finally:
            if job.answer.cancelled():
                self._forget(job)

    def close(self) -> None:
        """See `TextEngine`; whoever still waits is cancelled."""
        for job in self._jobs():
            job.answer.cancel()
        self._clear()

    def _schedule_turn(self) -> None:
        # One turn of the loop later, everything that became ready at the same time is waiting too.
        if not self.turn_scheduled and self._jobs():
            self.turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self.turn_scheduled = False
        begin = time.perf_counter()
        try:
            work_left = self._turn()
        except (
            Exception
        ) as error:  # the episodes that asked must see it, or they would wait for ever
            for job in self._jobs():
                job.fail(error)
            self._clear()
            raise
        self.counts.busy_s += time.perf_counter() - begin
        if work_left:
            self._schedule_turn()

    @abc.abstractmethod
    def _turn(self) -> bool:
        """Take up who waits, continue who runs, answer who has ended; whether there are some who
        run.
        """

    @abc.abstractmethod
    def _jobs(self) -> list[Job]:
        """Everybody who waits for an answer."""

    @abc.abstractmethod
    def _clear(self) -> None:
        """Forget all of them."""

    @abc.abstractmethod
    def _forget(self, job: Job) -> None:
        """Stop working for somebody who waits no longer."""
