"""Whole runs with a critic, with refills and with greedy baselines, on CartPole: exact
numbers where possible, and PPO learns.
"""

from pathlib import Path

import pytest
import torch
from one_process import run, untimed
from safetensors.torch import load_file
from tensordict import TensorDict

from pipelines.dapo import dapo_pipeline
from pipelines.grpo import grpo_pipeline
from siirl.errors import CheckpointError, ConfigError
from siirl.execution.dag import Node, NodeType

SMALL = (
    "env=gymnasium", "env.id=CartPole-v1", "cluster=local", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.lr=1e-2",
    "env.num_servers=1", "env.envs_per_server=6", "env.max_episode_steps=40", "trainer.val_episodes=0", "trainer.record_episodes=0",
    "trainer.max_minutes=null", "trainer.save_freq=1", "trainer.deterministic=true",
    "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
)  # fmt: skip
# Random CartPole policies fall after nine or ten steps at the earliest: cut at eleven, most groups
# have equal returns and some have not.
FEW_GROUPS = (
    "pipeline=dapo",
    "env.max_episode_steps=11",
    "actor_rollout_ref.model.options={chunk_length: 1, width: 16}",
)
NO_GROUPS = ("pipeline=dapo", "env.max_episode_steps=8", "algorithm.filter.max_refills=2")


def train(folder: Path, *overrides: str) -> list[dict]:
    """Metrics of the steps."""
    return [event.metrics for event in run(folder, [*SMALL, *overrides])]


