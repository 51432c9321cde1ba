"""Segments: their decisions, their rows, and running episodes that continue.

`Counter` is an environment whose observation is the number of its step.
"""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.base import INSTRUCTION, PROPRIOCEPTION
from envs.seeds import FIRST_TRAINING_SEED, LAST_SEED
from siirl.engine.rollout.acting import ActResponse
from siirl.engine.rollout.vla.embodied_workflow import EmbodiedWorkflow
from siirl.engine.rollout.vla.segment_workflow import SegmentWorkflow, episode_seed
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.errors import SimulationFailed
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.policy import Policy


class Counter:
    """Ends after `length` steps, by termination or by truncation; the reward is the step's number.

    `drift` is added to observations, so that a replay takes another course.
    """

    def __init__(self, *, length: int, terminates: bool = True) -> None:
        self.length, self.terminates = length, terminates
        self.drift = 0.0
        self.steps = 0
        self.seeds: list[int] = []
        self.breaks_at: int | None = None

    async def reset(self, *, seed, options):
        self.steps = 0
        self.seeds.append(seed)
        return self.observation(), {}

    async def step_chunk(self, actions):
        for executed, _ in enumerate(actions, start=1):
            self.steps += 1
            if self.steps == self.length:
                break
        if self.steps == self.breaks_at:
            raise SimulationFailed("it broke")
        ended = self.steps == self.length
        flags = (ended and self.terminates, ended and not self.terminates)
        return self.observation(), float(self.steps), *flags, {"executed": executed}

    async def resume(self, *, seed, options, actions):
        observation, _ = await self.reset(seed=seed, options=options)
        if not actions:
            return observation, False
        observation, _, terminated, truncated, _ = await self.step_chunk(actions)
        return observation, terminated or truncated

    def observation(self):
        return {PROPRIOCEPTION: np.array([self.steps + self.drift], np.float32)}


class TalkingCounter(Counter):
    """Says its step as well."""

    def observation(self):
        return {**super().observation(), INSTRUCTION: "x" * self.steps}


class OneSlot:
    """A pool with one environment; counts how often it is lent."""

    def __init__(self, environment: Counter) -> None:
        self.environment = environment
        self.spec = SimpleNamespace(
            renders=False, instruction_changes=isinstance(environment, TalkingCounter)
        )
        self.lent = 0

    @asynccontextmanager
    async def slot(self):
        self.lent += 1
        yield self.environment


class StillPolicy(Policy):
    """One action of one dimension from each observation."""

    chunk_length = 1
    action_tokenizer = ActionTokenizer(bins=2, low=(), high=())

    def tokenize_instruction(self, text):
        return np.array([len(text)])

    def forward(self, **observation):
        raise AssertionError("the engine answers")


class StillEngine:
    """Chooses 0."""

    async def act(self, request):
        zeros = np.zeros(1, np.int64)
        return ActResponse(zeros, zeros, np.zeros(1, np.float32), 0)


def workflow(environment: Counter, *, decisions: int) -> SegmentWorkflow:
    episodes = EmbodiedWorkflow(pool=OneSlot(environment), policy=StillPolicy(), streams={})
    return SegmentWorkflow(episodes=episodes, decisions=decisions, environments=1)


def request(step: int = 0) -> EpisodeRequest:
    return EpisodeRequest(
        uid=f"step{step}",
        group_id=step,
        task="count",
        task_id=0,
        trial_id=step,
        seed=FIRST_TRAINING_SEED + step,
        policy_seed=(step,),
    )


async def segments(found: SegmentWorkflow, steps: int, *, first: int = 0) -> list[list[dict]]:
    """Rows of `steps` segments."""
    trajectories = [
        await found.arun_episode(StillEngine(), request(first + step)) for step in range(steps)
    ]
    return [[trajectory.row for trajectory in each] for each in trajectories]


def observations(rows: list[dict]) -> list[list[float]]:
    return [row["proprioception"][:, 0].tolist() for row in rows]


def test_a_segment_continues_after_the_end_of_an_episode_and_in_the_next_segment():
    first, second = asyncio.run(segments(workflow(Counter(length=3), decisions=4), 2))
    assert observations(first) == [[0, 1, 2], [0]]
    assert observations(second) == [[1, 2], [0, 1]]
    assert [row["env_rewards"].tolist() for row in first] == [[1, 2, 3], [1]]


def test_a_changing_instruction_is_kept_for_each_decision_and_behind_the_last():
    (rows,) = asyncio.run(segments(workflow(TalkingCounter(length=3), decisions=5), 1))
    assert [row["chunk_instruction_ids"].tolist() for row in rows] == [[[0], [1], [2]], [[0], [1]]]
    assert [row["final_instruction_ids"].tolist() for row in rows] == [[3], [2]]


