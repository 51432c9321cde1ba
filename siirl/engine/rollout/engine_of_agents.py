"""Engines of several agent groups that act in one environment.

Each request goes to the engine of the group that plays its agent. In deterministic mode the rounds
span all engines. A round begins when every episode that can run has a request waiting at any of
them and all requests of the last round are answered. Each engine sees the requests of a round as
episodes that begin and end with it, so its own rounds are whole. Left out: weights; each group's
own sync passes them to its engine.
"""

import asyncio
from collections.abc import Mapping, Sequence

from siirl.engine.rollout.admission import Admission, PendingRequest
from siirl.engine.rollout.engine import summed
from siirl.engine.rollout.generation import (
    EngineWithTokenizer,
    GenerationRequest,
    GenerationResponse,
    TextEngine,
)
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import TextWorkflow


class EngineOfAgents:
    """A `TextEngine` that passes each agent's requests to the agent's own engine.

    Args:
        players: The engine of each of the environment's agents; some may be the same.
        lockstep: Deterministic mode; see the module.
    """

    def __init__(self, players: Sequence[TextEngine], *, lockstep: bool) -> None:
        self.players = tuple(players)
        self.engines = tuple(dict.fromkeys(players))
        self.admission = Admission(lockstep=lockstep)
        self.policy_version = 0
        self._running = set[asyncio.Task[None]]()
        self._due = False

    def expect(self, *, episodes: int, at_once: int) -> None:
        """See `TextEngine`."""
        self.admission.expect(episodes=episodes, at_once=at_once)

    def episode_ended(self) -> None:
        """See `TextEngine`."""
        self.admission.unfinished -= 1
        self._look_soon()

    def interrupt(self) -> None:
        """See `TextEngine`."""
        for engine in self.engines:
            engine.interrupt()

    def update_weights(self, version: int) -> None:
        """See `TextEngine`; used in scripts where all engines have one policy."""
        self.policy_version = version
        for engine in self.engines:
            engine.update_weights(version)

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        """See `TextEngine`; the engine is that of the request's agent."""
        if not self.admission.lockstep:
            return await self.players[request.agent].agenerate(request)
        pending = PendingRequest(request, asyncio.get_running_loop().create_future())
        self.admission.waiting.append(pending)
        self._look_soon()
        try:
            return await pending.answer
        finally:
            if pending.answer.cancelled() and pending in self.admission.waiting:
                self.admission.waiting.remove(pending)

    def rest(self) -> None:
        """See `TextEngine`."""
        for engine in self.engines:
            engine.rest()

    def take_stats(self) -> Mapping[str, float]:
        """Sums over the engines."""
        return summed(engine.take_stats() for engine in self.engines)

    def take_memory(self) -> Mapping[str, float]:
        """Sums over the engines."""
        return summed(engine.take_memory() for engine in self.engines)

    def close(self) -> None:
        """See `TextEngine`."""
        for engine in self.engines:
            engine.close()

    def _look_soon(self) -> None:
        # call_soon: simultaneous requests of one episode's agents join the same round
        if self.admission.lockstep and self.admission.waiting and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        loop = asyncio.get_running_loop()
        round_ = self.admission.admit(idle=not self._running)
        for engine in self.engines:
            of_engine = [one for one in round_ if self.players[one.request.agent] is engine]
            episodes = len({one.request.of_episode for one in of_engine})
            if episodes:
                engine.expect(episodes=episodes, at_once=episodes)
                task = loop.create_task(self._answer(engine, of_engine, episodes=episodes))
                self._running.add(task)
                task.add_done_callback(self._answered)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._look_soon()

    async def _answer(
        self, engine: TextEngine, round_: Sequence[PendingRequest], *, episodes: int
    ) -> None:
        answers = await asyncio.gather(
            *(engine.agenerate(one.request) for one in round_), return_exceptions=True
        )
        for _ in range(episodes):
            engine.episode_ended()
        for one, answer in zip(round_, answers, strict=True):
            if isinstance(answer, GenerationResponse):
                one.resolve(answer)
            elif isinstance(answer, Exception):
                one.fail(answer)
            else:
                one.answer.cancel()


def assign_engines(
    rollout: Rollout, players: Sequence[EngineWithTokenizer], *, lockstep: bool
) -> None:
    """Let these engines play the agents of a rollout's environment.

    Args:
        rollout: A rollout with the shipped workflow.
        players: The engine and tokenizer of each agent.
        lockstep: Deterministic mode.
    """
    assert isinstance(rollout.workflow, TextWorkflow)
    rollout.engine = EngineOfAgents([player.engine for player in players], lockstep=lockstep)
    rollout.workflow.tokenizers = {agent: player.tokenizer for agent, player in enumerate(players)}
