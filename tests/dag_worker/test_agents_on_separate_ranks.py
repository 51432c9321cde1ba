"""Agents whose rollouts have separate ranks: lockstep equals colocated ranks, and older weights,
counters and checkpoints are those of each agent.
"""

from pathlib import Path

import pytest
import torch
from one_process import run
from test_agent_groups import equal, graph_file, job, weights
from test_text_runs import SMALL
from two_groups import TwoGroups, run_groups

from siirl.reporting.metrics import AGENT_PREFIX

PAIR = ("trainer.n_gpus_per_node=2", "dag.groups={rollout: 1, train: 1}")
STREAM = ("trainer.deterministic=false", "trainer.max_staleness=2")
CONVERSATION = Path("docs/examples/solver_checker_job.yaml")
ROBOT = (
    "{env:gymnasium,env.id:CartPole-v1,env.num_servers:1,env.envs_per_server:4,"
    "data.train_batch_size:2,actor_rollout_ref:{rollout:{n:4},actor:{ppo_mini_batch_size:2}}}"
)
LEARNT = ("actor/", "reward/", "val/", "advantage/", "data/trajectories", "policy/version")


def conversation(*words: str) -> list[str]:
    """A solver and a checker, who play in one environment."""
    graph = f"dag.workflow_file={CONVERSATION.with_name('solver_checker.yaml')}"
    return [*(word for word in SMALL if word != "env=math"), graph, *words]


def mixed(folder: Path, *words: str) -> list[str]:
    """Maths and CartPole, each with its own environment and policy."""
    return job(folder, "trainer.record_episodes=0", *words, agents=f"{{0:{{}},1:{ROBOT}}}")


def learnt(steps):
    """Metrics of training and evaluation, by step."""
    return [
        {
            name: value
            for name, value in step.metrics.items()
            if AGENT_PREFIX.sub("", name).startswith(LEARNT)
        }
        for step in steps
    ]


def behind(steps, agent: str = "") -> set[float]:
    """Training steps that samples were behind."""
    return {n for step in steps for n in step.metrics.get(f"{agent}staleness/samples", [])}


def test_agents_of_one_conversation_learn_in_lockstep_what_they_learn_colocated(tmp_path):
    words = conversation("trainer.total_steps=2", "trainer.val_episodes=2")
    colocated = run(tmp_path / "one", words, config_file=CONVERSATION)
    separate = run_groups(tmp_path / "two", [*words, *PAIR], config_file=CONVERSATION)
    assert learnt(separate) == learnt(colocated)
    assert all(step.metrics["agent_1/actor/updates"] == 1.0 for step in separate[1:])
    for name in ("actor", "actor_1"):
        assert equal(weights(tmp_path / "one", 2, name), weights(tmp_path / "two", 2, name))


def test_a_robot_and_a_language_model_learn_in_lockstep_what_they_learn_colocated(tmp_path):
    words = mixed(tmp_path, "trainer.total_steps=2", "trainer.val_episodes=2")
    colocated = run(tmp_path / "one", words)
    separate = run_groups(tmp_path / "two", [*words, *PAIR])
    assert learnt(separate) == learnt(colocated)
    assert [step.metrics["agent_1/policy/version"] for step in separate[1:]] == [4.0, 8.0]
    assert equal(weights(tmp_path / "one", 2), weights(tmp_path / "two", 2))


def test_streams_of_agents_train_on_samples_within_the_bound(tmp_path):
    steps = run_groups(
        tmp_path / "run", [*mixed(tmp_path, *STREAM, *PAIR), "trainer.total_steps=5"]
    )
    assert max(behind(steps)) <= 2 and max(behind(steps, "agent_1/")) <= 2
    assert all(step.metrics["agent_1/actor/updates"] > 0 for step in steps)
    assert all(step.metrics["actor/updates"] > 0 for step in steps)


def test_a_stream_of_a_conversation_counts_the_staleness_of_both_players(tmp_path):
    words = conversation("trainer.total_steps=4", *STREAM, *PAIR)
    steps = run_groups(tmp_path / "run", words, config_file=CONVERSATION)
    assert max(behind(steps)) in (1.0, 2.0)
    assert not behind(steps, "agent_1/")  # one edge, whose rows are of both
    assert all(step.metrics["agent_1/data/trajectories"] > 0 for step in steps)


def test_a_schedule_of_agents_that_is_resumed_equals_one_that_was_not_interrupted(tmp_path):
    constant = "actor_rollout_ref.actor.optim.scheduler=constant"
    words = mixed(tmp_path, *PAIR, "trainer.max_staleness=1", constant)
    whole = run_groups(tmp_path / "whole", [*words, "trainer.total_steps=3"])
    run_groups(tmp_path / "first", [*words, "trainer.total_steps=1"])
    resume = f"trainer.resume={tmp_path / 'first'}"
    rest = TwoGroups(tmp_path / "rest", [*words, resume, "trainer.total_steps=3"])
    assert learnt(event for event in rest.run() if hasattr(event, "metrics")) == learnt(whole)[1:]
    for group, batch in ((0, 4), (1, 2)):
        ledger = rest.exchange.edges[group].ledger
        totals = ledger.totals()
        assert totals["used"] == 3 * batch
        assert totals["started"] == sum(totals.values()) - totals["started"] == ledger.position
    state = torch.load(
        tmp_path / "first" / "checkpoints" / "step_00000001" / "state.pt", weights_only=False
    )
    assert set(state["rollouts"]["agents"]) == {0, 1}


def test_an_agent_that_shares_weights_acts_with_those_of_the_end_of_the_step(tmp_path):
    agents = "{0:{},1:{shares:0,data:{seed:7}}}"
    steps = run_groups(
        tmp_path / "run", [*job(tmp_path, "trainer.total_steps=2", agents=agents), *PAIR]
    )
    assert [step.metrics["policy/version"] for step in steps] == [2.0, 4.0]
    gap = "rollout/log_prob_gap"
    assert [f"{gap}_mean" in step.metrics for step in steps] == [True, True]
    assert [f"agent_1/{gap}_mean" in step.metrics for step in steps] == [False, False]


def test_a_graph_that_trains_nothing_goes_on_with_the_weights_that_it_has(tmp_path):
    nodes = [
        {"node_id": "rollout", "node_type": "MODEL_INFERENCE", "node_role": "ROLLOUT"},
        {
            "node_id": "reward",
            "node_type": "COMPUTE",
            "node_role": "REWARD",
            "dependencies": ["rollout"],
        },
    ]
    words = [*SMALL, "pipeline=grpo", graph_file(tmp_path, *nodes), *PAIR, "trainer.total_steps=3"]
    steps = run_groups(tmp_path / "run", words)
    assert [step.metrics["policy/version"] for step in steps] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("group", [0, 1])
def test_an_edge_travels_to_the_process_of_the_exchange(tmp_path, group):
    import pickle

    words = [*mixed(tmp_path, *PAIR), "trainer.total_steps=1"]
    edge = TwoGroups(tmp_path / "run", words).exchange.edges[group]
    assert pickle.loads(pickle.dumps(edge)).ledger.batch == (4, 2)[group]
