"""Whole runs of PPO by segments, on CartPole: rows, resuming, evaluations in between, failures."""

from pathlib import Path

import pytest
import torch
from one_process import run, untimed
from safetensors.torch import load_file

from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.engine.actor.chunk_windows import rows_of_decisions
from siirl.errors import CheckpointError, TooManyFailures

SEGMENTS = (
    "env=gymnasium", "env.id=CartPole-v1", "pipeline=ppo", "trainer=classic_control", "cluster=local",
    "data.train_batch_size=4", "actor_rollout_ref.rollout.n_steps=16", "env.num_servers=1", "env.envs_per_server=4",
    "actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.ppo_mini_batch_size=32", "trainer.val_episodes=0",
    "trainer.save_freq=1", "trainer.deterministic=true", "actor_rollout_ref.model.options={chunk_length: 1, width: 8}",
    "actor_rollout_ref.actor.optim.scheduler=constant",
)  # fmt: skip


def train(folder: Path, *overrides: str) -> list[dict]:
    """Metrics of the steps."""
    return [event.metrics for event in run(folder, [*SEGMENTS, *overrides])]


def weights(folder: Path, step: int, engine: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step_{step:08d}" / engine / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


def test_a_resumed_run_continues_in_its_running_episodes_bit_for_bit(tmp_path):
    whole = train(tmp_path / "whole", "trainer.total_steps=3")
    train(tmp_path / "parts", "trainer.total_steps=2")
    (resumed,) = train(
        tmp_path / "parts", "trainer.total_steps=3", f"trainer.resume={tmp_path / 'parts'}"
    )
    assert untimed(resumed) == untimed(whole[2])
    for engine in ("actor", "critic"):
        assert same(weights(tmp_path / "whole", 3, engine), weights(tmp_path / "parts", 3, engine))


def test_an_episode_that_its_seed_does_not_determine_is_not_resumed(tmp_path):
    unseeded = ("env.id=unseeded_walk:UnseededWalk-v0", "trainer.total_steps=2")
    train(tmp_path, *unseeded, "trainer.total_steps=1")
    with pytest.raises(TooManyFailures, match="did not resume in its state after 16 steps"):
        train(tmp_path, *unseeded, f"trainer.resume={tmp_path}")


STANDARDISED = (
    "actor_rollout_ref.model.policy=control_policy",
    "actor_rollout_ref.model.options={chunk_length: 1, width: 8, normalize: true}",
)


def test_statistics_of_states_count_every_decision_and_are_resumed(tmp_path):
    whole = train(tmp_path / "whole", "trainer.total_steps=3", *STANDARDISED)
    train(tmp_path / "parts", "trainer.total_steps=2", *STANDARDISED)
    (resumed,) = train(
        tmp_path / "parts",
        "trainer.total_steps=3",
        f"trainer.resume={tmp_path / 'parts'}",
        *STANDARDISED,
    )
    assert untimed(resumed) == untimed(whole[2])
    for engine, prefix in (("actor", ""), ("critic", "trunk.policy.")):
        one, other = (weights(tmp_path / run, 3, engine) for run in ("whole", "parts"))
        assert same(one, other)
        assert one[f"{prefix}count"].item() == 3 * 64


def test_a_step_has_a_fixed_number_of_decisions(tmp_path):
    steps = train(tmp_path, "trainer.total_steps=2", "trainer.save_freq=-1")
    assert [step["data/decisions"] for step in steps] == [64.0, 64.0]
    assert [step["env/steps"] for step in steps] == [64.0, 64.0]
    assert [step["actor/updates"] for step in steps] == [4.0, 4.0]
    assert sum(step["rollout/episodes"] for step in steps) > 4


def test_a_success_is_paid_at_the_end_of_its_episode_and_not_at_every_cut(tmp_path):
    steps = train(
        tmp_path,
        "env.id=early_success:EarlySuccess-v0",
        "reward=success",
        "actor_rollout_ref.rollout.n_steps=5",
        "actor_rollout_ref.actor.ppo_mini_batch_size=10",
        "trainer.total_steps=8",
        "trainer.save_freq=-1",
    )
    assert [step["reward/mean_score"] for step in steps] == [0.0, 0.0, 0.0, 1.0] * 2
    assert [step["rollout/episodes"] for step in steps] == [0.0, 0.0, 0.0, 4.0] * 2
    assert [step.get("rollout/success_rate") for step in steps] == [None, None, None, 1.0] * 2


def test_evaluations_between_segments_change_no_episode_of_training(tmp_path):
    options = ("trainer.total_steps=3", "trainer.val_before_train=false")
    without = train(tmp_path / "without", *options)
    evaluated = train(tmp_path / "with", *options, "trainer.val_episodes=6", "trainer.test_freq=1")
    for one, other in zip(without, evaluated, strict=True):
        assert any(name.startswith("val/") for name in other)
        assert {name: other[name] for name in untimed(one)} == untimed(one)


def test_a_run_of_segments_resumes_no_run_of_whole_episodes_and_the_other_way_round(tmp_path):
    train(tmp_path / "segments", "trainer.total_steps=1")
    with pytest.raises(CheckpointError, match="holds unfinished episodes"):
        train(
            tmp_path / "segments",
            "trainer.total_steps=2",
            "actor_rollout_ref.rollout.n_steps=null",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            f"trainer.resume={tmp_path / 'segments'}",
        )


def test_another_number_of_environments_does_not_resume(tmp_path):
    train(tmp_path, "trainer.total_steps=1")
    with pytest.raises(CheckpointError, match=r"has 4 environments, but this run has data\.train_"):
        train(
            tmp_path,
            "trainer.total_steps=2",
            "data.train_batch_size=2",
            f"trainer.resume={tmp_path}",
        )


def test_a_row_of_decisions_has_the_columns_of_its_chunks():
    """Two rows of two and one chunk of two tokens each; the padded chunk gives no row."""
    row = {"final_proprioception": [0.0], "bootstrapped": True, "task_id": 7}
    batch = Samples2Dict(
        [
            Sample(
                {
                    **row,
                    "uid": "a",
                    "responses": [1, 2, 3, 4],
                    "response_mask": [1, 1, 1, 0],
                    "advantages": [0.5, 0.5, 0.25, 0.0],
                    "proprioception": [[10.0], [11.0]],
                }
            ),
            Sample(
                {
                    **row,
                    "uid": "b",
                    "responses": [5, 6],
                    "response_mask": [1, 1],
                    "advantages": [1.0, 1.0],
                    "proprioception": [[12.0]],
                }
            ),
        ]
    )
    rows = rows_of_decisions(batch)
    assert rows["uid"].tolist() == ["a-00000", "a-00001", "b-00000"]
    assert rows["responses"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert rows["response_mask"].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert rows["proprioception"].tolist() == [[[10.0]], [[11.0]], [[12.0]]]
    assert rows["task_id"].tolist() == [7, 7, 7]
    assert "bootstrapped" not in rows.keys()
