"""Several engines in one environment: the agents that act, and their rounds."""

import asyncio

import numpy as np
import pytest

from siirl.engine.rollout.engine_of_agents import EngineOfAgents
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.text_engine_base import InProcessTextEngine


class Recorder(InProcessTextEngine):
    """Answers all requests of a step with one token, its name; remembers the uids of each step."""

    longest = 100

    def __init__(self, name: int, *, lockstep: bool) -> None:
        super().__init__(lockstep=lockstep)
        self.name, self.steps = name, []

    def _step(self) -> bool:
        joining = self.admission.admit(idle=True)
        if joining:
            self.steps.append([pending.request.uid for pending in joining])
        for pending in joining:
            token = np.array([self.name])
            pending.resolve(GenerationResponse(token, np.zeros(1, np.float32), token, "stop"))
        return False

    def _all_pending(self):
        return list(self.admission.waiting)

    def _clear(self):
        self.admission.waiting = []

    def _withdraw(self, pending):
        self.admission.waiting.remove(pending)

    def interrupt(self):
        """Nothing runs between steps."""


def asks(episode: str, agent: int) -> GenerationRequest:
    return GenerationRequest(
        uid=f"{episode}-a{agent}",
        input_ids=(1,),
        max_new_tokens=1,
        seed=(0,),
        episode=episode,
        agent=agent,
    )


def rounds(*, lockstep: bool, delays: dict[str, int]) -> tuple[list, list]:
    """Steps of two engines, whose agents 0 and 1 act in turn in each of these episodes."""
    engines = [Recorder(7, lockstep=lockstep), Recorder(8, lockstep=lockstep)]
    team = EngineOfAgents(engines, lockstep=lockstep)

    async def episode(name: str, delay: int) -> list[int]:
        said = []
        for agent in (0, 1, 0):
            for _ in range(delay):
                await asyncio.sleep(0)
            said += (await team.agenerate(asks(name, agent))).tokens.tolist()
        team.episode_ended()
        return said

    async def play() -> None:
        team.expect(episodes=len(delays), at_once=len(delays))
        said = await asyncio.gather(*(episode(name, delay) for name, delay in delays.items()))
        assert said == [[7, 8, 7]] * len(delays)

    asyncio.run(asyncio.wait_for(play(), 600))
    return engines[0].steps, engines[1].steps


def test_in_lockstep_the_rounds_do_not_depend_on_timing():
    slow = rounds(lockstep=True, delays={"x": 5, "y": 0, "z": 2})
    fast = rounds(lockstep=True, delays={"x": 0, "y": 9, "z": 0})
    first, second = slow
    assert slow == fast
    assert first == [["x-a0", "y-a0", "z-a0"]] * 2
    assert second == [["x-a1", "y-a1", "z-a1"]]


def test_without_lockstep_a_request_does_not_wait():
    first, _ = rounds(lockstep=False, delays={"x": 9, "y": 0})
    assert first[0] == ["y-a0"]


def test_agents_of_one_group_share_its_engine_and_are_counted_once():
    engine = Recorder(7, lockstep=True)
    team = EngineOfAgents([engine, engine], lockstep=True)

    async def both() -> None:
        team.expect(episodes=1, at_once=1)
        await asyncio.gather(team.agenerate(asks("x", 0)), team.agenerate(asks("x", 1)))
        team.episode_ended()

    asyncio.run(asyncio.wait_for(both(), 600))
    assert engine.steps == [["x-a0", "x-a1"]]
    assert team.take_stats()["calls"] == 2


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_request_that_an_engine_refuses_is_refused_to_its_episode(lockstep):
    team = EngineOfAgents([Recorder(7, lockstep=lockstep)], lockstep=lockstep)
    long = GenerationRequest(uid="x", input_ids=(1,), max_new_tokens=500, seed=(0,))

    async def ask() -> None:
        team.expect(episodes=1, at_once=1)
        await team.agenerate(long)

    with pytest.raises(Exception, match="the engine's limit is 100"):
        asyncio.run(asyncio.wait_for(ask(), 600))
