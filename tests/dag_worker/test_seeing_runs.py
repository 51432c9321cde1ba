"""GRPO on the questions with pictures of docs/picture_questions.md, with a random tiny
Qwen2.5-VL.
"""

import pytest
import torch
from one_process import run

from docs.examples import own_pictures
from siirl.models.language_model import load_language_model
from siirl.models.tiny_vlm import TinyVLMShape, new_tiny_vlm, tiny_seeing_tokenizer

SHAPE = TinyVLMShape(width=32, layers=1, heads=2, feed_forward=48, vision_width=32)
REWARD = "def score(solution_str, **row):\n    return float(len(solution_str) % 2)\n"


@pytest.fixture
def job(tmp_path):
    """Arguments of two steps of two questions with four answers."""
    tokenizer = tiny_seeing_tokenizer(SHAPE)
    new_tiny_vlm(seed=0, shape=SHAPE).save(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    own_pictures.main(tmp_path / "dots", train=6, test=2)
    (tmp_path / "odd.py").write_text(REWARD)
    return [
        *("env=math", "pipeline=grpo", "cluster=local", "trainer.deterministic=true"),
        f"actor_rollout_ref.model.path={tmp_path / 'model'}",
        f"data.train_files=[{tmp_path / 'dots' / 'train.parquet'}]",
        f"data.val_files=[{tmp_path / 'dots' / 'test.parquet'}]",
        *("data.train_batch_size=2", "actor_rollout_ref.rollout.n=4", "env.envs_per_server=8"),
        *("data.max_response_length=6", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("actor_rollout_ref.actor.micro_batch_size=3", "env.kwargs.num_graders=1"),
        f"custom_reward_function.path={tmp_path / 'odd.py'}",
        *("custom_reward_function.name=score", "reward.num_workers=1"),
        *("trainer.val_episodes=2", "trainer.max_minutes=null", "trainer.save_freq=1"),
        *("actor_rollout_ref.actor.optim.warmup_steps=0", "trainer.threads_per_rank=1"),
    ]


def weights(folder, step):
    return load_language_model(folder / "checkpoints" / f"step_{step:08d}" / "actor").state_dict()


def test_a_vision_language_model_trains_and_resumes_bit_for_bit(job, tmp_path):
    whole = run(tmp_path / "whole", [*job, "trainer.total_steps=2"])
    gaps = [event.metrics["rollout/log_prob_gap_mean"] for event in whole if event.step > 0]
    assert len(gaps) == 2
    assert max(gaps) < 1e-4
    first, second = (weights(tmp_path / "whole", step) for step in (1, 2))
    name = "model.visual.blocks.0.attn.qkv.weight"
    assert not torch.equal(first[name], second[name])
    run(tmp_path / "parts", [*job, "trainer.total_steps=1"])
    resume = f"trainer.resume={tmp_path / 'parts'}"
    run(tmp_path / "parts", [*job, "trainer.total_steps=2", resume])
    resumed = weights(tmp_path / "parts", 2)
    torch.testing.assert_close(resumed, second, rtol=0, atol=0)
