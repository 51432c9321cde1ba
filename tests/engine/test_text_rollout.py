"""Text episodes on a real model: recorded log-probs equal those of training,
with turns and interruptions.
"""

import asyncio

import numpy as np
import pytest
import torch

from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.env_server.pool import EnvPool
from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.models.tiny_lm import TinyLMShape, new_tiny_lm, tiny_tokenizer

TEMPERATURE = 0.7
GAP = 1e-4  # rounding in float32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Random weights: its texts are nonsense, of many lengths."""
    folder = tmp_path_factory.mktemp("random_lm")
    new_tiny_lm(
        seed=3, shape=TinyLMShape(width=32, layers=2, heads=2, feed_forward=48, max_length=256)
    ).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return load_language_model(folder), load_chat_tokenizer(folder)


@pytest.fixture
def make(model):
    """Rollouts of the model, closed in the end."""
    rollouts = []

    def make(*, env, max_response_length, lockstep=False, slots=4):
        language_model, tokenizer = model
        pool = EnvPool(env, {}, 1, slots, cluster="local", deadline_s=600)
        engine = HFEngine(
            model=language_model,
            tokenizer=tokenizer,
            temperature=TEMPERATURE,
            max_running=8,
            lockstep=lockstep,
        )
        workflow = TextWorkflow(
            pool=pool,
            tokenizer=tokenizer,
            max_prompt_length=32,
            max_response_length=max_response_length,
        )
        rollouts.append(Rollout(engine=engine, pool=pool, workflow=workflow))
        rollouts[-1].start()
        return rollouts[-1]

    yield make
    for rollout in rollouts:
        rollout.close()


def requests(count, task="more"):
    return [
        EpisodeRequest(
            uid=f"{i:02d}", group_id=i, task=task, task_id=0, trial_id=0, seed=i, policy_seed=(1, i)
        )
        for i in range(count)
    ]


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def gap(model, trajectories):
    """Largest difference of recorded and computed log-probs of the tokens that are trained on."""
    batch = Samples2Dict([Sample(trajectory.row) for trajectory in trajectories])
    with torch.no_grad():
        scores = text_scorer(model[0], batch, TEMPERATURE)
    return float(
        ((scores.log_probs_BT - batch["rollout_log_probs"]) * batch["response_mask"]).abs().max()
    )


def test_recorded_log_probs_are_those_of_training_over_several_turns(make, model):
    result, stats = make(env="scripted_text:ThreeTurnsEnv", max_response_length=150).generate(
        requests(6)
    )
    assert len(result.trajectories) == 6
    turns = {trajectory.row["finish_step"] for trajectory in result.trajectories}
    assert turns > {1}  # some episodes have a second turn
    assert any((trajectory.row["response_mask"] == 0).any() for trajectory in result.trajectories)
    assert gap(model, result.trajectories) < GAP
    assert stats["policy_tokens"] == sum(
        int(trajectory.row["response_mask"].sum()) for trajectory in result.trajectories
    )
    assert stats["env/steps"] == sum(
        trajectory.row["finish_step"] for trajectory in result.trajectories
    )


def test_interrupted_episodes_continue_with_what_they_had_and_lose_no_log_prob(make, model):
    rollout = make(env="scripted_text:ThreeTurnsEnv", max_response_length=60)
    for request in requests(4):
        rollout.submit(request, rollout.workflow)
    rollout.loop.run_until_complete(until(lambda: rollout.engine.counts.tokens >= 20))
    before = rollout.engine.take_stats()["tokens"]
    rollout.update_weights(1).result()
    trajectories = rollout.wait(4).trajectories
    after = rollout.engine.take_stats()["tokens"]
    assert before >= 20
    assert after > 0
    assert before + after == sum(
        int(trajectory.row["response_mask"].sum()) for trajectory in trajectories
    )
    # of their oldest token
    assert {trajectory.row["policy_version"] for trajectory in trajectories} == {0}
    assert gap(model, trajectories) < GAP


def test_lockstep_gives_the_same_episodes_bit_for_bit(make):
    runs = [
        make(env="scripted_text:ThreeTurnsEnv", max_response_length=60, lockstep=True).generate(
            requests(6)
        )[0]
        for _ in range(2)
    ]
    for first, second in zip(*(run.trajectories for run in runs), strict=True):
        np.testing.assert_array_equal(first.row["responses"], second.row["responses"])
        np.testing.assert_array_equal(
            first.row["rollout_log_probs"], second.row["rollout_log_probs"]
        )


def test_lockstep_waits_for_every_agent(make):
    rollout = make(env="scripted_text:TwoAgentsEnv", max_response_length=10, lockstep=True, slots=2)
    result, _ = rollout.generate(requests(4, task="sums-2"))
    assert [trajectory.row["uid"] for trajectory in result.trajectories] == [
        f"{i:02d}-a{agent}" for i in range(4) for agent in range(2)
    ]


def test_closing_twice_is_safe(make):
    rollout = make(env="math", max_response_length=10)
    rollout.close()
    rollout.close()
