"""Whole runs of the flow policy: each algorithm updates it, and a resumed run is the same bit for
bit.
"""

from pathlib import Path

import pytest
import torch
from one_process import run, untimed
from safetensors.torch import load_file
from tiny_training import stored_weights

from siirl.errors import ConfigError
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config
from siirl.preflight.check_embodied import check_policy

SMALL = (
    "env=gymnasium", "env.id=Pendulum-v1", "cluster=local", "model=tiny_flow_vla", "actor_rollout_ref.model.path=null",
    "data.train_batch_size=2", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.lr=1e-2",
    "env.num_servers=1", "env.envs_per_server=6", "env.max_episode_steps=10", "trainer.val_episodes=0", "trainer.record_episodes=0",
    "trainer.max_minutes=null", "trainer.save_freq=1", "trainer.deterministic=true", "trainer.total_steps=2",
)  # fmt: skip
OPTIONS = "actor_rollout_ref.model.options"


def train(folder: Path, *words: str) -> list[dict]:
    return [event.metrics for event in run(folder, [*SMALL, *words])]


def sizes(noise: str) -> str:
    return f"{OPTIONS}={{chunk_length: 4, width: 16, noise: {noise}}}"


@pytest.mark.parametrize("noise", ["learnt", "sde", "end"])
@pytest.mark.parametrize("pipeline", ["grpo", "ppo"])
def test_a_flow_is_updated_with_log_probs_that_rollout_and_training_share(
    tmp_path, pipeline, noise
):
    steps = train(tmp_path, f"pipeline={pipeline}", sizes(noise))
    assert [step["actor/updates"] for step in steps] == [2.0, 2.0]
    assert all(step["rollout/log_prob_gap_mean"] < 1e-4 for step in steps)


def test_a_resumed_flow_run_equals_one_that_was_not_interrupted_bit_for_bit(tmp_path):
    words = ("pipeline=grpo", sizes("learnt"))
    whole = train(tmp_path / "whole", *words)
    train(tmp_path / "parts", *words, "trainer.total_steps=1")
    (resumed,) = train(tmp_path / "parts", *words, f"trainer.resume={tmp_path / 'parts'}")
    assert untimed(resumed) == untimed(whole[1])
    one, other = (
        load_file(tmp_path / part / "checkpoints" / "step_00000002" / "actor" / "model.safetensors")
        for part in ("whole", "parts")
    )
    torch.testing.assert_close(one, other, rtol=0, atol=0)


KL = ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.1")
CONTROL = "actor_rollout_ref.model.policy=control_policy"


@pytest.mark.slow  # imports peft
@pytest.mark.parametrize(
    "words",
    [
        ("pipeline=grpo", sizes("end"), *KL),
        ("pipeline=ppo", sizes("learnt"), *KL),
        ("pipeline=ppo", CONTROL, f"{OPTIONS}={{chunk_length: 2, width: 8}}", *KL),
    ],
    ids=["flow, end", "flow, learnt", "control_policy"],
)
def test_a_run_with_adapters_moves_only_them_and_the_policy_below_is_the_reference(tmp_path, words):
    steps = train(tmp_path, *words, "actor_rollout_ref.model.lora.rank=2")
    assert [step["actor/updates"] for step in steps] == [2.0, 2.0]
    assert all(step["rollout/log_prob_gap"] < 1e-4 for step in steps)
    assert steps[1]["actor/kl_loss"] > 0
    first, second = (
        stored_weights(tmp_path / "checkpoints" / place / "actor")
        for place in ("step_00000001", "step_00000002")
    )
    moved = {name for name, weight in first.items() if not torch.equal(weight, second[name])}
    assert moved == {name for name in first if ".lora_" in name}
    assert moved


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["learnt", "sde", "end"])
def test_srpo_updates_the_shipped_flow_on_meta_world(tmp_path, noise):
    words = (
        "env=metaworld", "trainer=smoke", "model=tiny_flow_vla", "cluster=local", "trainer.max_minutes=null",
        "trainer.val_episodes=0", f"{OPTIONS}={{noise: {noise}}}",
    )  # fmt: skip
    steps = [event.metrics for event in run(tmp_path, words)]
    assert len(steps) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("actor_rollout_ref.rollout.temperature=0.7",), r"temperature=0\.7: .* leave it at 1"),
        (("actor_rollout_ref.rollout.top_p=0.9",), r"top_p=0\.9: .* leave it at 1"),
        (
            (sizes("sde"), "actor_rollout_ref.actor.entropy_coef=0.01"),
            r"entropy_coef=0\.01: .*model\.options\.noise=learnt",
        ),
        (("env.id=CartPole-v1",), "choose a policy with tokens, such as model=tiny_vla"),
        ((f"{OPTIONS}={{noise: white}}",), "noise='white' must be 'learnt'"),
        (
            ("actor_rollout_ref.model.path=assets/tiny_vla",),
            "holds a tiny_vla: choose model=tiny_vla",
        ),
    ],
)
def test_options_that_a_flow_policy_lacks_are_refused_before_a_process_starts(words, told):
    with pytest.raises(ConfigError, match=told):
        config = parse_config([*SMALL, "pipeline=grpo", *words])
        check_policy(config, describe_env(config))
