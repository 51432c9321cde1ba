"""Whole runs of trainer=atari_like at small size: PPO by segments, from pictures."""

import math

import pytest
import torch
from one_process import run
from safetensors.torch import load_file

PICTURES = {"MovingSquare": 1, "StackedSquare": 2}
"""Names of the environments, and the frames of an observation."""
RETURNS = {"mean", "std", "moments"}
"""The critic's statistics of returns: with normalize_returns=false they keep their values."""
FEW = (
    "pipeline=ppo", "trainer=atari_like", "env=gymnasium", "cluster=local", "env.num_servers=1", "env.envs_per_server=2",
    "data.train_batch_size=2", "actor_rollout_ref.rollout.n_steps=8", "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.scheduler=constant", "trainer.total_steps=2",
    "trainer.val_episodes=0", "trainer.save_freq=1",
)  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_convolutions_train_on_the_pictures_that_they_acted_on(tmp_path, name):
    """A step has one update, before which no weight has changed: its ratios are 1."""
    words = [*FEW, f"env.id=moving_square:siirl-test/{name}-v0"]
    steps = [event.metrics for event in run(tmp_path / "run", words)]
    assert [step["data/decisions"] for step in steps] == [16.0, 16.0]
    assert [step["actor/updates"] for step in steps] == [1.0, 1.0]
    for step in steps:
        assert step["rollout/log_prob_gap"] < 1e-5
        assert step["actor/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert steps[0]["actor/entropy"] == pytest.approx(math.log(4), abs=0.01)
    for engine, prefix, constant in (("actor", "", set()), ("critic", "trunk.policy.", RETURNS)):
        first, second = (
            load_file(tmp_path / "run" / "checkpoints" / place / engine / "model.safetensors")
            for place in ("step_00000001", "step_00000002")
        )
        kernel = first[f"{prefix}pictures.0.weight"]
        assert kernel.shape == (32, 3 * PICTURES[name], 8, 8)
        moved = {key for key, weight in first.items() if not torch.equal(weight, second[key])}
        assert moved == first.keys() - constant
