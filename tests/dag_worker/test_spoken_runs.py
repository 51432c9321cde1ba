"""Whole runs on texts that change at every step: learnt by those who read them, by no other.

`spoken_actions` says which action is right; chance is a return of 2 of 8, or of 4 with two
directions.
"""

from pathlib import Path

import pytest
from one_process import run

JOB = (
    "env=gymnasium", "env.id=spoken_actions:Spoken-v0", "cluster=local", "env.num_servers=1", "env.envs_per_server=8",
    "reward=return", "trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.save_freq=-1", "trainer.max_minutes=null",
    "trainer.deterministic=true", "actor_rollout_ref.model.path=null", "actor_rollout_ref.actor.optim.scheduler=constant",
)  # fmt: skip
SEGMENTS = (
    "pipeline=ppo", "trainer=classic_control", "data.train_batch_size=8", "actor_rollout_ref.rollout.n_steps=16",
    "actor_rollout_ref.actor.ppo_epochs=4", "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.optim.lr=3e-3",
)  # fmt: skip
EPISODES = (
    "data.train_batch_size=4", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.optim.lr=3e-3",
)  # fmt: skip
OPTIONS = "actor_rollout_ref.model.options"
CONTROL = ("actor_rollout_ref.model.policy=control_policy", f"{OPTIONS}={{chunk_length: 1}}")
TINY = (f"{OPTIONS}={{chunk_length: 1, width: 32}}",)


def returns(folder: Path, *words: str, steps: int) -> list[float]:
    """Mean return of the episodes of each step; acting and training agree, or the run stops."""
    events = run(folder, [*JOB, *words, f"trainer.total_steps={steps}"])
    return [event.metrics["rollout/return"] for event in events]


@pytest.mark.parametrize(
    "policy",
    [CONTROL, pytest.param(TINY, marks=pytest.mark.slow)],
    ids=["control", "tiny_vla"],
)
def test_segments_learn_what_the_text_of_each_step_says(tmp_path, policy):
    assert returns(tmp_path, *SEGMENTS, *policy, steps=20)[-1] > 6.0


@pytest.mark.slow
def test_nothing_is_learnt_from_a_text_that_says_nothing(tmp_path):
    silent = ("env.kwargs={silent: true}",)
    learnt = returns(tmp_path, *SEGMENTS, *CONTROL, *silent, steps=20)
    assert max(sum(learnt[at : at + 5]) / 5 for at in range(16)) < 3.0


@pytest.mark.parametrize("pipeline", ["grpo", pytest.param("ppo", marks=pytest.mark.slow)])
def test_whole_episodes_learn_what_the_text_of_each_step_says(tmp_path, pipeline):
    learnt = returns(tmp_path, f"pipeline={pipeline}", *EPISODES, *TINY, steps=16)
    assert learnt[-1] > 5.0


@pytest.mark.slow
def test_a_flow_learns_the_direction_that_the_text_of_each_step_names(tmp_path):
    flow = ("model=tiny_flow_vla", f"{OPTIONS}={{chunk_length: 1, width: 32}}")
    directions = ("env.kwargs={directions: true}",)
    learnt = returns(tmp_path, "pipeline=grpo", *EPISODES, *flow, *directions, steps=24)
    assert learnt[-1] > 5.5