def weights(folder: Path, step: int, engine: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step_{step:08d}" / engine / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


# PPO


def test_ppo_resumed_equals_ppo_uninterrupted_bit_for_bit_critic_included(tmp_path):
    whole = train(tmp_path / "whole", "pipeline=ppo", "trainer.total_steps=3")
    train(tmp_path / "parts", "pipeline=ppo", "trainer.total_steps=2")
    (resumed,) = train(
        tmp_path / "parts",
        "pipeline=ppo",
        "trainer.total_steps=3",
        f"trainer.resume={tmp_path / 'parts'}",
    )
    assert untimed(resumed) == untimed(whole[2])
    for engine in ("actor", "critic"):
        assert same(weights(tmp_path / "whole", 3, engine), weights(tmp_path / "parts", 3, engine))


def test_while_the_critic_warms_up_the_actor_stays_as_it_is(tmp_path):
    steps = train(tmp_path, "pipeline=ppo", "trainer.total_steps=3", "trainer.critic_warmup=2")
    assert [step["actor/updates"] for step in steps] == [0.0, 0.0, 2.0]
    assert [step["critic/updates"] for step in steps] == [2.0, 2.0, 2.0]
    assert [step.get("critic/warmup", 0.0) for step in steps] == [1.0, 1.0, 0.0]
    assert [step["policy/version"] for step in steps] == [0.0, 0.0, 2.0]
    assert same(weights(tmp_path, 1, "actor"), weights(tmp_path, 2, "actor"))
    assert not same(weights(tmp_path, 1, "critic"), weights(tmp_path, 2, "critic"))


def test_the_actors_rate_falls_with_the_run_although_it_waited_for_the_critic(tmp_path):
    rate = (
        "actor_rollout_ref.actor.optim.scheduler=linear_with_warmup",
        "actor_rollout_ref.actor.optim.warmup_steps=0",
    )
    steps = train(
        tmp_path, "pipeline=ppo", *rate, "trainer.total_steps=3", "trainer.critic_warmup=2"
    )
    # two thirds of the run's six optimiser steps are over
    assert steps[2]["actor/lr"] == pytest.approx(1e-2 * 2 / 6)


def test_ppo_trains_with_the_kl_in_its_reward(tmp_path):
    steps = train(
        tmp_path,
        "pipeline=ppo",
        "trainer.total_steps=2",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.kl_coef=0.5",
    )
    assert steps[0]["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-7)
    assert abs(steps[1]["actor/reward_kl_penalty"]) > 1e-5
    assert steps[1]["actor/updates"] == 2.0


def test_ppo_refuses_a_checkpoint_without_a_critic(tmp_path):
    train(tmp_path, "pipeline=grpo", "trainer.total_steps=1")
    with pytest.raises(CheckpointError, match="holds actor; this job trains actor and critic"):
        train(tmp_path, "pipeline=ppo", "trainer.total_steps=2", f"trainer.resume={tmp_path}")


def test_a_users_policy_without_features_is_refused_with_the_remedy(tmp_path):
    own = (
        "actor_rollout_ref.model.policy=own_policy:make_policy",
        "actor_rollout_ref.model.options={width: 8}",
    )
    with pytest.raises(
        ConfigError,
        match="TwoLayers has no features for a critic: set its feature_size",
    ):
        train(tmp_path, "pipeline=ppo", "trainer.total_steps=1", *own)


@pytest.mark.slow  # a minute: 400 episodes until the pole stands four times as long
def test_ppo_learns_cartpole(tmp_path):
    options = (
        "actor_rollout_ref.model.options={chunk_length: 1, width: 32}",
        "env.max_episode_steps=500",
        "env.envs_per_server=16",
    )
    sizes = (
        "data.train_batch_size=16",
        "actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    )
    update = (
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "actor_rollout_ref.actor.ppo_epochs=4",
        "critic.ppo_epochs=8",
    )
    length = (
        "trainer.total_steps=25",
        "trainer.critic_warmup=2",
        "trainer.save_freq=-1",
        "trainer.deterministic=false",
    )
    steps = train(tmp_path, "pipeline=ppo", *options, *sizes, *update, *length)
    returns = [step["rollout/return"] for step in steps]
    assert sum(returns[:3]) / 3 < 30
    assert sum(returns[-5:]) / 5 > 50
    assert sum(step["critic/explained_variance"] for step in steps[-5:]) / 5 > 0.3


# DAPO


def test_refills_end_with_a_full_step_or_at_the_bound(tmp_path):
    steps = train(tmp_path, *FEW_GROUPS, "trainer.total_steps=4")
    for step in steps:
        full = step["sampling/groups"] == 4.0
        assert full or (step["sampling/rounds"], step["sampling/missing_groups"]) == (
            5.0,
            4.0 - step["sampling/groups"],
        )
        assert step["sampling/kept"] == 3 * step["sampling/groups"] == step["data/trajectories"]
        dropped = step["sampling/dropped_without_signal"] + step["sampling/dropped_surplus"]
        assert step["rollout/episodes"] == step["sampling/kept"] + dropped
    assert {step["sampling/rounds"] for step in steps} - {1.0}


TRAINED: list[TensorDict] = []
"""The rows of each update."""


def note(batch):
    TRAINED.append(batch)
    return batch


def noted(graph):
    """The graph with a node that notes the rows before the update."""
    update = graph.get_node("actor_train")
    before = list(update.dependencies)
    graph.add_node(Node("note", NodeType.CUSTOM, dependencies=before, executable_ref=note))
    update.dependencies = ["note"]
    graph.update_edges()
    return graph


def noted_grpo():
    return noted(grpo_pipeline())


def noted_dapo():
    return noted(dapo_pipeline())


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline=grpo", f"dag.custom_pipeline_fn={__name__}:noted_grpo"),
        (*FEW_GROUPS, f"dag.custom_pipeline_fn={__name__}:noted_dapo"),
    ],
    ids=["grpo", "dapo"],
)
def test_a_run_subtracts_the_kl_of_each_token_from_its_score_refills_included(tmp_path, words):
    kl = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.5")
    TRAINED.clear()
    steps = train(tmp_path, *words, *kl, "trainer.total_steps=3")
    assert len(TRAINED) == 3
    for rows in TRAINED:
        kl_BT = (rows["old_log_probs"] - rows["ref_log_prob"]) * rows["response_mask"]
        expected = rows["token_level_scores"] - 0.5 * kl_BT
        torch.testing.assert_close(rows["token_level_rewards"], expected)
    assert kl_BT.abs().max() > 1e-3  # the policy has left the reference
    if "pipeline=dapo" in words:
        assert {step["sampling/rounds"] for step in steps} - {1.0}


def test_dapo_resumed_equals_dapo_uninterrupted_bit_for_bit_refills_included(tmp_path):
    whole = train(tmp_path / "whole", *FEW_GROUPS, "trainer.total_steps=3")
    train(tmp_path / "parts", *FEW_GROUPS, "trainer.total_steps=2")
    (resumed,) = train(
        tmp_path / "parts",
        *FEW_GROUPS,
        "trainer.total_steps=3",
        f"trainer.resume={tmp_path / 'parts'}",
    )
    assert untimed(resumed) == untimed(whole[2])
    assert same(weights(tmp_path / "whole", 3, "actor"), weights(tmp_path / "parts", 3, "actor"))


def test_a_step_in_which_every_group_is_dropped_makes_no_update_and_says_so(tmp_path):
    steps = train(tmp_path, *NO_GROUPS, "trainer.total_steps=2")
    for step in steps:
        assert (
            step["actor/updates"],
            step["sampling/groups"],
            step["sampling/missing_groups"],
        ) == (0.0, 0.0, 4.0)
        assert (step["sampling/rounds"], step["rollout/episodes"]) == (3.0, 36.0)
    assert same(weights(tmp_path, 1, "actor"), weights(tmp_path, 2, "actor"))


# ReMax


def test_remax_subtracts_the_reward_of_a_greedy_episode_from_each_return(tmp_path):
    (step,) = train(tmp_path, "pipeline=remax", "trainer.total_steps=1", "env.max_episode_steps=8")
    # No pole falls within eight steps: every return is 8, that of the greedy episode too.
    assert (step["reward/baseline"], step["reward/mean_score"], step["advantage/abs_mean"]) == (
        8.0,
        8.0,
        0.0,
    )
    assert (step["rollout/episodes"], step["actor/updates"]) == (12.0, 0.0)


def test_remax_trains_on_one_rollout_of_a_prompt(tmp_path):
    steps = train(
        tmp_path, "pipeline=remax", "trainer.total_steps=2", "actor_rollout_ref.rollout.n=1"
    )
    assert all(step["actor/updates"] == 2.0 and step["advantage/abs_mean"] > 0 for step in steps)
