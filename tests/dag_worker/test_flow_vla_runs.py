"""Whole runs of SmolVLA, pi0 and pi0.5, at tiny size: acting, scoring, training, acting again."""

import json
from pathlib import Path

import pytest
import torch
from one_process import run
from tiny_training import stored_weights

from envs.registry import env_spec
from siirl.models.pi_checkpoint import HEAD
from siirl.models.pi_checkpoint import WORDS as EMBEDDING
from siirl.models.policy_loader import build_policy
from siirl.params.parser import parse_config
from siirl.preflight.check_embodied import check_policy
from tests.models.published_flows import robot

MODELS = Path(__file__).parents[1] / "models"
CHECKPOINTS = {
    "smolvla": MODELS / "smolvla" / "checkpoint",
    "pi0": MODELS / "pi" / "pi0" / "checkpoint",
    "pi05": MODELS / "pi" / "pi05" / "checkpoint",
}
OPTIONS = "actor_rollout_ref.model.options"
WORDS = (
    "env=libero", "env.assets=stand_in", "cluster=local",
    "env.tasks=[object/1]", "env.max_episode_steps=8", "env.num_servers=1", "env.envs_per_server=2", "env.image_size=64",
    "env.render_quality=fast", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.lr=1e-2",
    "actor_rollout_ref.rollout.temperature=1", "trainer.total_steps=1",
    "trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.max_minutes=null", "trainer.save_freq=1",
    "reward.name=test_openvla_runs:EveryOther",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
@pytest.mark.parametrize(
    ("model", "pipeline", "noise"),
    [
        ("smolvla", "embodied_srpo", "sde"),
        pytest.param("smolvla", "grpo", "learnt", marks=pytest.mark.slow),
        pytest.param("smolvla", "ppo", "sde", marks=pytest.mark.slow),
        ("pi0", "ppo", "sde"),
        pytest.param("pi0", "embodied_srpo", "learnt", marks=pytest.mark.slow),
        ("pi05", "embodied_srpo", "learnt"),
        pytest.param("pi05", "ppo", "sde", marks=pytest.mark.slow),
    ],
)
def test_a_step_moves_the_expert_and_leaves_a_checkpoint_with_lerobots_names(
    tmp_path, model, pipeline, noise
):
    checkpoint = CHECKPOINTS[model]
    words = (
        *WORDS,
        f"model={model}",
        f"actor_rollout_ref.model.path={checkpoint}",
        f"pipeline={pipeline}",
        f"{OPTIONS}={{noise: {noise}, train_expert_only: true}}",
    )
    (event,) = run(tmp_path / "run", words)
    assert event.metrics["actor/updates"] == 2
    assert event.metrics["rollout/log_prob_gap"] < 1e-4
    left = tmp_path / "run" / "checkpoints" / "step_00000001" / "actor"
    for name in ("config.json", "policy_preprocessor.json", "policy_postprocessor.json"):
        assert json.loads((left / name).read_text()) == json.loads((checkpoint / name).read_text())
    before, after = (stored_weights(place) for place in (checkpoint, left))
    if model != "smolvla":
        before[HEAD] = before.pop(EMBEDDING)
    assert after.keys() - before.keys() == (
        {"deviation.weight", "deviation.bias"} if noise == "learnt" else set()
    )
    moved = {
        name for name, weight in before.items() if not torch.equal(weight.float(), after[name])
    }
    frozen = (".vlm_with_expert.vlm.", ".paligemma.", "gemma_expert.lm_head")
    assert moved == {name for name in before if not any(part in name for part in frozen)}
    spec = env_spec("libero", assets="stand_in", tasks=["object/1"], image_size=64, camera="both")
    build_policy(model, path=str(left), spec=spec, seed=0, options={"noise": noise})


@pytest.mark.parametrize(
    ("model", "pipeline", "further"),
    [
        ("smolvla", "ppo", ()),
        ("pi0", "grpo", ("actor_rollout_ref.model.lora.rank=2",)),
        ("pi05", "ppo", ()),
    ],
)
def test_an_instruction_that_changes_in_an_episode_is_scored_as_it_was_read(
    tmp_path, model, pipeline, further
):
    words = (
        "env=gymnasium",
        "env.id=talking_arm:siirl-test/TalkingArm-v0",
        *(word for word in WORDS if not word.startswith(("env=", "env.", "reward."))),
        *("env.num_servers=1", "env.envs_per_server=2"),
        f"model={model}",
        f"actor_rollout_ref.model.path={CHECKPOINTS[model]}",
        f"pipeline={pipeline}",
        f"{OPTIONS}={{chunk_length: 2}}",
        *further,
    )
    (event,) = run(tmp_path / "run", words)
    assert event.metrics["actor/updates"] == 2
    assert event.metrics["rollout/episode_length"] == 8
    assert event.metrics["rollout/log_prob_gap"] < 1e-4


@pytest.mark.parametrize("model", ["pi0", "pi05"])
@pytest.mark.parametrize("named", ["[action_out_proj]", "null"])
def test_adapters_of_a_policy_with_a_critic_are_checked_before_the_critic_drops_its_head(
    model, named
):
    config = parse_config(
        [
            *WORDS,
            f"model={model}",
            f"actor_rollout_ref.model.path={CHECKPOINTS[model]}",
            "pipeline=ppo",
            "actor_rollout_ref.model.lora.rank=2",
            f"actor_rollout_ref.model.lora.target_modules={named}",
        ]
    )
    check_policy(config, robot(), with_critic=True, with_adapters=True)
