"""Whole training runs in one process, small enough for exact comparisons: resumed equals
uninterrupted, steps are bounded, policies load.
"""

import json
import time
from pathlib import Path

import pytest
import torch
from one_process import events_of, run, untimed

from envs.registry import env_spec
from siirl.dag_worker.events import StepDone
from siirl.errors import ConfigError, InvariantError
from siirl.files.weight_files import learnt_tasks
from siirl.models import load_policy
from siirl.models.policy_loader import build_policy, save_policy

SMALL = (
    "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1", "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_epochs=1",
    "env.num_servers=1", "env.envs_per_server=4", "trainer.val_episodes=0",
    "trainer.record_episodes=0", "trainer.max_minutes=null", "trainer.save_freq=1", "trainer.deterministic=true",
    "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
)  # fmt: skip


def train(folder: Path, *overrides: str) -> list[StepDone]:
    return run(folder, [*SMALL, *overrides])


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_policy(folder / "checkpoints" / f"step_{step:08d}" / "actor").state_dict()


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path):
    whole = train(tmp_path / "whole", "trainer.total_steps=3")
    train(tmp_path / "parts", "trainer.total_steps=2")
    resumed = train(
        tmp_path / "parts", "trainer.total_steps=3", f"trainer.resume={tmp_path / 'parts'}"
    )
    assert [event.step for event in resumed] == [3]
    assert untimed(resumed[0].metrics) == untimed(whole[2].metrics)
    one, other = weights(tmp_path / "whole", 3), weights(tmp_path / "parts", 3)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_finished_run_reports_that_no_step_is_left(tmp_path):
    """Steps are counted in the plan already; epochs of files only the loader counts."""
    train(tmp_path / "run", "trainer.total_steps=1")
    with pytest.raises(
        ConfigError,
        match=r"the run is complete after step 1. Raise trainer.total_steps=1 or trainer.total_epochs=30\.",
    ):
        train(tmp_path / "run", "trainer.total_steps=1", f"trainer.resume={tmp_path / 'run'}")


def test_a_run_whose_time_is_over_between_two_steps_ends_with_an_evaluated_and_saved_one(tmp_path):
    words = (*SMALL, "trainer.save_freq=-1", "trainer.max_minutes=0.1", "trainer.total_steps=9")
    steps = []
    for event in events_of(tmp_path / "run", [*words, "trainer.val_episodes=2"]):
        if isinstance(event, StepDone) and event.step == 1 and not steps:
            time.sleep(6.0)  # the time of the run, while its first step is reported
        if isinstance(event, StepDone):
            steps.append(event)
    assert "val/all/return" in steps[-1].metrics
    assert weights(tmp_path / "run", steps[-1].step)


def test_the_weights_move_and_the_policy_version_counts_optimiser_steps(tmp_path):
    events = train(tmp_path / "run", "trainer.total_steps=2")
    one, two = weights(tmp_path / "run", 1), weights(tmp_path / "run", 2)
    assert any(not torch.equal(one[name], two[name]) for name in one)
    assert (
        events[-1].metrics["policy/version"]
        == sum(event.metrics["actor/updates"] for event in events)
        == 4
    )


def test_without_a_flag_of_success_no_success_is_reported(tmp_path):
    """A pole that falls has not failed: only the return counts, and a rate of 0 % would not be
    measured.
    """
    (event,) = train(tmp_path / "run", "trainer.total_steps=1")
    assert [
        name for name in event.metrics if name.endswith(("success_rate", "failure_score"))
    ] == []
    assert event.metrics["rollout/return"] >= 8.0


def test_acting_and_training_agree_on_log_probs(tmp_path):
    events = train(tmp_path / "run", "trainer.total_steps=1")
    assert events[0].metrics["rollout/log_prob_gap"] < 1e-5


def test_a_checkpoint_is_a_policy_folder_that_says_what_it_is(tmp_path):
    train(tmp_path / "run", "trainer.total_steps=1")
    folder = tmp_path / "run" / "checkpoints" / "step_00000001" / "actor"
    assert json.loads((folder / "config.json").read_text())["policy"] == "tiny_vla"
    assert learnt_tasks(str(folder)) == env_spec("gymnasium", id="CartPole-v1").tasks


def test_a_checkpoint_also_lists_the_tasks_of_the_weights_that_it_started_from(tmp_path):
    train(tmp_path / "run", "trainer.total_steps=1")
    start = tmp_path / "run" / "checkpoints" / "step_00000001" / "actor"
    description = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(description | {"notes": {"tasks": ["another"]}}))
    train(tmp_path / "further", "trainer.total_steps=1", f"actor_rollout_ref.model.path={start}")
    exported = tmp_path / "further" / "checkpoints" / "step_00000001" / "actor"
    assert learnt_tasks(str(exported)) == (
        "another",
        *env_spec("gymnasium", id="CartPole-v1").tasks,
    )


def test_evaluation_is_the_same_every_time_and_not_on_training_seeds(tmp_path):
    events = train(
        tmp_path / "run",
        "trainer.total_steps=1",
        "trainer.val_episodes=3",
        "actor_rollout_ref.actor.optim.lr=1e-12",
    )
    before, after = (event.metrics["val/all/return"] for event in events)
    assert before == after


def test_weights_that_are_not_finite_are_reported(tmp_path):
    policy = build_policy(
        "tiny_vla",
        path=None,
        spec=env_spec("gymnasium", id="CartPole-v1"),
        seed=0,
        options={"width": 16},
    )
    with torch.no_grad():
        next(policy.parameters()).fill_(torch.nan)
    save_policy(policy, tmp_path / "policy")
    with pytest.raises(
        InvariantError,
        match=r"weights are not finite after 0 updates\. Before the first update: check the initial weights",
    ):
        train(
            tmp_path / "run",
            "trainer.total_steps=1",
            f"actor_rollout_ref.model.path={tmp_path / 'policy'}",
        )


def test_a_gap_between_acting_and_training_stops_the_run(tmp_path):
    with pytest.raises(Exception, match="Acting and training disagree"):
        train(
            tmp_path / "run",
            "trainer.total_steps=1",
            "actor_rollout_ref.rollout.max_log_prob_gap=1e-12",
        )
