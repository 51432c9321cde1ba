"""An embodied episode as a row: its executed action tokens, and the places of the simulator's
rewards.
"""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from envs.base import INSTRUCTION, PROPRIOCEPTION
from siirl.engine.rollout.acting import ActResponse
from siirl.engine.rollout.vla.embodied_workflow import EmbodiedWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutResult
from siirl.errors import InvariantError
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.policy import Policy


class ScriptedPool:
    """One simulator, which answers chunk after chunk as `script` says: reward, executed actions,
    terminated.
    """

    def __init__(self, script, *, instruction_changes=False):
        self.script = iter(script)
        self.spec = SimpleNamespace(renders=False, instruction_changes=instruction_changes)

    @asynccontextmanager
    async def slot(self):
        yield self

    async def reset(self, *, seed, options):
        return {PROPRIOCEPTION: np.zeros(1)}, {}

    async def step_chunk(self, actions):
        reward, executed, terminated = next(self.script)
        return (
            {PROPRIOCEPTION: np.zeros(1)},
            reward,
            terminated,
            False,
            {"executed": executed, "success": terminated},
        )


class StillPolicy(Policy):
    """Two actions of two dimensions from each observation."""

    chunk_length = 2
    action_tokenizer = ActionTokenizer(bins=3, low=(0.0, 0.0), high=(1.0, 1.0))

    def tokenize_instruction(self, text):
        return np.zeros(1, np.int64)

    def forward(self, **observation):
        raise AssertionError("the engine answers")


class StillEngine:
    """Chooses token 0 four times."""

    policy_version = 0

    async def act(self, request):
        return ActResponse(
            choices=np.zeros(4, np.int64),
            values=np.zeros(4, np.int64),
            log_probs=np.zeros(4, np.float32),
            policy_version=0,
        )


def row_of(*script):
    data = EpisodeRequest(
        uid="u", group_id=0, task="push", task_id=0, trial_id=0, seed=0, policy_seed=(0,)
    )
    workflow = EmbodiedWorkflow(pool=ScriptedPool(script), policy=StillPolicy(), streams={})
    return asyncio.run(workflow.arun_episode(StillEngine(), data)).row


class TalkingPool(ScriptedPool):
    """Says another instruction before each chunk."""

    def __init__(self, *instructions, **options):
        super().__init__([(0.0, 2, False)] * (len(instructions) - 1) + [(1.0, 2, True)], **options)
        self.instructions = iter((*instructions, "the end"))

    def said(self, answer):
        return {**answer[0], INSTRUCTION: next(self.instructions)}, *answer[1:]

    async def reset(self, *, seed, options):
        return self.said(await super().reset(seed=seed, options=options))

    async def step_chunk(self, actions):
        return self.said(await super().step_chunk(actions))


class ReadingPolicy(StillPolicy):
    """Reads the length of the instruction."""

    def tokenize_instruction(self, text):
        return np.array([len(text)])


def talked(*instructions, policy, **options):
    data = EpisodeRequest(
        uid="u", group_id=0, task="push", task_id=0, trial_id=0, seed=0, policy_seed=(0,)
    )
    pool = TalkingPool(*instructions, **options)
    workflow = EmbodiedWorkflow(pool=pool, policy=policy, streams={})
    return RolloutResult([asyncio.run(workflow.arun_episode(StillEngine(), data))])


def test_an_instruction_that_may_change_is_kept_for_each_chunk():
    result = talked("go left", "go right", policy=ReadingPolicy(), instruction_changes=True)
    batch = result.training_batch()
    assert batch["chunk_instruction_ids"].tolist() == [[[7], [8]]]
    assert "chunk_instruction_ids" not in talked("go", policy=ReadingPolicy()).training_batch()


def test_a_row_whose_instruction_changed_is_evaluated_and_refused_for_training():
    result = talked("go left", "go left", "go right", policy=ReadingPolicy())
    assert len(result.batch()) == 1
    with pytest.raises(
        InvariantError,
        match=r"task 'push' changed within an episode \(from 'go left' to 'go right', 4 steps later\)",
    ):
        result.training_batch()


@pytest.mark.parametrize(
    ("instructions", "policy"),
    [(("go left", "go left"), ReadingPolicy()), (("go left", "go right"), StillPolicy())],
)
def test_a_text_that_stays_or_is_not_read_can_be_trained_on(instructions, policy):
    assert len(talked(*instructions, policy=policy).training_batch()) == 1


def test_reward_of_each_chunk_is_at_its_last_executed_token():
    """Chunks of two actions of two tokens: rewards 3, 0.5 and 2; of the last chunk one action is
    executed.
    """
    row = row_of((3.0, 2, False), (0.5, 2, False), (2.0, 1, True))
    assert row["response_mask"].tolist() == [1, 1, 1, 1] * 2 + [1, 1, 0, 0]
    assert row["env_rewards"].tolist() == [
        0.0,
        0.0,
        0.0,
        3.0,
        0.0,
        0.0,
        0.0,
        0.5,
        0.0,
        2.0,
        0.0,
        0.0,
    ]
    assert (row["env_rewards"].dtype, row["env_return"], row["finish_step"]) == (np.float32, 5.5, 5)