def test_a_row_is_bootstrapped_unless_its_episode_terminated():
    (rows,) = asyncio.run(segments(workflow(Counter(length=3), decisions=4), 1))
    assert [row["bootstrapped"] for row in rows] == [False, True]
    assert [row["truncated"] for row in rows] == [False, False]


def test_a_truncated_row_has_the_last_observation_and_not_the_next_episodes_first():
    counter = Counter(length=3, terminates=False)
    (rows,) = asyncio.run(segments(workflow(counter, decisions=4), 1))
    assert [row["bootstrapped"] for row in rows] == [True, True]
    assert [row["truncated"] for row in rows] == [True, False]
    assert [row["final_proprioception"].tolist() for row in rows] == [[3.0], [1.0]]


def test_return_and_length_of_an_episode_span_its_segments():
    found = workflow(Counter(length=5), decisions=4)

    async def two():
        return [await found.arun_episode(StillEngine(), request(step)) for step in range(2)]

    first, second = asyncio.run(two())
    assert [trajectory.record for trajectory in first] == [{}]
    assert second[0].record == {"episode_return": 15.0, "episode_length": 5}


def test_rows_have_ids_of_their_own_and_the_seed_of_their_episode():
    found = workflow(Counter(length=2), decisions=3)
    first, second = asyncio.run(segments(found, 2))
    assert [row["uid"] for row in first + second] == [
        "step0-0000",
        "step0-0001",
        "step1-0000",
        "step1-0001",
    ]
    assert first[0]["seed"] == FIRST_TRAINING_SEED
    assert first[1]["seed"] == second[0]["seed"] == episode_seed(FIRST_TRAINING_SEED, number=1)
    assert [row["index"] for row in second] == [1, 1]


@given(length=st.integers(1, 7), decisions=st.integers(1, 7), parked=st.sets(st.integers(1, 3)))
def test_parking_between_segments_changes_no_row(length, decisions, parked):
    async def rows(*, parks: bool) -> list[list[list[float]]]:
        found = workflow(Counter(length=length), decisions=decisions)
        result = []
        for step in range(4):
            if parks and step in parked:
                await found.park()
            result += await segments(found, 1, first=step)
        return [observations(each) for each in result]

    assert asyncio.run(rows(parks=True)) == asyncio.run(rows(parks=False))


@given(length=st.integers(1, 7), decisions=st.integers(1, 7), before=st.integers(1, 3))
def test_a_loaded_state_continues_like_the_saved_one(length, decisions, before):
    async def rows(*, resumes: bool) -> list[list[list[float]]]:
        found = workflow(Counter(length=length), decisions=decisions)
        result = await segments(found, before)
        if resumes:
            state = found.state_dict()
            found = workflow(Counter(length=length), decisions=decisions)
            found.load_state_dict(state)
        result += await segments(found, 2, first=before)
        return [observations(each) for each in result]

    assert asyncio.run(rows(resumes=True)) == asyncio.run(rows(resumes=False))


def test_an_episode_that_does_not_replay_is_reported_and_another_begins():
    counter = Counter(length=9)
    found = workflow(counter, decisions=4)

    async def run():
        await segments(found, 1)
        await found.park()
        counter.drift = 0.5
        with pytest.raises(
            SimulationFailed,
            match=r"did not resume in its state after 4 steps.*unless a setting of it has changed",
        ):
            await segments(found, 1, first=1)
        return await segments(found, 1, first=2)

    (rows,) = asyncio.run(run())
    assert observations(rows) == [[0.5, 1.5, 2.5, 3.5]]
    assert counter.seeds[-1] == FIRST_TRAINING_SEED + 2


def test_a_failed_segment_begins_anew_next_time():
    counter = Counter(length=9)
    counter.breaks_at = 3
    found = workflow(counter, decisions=4)

    async def run():
        with pytest.raises(SimulationFailed, match="it broke"):
            await segments(found, 1)
        counter.breaks_at = None
        return await segments(found, 1, first=1)

    assert observations(asyncio.run(run())[0]) == [[0, 1, 2, 3]]


def test_an_environment_stays_lent_until_it_is_parked():
    found = workflow(Counter(length=3), decisions=4)

    async def run():
        await segments(found, 3)
        await found.park()
        await segments(found, 1, first=3)

    asyncio.run(run())
    assert found.episodes.pool.lent == 2


@given(seed=st.integers(FIRST_TRAINING_SEED, LAST_SEED), number=st.integers(0, 1000))
def test_later_episodes_of_a_segment_have_training_seeds(seed, number):
    assert FIRST_TRAINING_SEED <= episode_seed(seed, number=number) <= LAST_SEED
    assert (episode_seed(seed, number=number) == seed) == (number == 0)
