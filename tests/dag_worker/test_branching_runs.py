"""Whole runs of graphs with branches, with several exits, and without training."""

# Nodes of GRPO, whose reward and reference do not depend on each other.

from pathlib import Path

import pytest
import torch

from siirl.errors import ConfigError
from tests.dag_worker.one_process import run
from tests.execution.distflow_guide import WORKFLOW

STAGES = "siirl.dag_worker.stages"
SMALL = (
    "env=math", "cluster=local", "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4", "data.max_response_length=8", "trainer.total_steps=3", "trainer.max_minutes=null",
    "trainer.val_episodes=0", "trainer.logger=[]", "trainer.save_freq=-1", "trainer.deterministic=true", "env.num_servers=1",
    "actor_rollout_ref.actor.use_kl_loss=true", "pipeline=grpo",
)  # fmt: skip
BRANCHES = """
nodes:
  - {node_id: prompts, node_type: DATA_LOAD}
  - {node_id: rollout_actor, node_type: ENV_INTERACT, dependencies: [prompts]}
  - {node_id: arrived, node_type: BARRIER_SYNC, dependencies: [rollout_actor]}
  - {node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [arrived]}
  - {node_id: advantages, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward]}
  - {node_id: reference_log_prob, node_type: MODEL_TRAIN, node_role: REFERENCE, dependencies: [arrived]}
  - {node_id: actor_train, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [advantages, reference_log_prob]}
"""
ANOTHER_ENTRY = """
  - {node_id: watched, node_type: CUSTOM, func: "tests.dag_worker.test_branching_runs:count_prompts"}
"""
TWO_UPDATES = """
nodes:
  - {node_id: rollout_actor, node_type: ENV_INTERACT}
  - {node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [rollout_actor]}
  - {node_id: one, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward]}
  - {node_id: train_one, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [one]}
  - {node_id: other, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward]}
  - {node_id: train_other, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [other]}
"""
# The rest of the guide's workflow, which it leaves to its reader.
TO_THE_END = """
  - {node_id: advantages, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [function_reward]}
  - {node_id: actor_train, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [advantages]}
"""


def count_prompts(batch):
    assert "uid" not in batch.keys()
    return batch


@pytest.fixture
def job(tmp_path: Path):
    def start(workflow: str | None, *words: str) -> list[dict]:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        own = []
        if workflow is not None:
            file = tmp_path / "own.yaml"
            file.write_text(workflow)
            own = [f"dag.workflow_file={file}"]
        torch.manual_seed(0)
        return [event.metrics for event in run(folder, [*SMALL, *own, *words])]

    return start


def test_branches_that_meet_train_like_the_chain(job) -> None:
    chain, branches = job(None), job(BRANCHES)
    for name in ("actor/loss", "actor/grad_norm", "reward/mean_score", "policy/version"):
        assert [step[name] for step in chain] == [step[name] for step in branches]
    assert branches[-1]["actor/grad_norm"] > 0


def test_rows_pass_through_a_buffer(job) -> None:
    chain = """
nodes:
  - {node_id: rollout_actor, node_type: ENV_INTERACT}
  - {node_id: hand_in, node_type: PUT_TO_BUFFER, dependencies: [rollout_actor], config: {buffer: rows}}
  - {node_id: take, node_type: GET_FROM_BUFFER, dependencies: [hand_in], config: {buffer: rows}}
  - {node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [take]}
  - {node_id: advantages, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward]}
  - {node_id: actor_train, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [advantages]}
"""
    steps = job(chain, "actor_rollout_ref.actor.use_kl_loss=false")
    assert [step["data/trajectories"] for step in steps] == [16.0] * 3
    assert [step["policy/version"] for step in steps] == [1.0, 2.0, 3.0]


OWN_REWARD = """
def half_of_right(data_source, solution_str, ground_truth, extra_info=None):
    return 0.5 * (solution_str == ground_truth)
"""


def test_a_reward_computed_beside_the_reference_equals_that_of_the_chain(job, tmp_path) -> None:
    (tmp_path / "own.py").write_text(OWN_REWARD)
    own = (
        f"custom_reward_function.path={tmp_path}/own.py",
        "custom_reward_function.name=half_of_right",
        "reward.num_workers=1",
    )
    chain, branches = job(None, *own), job(BRANCHES, *own)
    for name in ("actor/loss", "actor/grad_norm", "reward/mean_score"):
        assert [step[name] for step in chain] == [step[name] for step in branches]


def test_a_node_without_dependencies_beside_the_chain_does_not_end_the_run(job) -> None:
    steps = job(BRANCHES + ANOTHER_ENTRY)
    assert [step["rollout/episodes"] for step in steps] == [16.0] * 3
    assert [step["actor/updates"] for step in steps] == [1.0] * 3


def test_two_updates_of_a_policy_are_two_optimiser_steps_and_meet_in_one_sync(job) -> None:
    falling = (
        "actor_rollout_ref.actor.use_kl_loss=false",
        "actor_rollout_ref.actor.optim.scheduler=linear",
    )
    two = job(TWO_UPDATES, *falling)
    twice = job(None, *falling, "actor_rollout_ref.actor.ppo_epochs=2")
    assert [step["actor/updates"] for step in two] == [2.0] * 3
    assert [step["policy/version"] for step in two] == [2.0, 4.0, 6.0]
    assert [step["actor/lr"] for step in two] == [step["actor/lr"] for step in twice]


def test_the_kl_of_grpos_reward_is_measured_before_it(job) -> None:
    steps = job(None, "algorithm.use_kl_in_reward=true")
    assert all(step["actor/kl_coef"] > 0 for step in steps)
    assert steps[0]["actor/reward_kl_penalty"] == 0.0 != steps[2]["actor/reward_kl_penalty"]


def test_the_distflow_guides_workflow_runs_as_written_and_trains_nothing(job) -> None:
    steps = job(WORKFLOW, "actor_rollout_ref.actor.use_kl_loss=false")
    assert [step["policy/version"] for step in steps] == [0.0] * 3
    assert all("actor/updates" not in step and step["rollout/episodes"] == 16.0 for step in steps)


def test_the_distflow_guides_workflow_trains_once_it_ends_in_an_update(job) -> None:
    steps = job(WORKFLOW + TO_THE_END, "actor_rollout_ref.actor.use_kl_loss=false")
    assert [step["policy/version"] for step in steps] == [1.0, 2.0, 3.0]


def test_two_rollouts_of_one_policy_are_refused(job) -> None:
    chain = """
  - {node_id: play_X, node_type: ENV_INTERACT}
  - {node_id: reward_X, node_type: COMPUTE, node_role: REWARD, dependencies: [play_X]}
"""
    both = "nodes:" + chain.replace("X", "a") + chain.replace("X", "b")
    with pytest.raises(ConfigError, match=r"'play_a' and 'play_b' .* under the same uids"):
        job(both, "actor_rollout_ref.actor.use_kl_loss=false")


def test_two_rollouts_with_a_common_successor_are_refused(job) -> None:
    two = """
nodes:
  - {node_id: one, node_type: ENV_INTERACT}
  - {node_id: other, node_type: ENV_INTERACT}
  - {node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [one, other]}
"""
    with pytest.raises(ConfigError, match="both wrote the column"):
        job(two)
