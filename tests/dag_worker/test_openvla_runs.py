"""Whole runs of OpenVLA: acting, scoring, training, exporting and acting again, on
LIBERO's stand-ins.
"""

import json

import numpy as np
import pytest
import torch
from one_process import run

from envs.registry import env_spec
from siirl.engine.reward_manager.reward_contract import Memoryless, RewardScores
from siirl.models.policy_loader import build_policy
from tests.models.tiny_openvla import CONFIG, know_tiny_encoders, write_checkpoint

WORDS = (
    *(
        "pipeline=grpo",
        "env=libero",
        "env.assets=stand_in",
        "cluster=local",
        "env.tasks=[object/1]",
    ),
    *(
        "env.max_episode_steps=16",
        "env.num_servers=1",
        "env.envs_per_server=2",
        "env.image_size=64",
        "env.render_quality=fast",
    ),
    *(
        "data.train_batch_size=2",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    ),
    *(
        "actor_rollout_ref.actor.optim.warmup_steps=0",
        "actor_rollout_ref.actor.ppo_epochs=1",
        "actor_rollout_ref.model.dtype=float32",
    ),
    *(
        "trainer.total_steps=1",
        "trainer.val_episodes=0",
        "trainer.record_episodes=0",
        "trainer.max_minutes=null",
        "trainer.save_freq=1",
    ),
    f"reward.name={__name__}:EveryOther",
)


class EveryOther(Memoryless):
    """Alternates 1 and 0, because two random steps never succeed."""

    ranks_failures = True

    def __init__(self, config):
        pass

    def score(self, outcomes):
        return RewardScores(np.arange(len(outcomes.uid_B), dtype=np.float32) % 2)

    def has_reference(self, task_name):
        return True


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
@pytest.mark.parametrize(
    ("model", "content"),
    [
        ("openvla_oft", {}),
        pytest.param("openvla_oft", {"state": True}, marks=pytest.mark.slow),
        ("openvla_oft", {"state": True, "head": True}),
        pytest.param("openvla", {}, marks=pytest.mark.slow),
    ],
)
def test_a_step_moves_the_weights_and_leaves_a_checkpoint_of_the_published_layout(
    monkeypatch, tmp_path, model, content
):
    know_tiny_encoders(monkeypatch)
    folder = write_checkpoint(tmp_path / "checkpoint", **content)
    words = [*WORDS, f"model={model}", f"actor_rollout_ref.model.path={folder}"]
    (event,) = run(tmp_path / "run", words)
    assert event.metrics["actor/updates"] == 2
    assert event.metrics["actor/grad_norm"] > 0
    assert event.metrics["rollout/log_prob_gap"] < 1e-4
    exported = tmp_path / "run" / "checkpoints" / "step_00000001" / "actor"
    assert json.loads((exported / "config.json").read_text()) == CONFIG
    spec = env_spec(
        "libero", assets="stand_in", tasks=["object/1"], image_size=64, camera="agentview"
    )
    before, after = (
        build_policy(model, path=str(place), spec=spec, seed=0, options={})
        for place in (folder, exported)
    )
    assert (before.proprio_projector is not None) == content.get("state", False)
    moved = [
        not torch.equal(one, other)
        for one, other in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert np.mean(moved) > 0.9
