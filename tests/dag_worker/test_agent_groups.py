"""Agent groups in one process: each trains its own weights, as a separate run would."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from one_process import run, untimed
from test_text_runs import SMALL

from siirl.dag_worker.agent_groups import trained_engines
from siirl.dag_worker.manifest import read_manifest
from siirl.errors import ConfigError, UnknownNameError
from siirl.models.language_model import load_language_model
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph

CHAIN = (
    ("rollout", "MODEL_INFERENCE", "ROLLOUT"),
    ("reward", "COMPUTE", "REWARD"),
    ("advantage", "COMPUTE", "ADVANTAGE"),
    ("train", "MODEL_TRAIN", "ACTOR"),
)
ACTORS = ("actor", "actor_1")
FIRST = "{data: {seed: 1}}"
SECOND = (
    "{data: {seed: 7, train_batch_size: 2}, actor_rollout_ref: {rollout: {n: 8, temperature: 0.9},"
    " actor: {ppo_mini_batch_size: 2, optim: {lr: 3e-4}}}}"
)


def chain(group: int, *, number: int) -> list[dict]:
    """GRPO's nodes of an agent group; ids end in `number`."""
    return [
        {
            "node_id": f"{name}_{number}",
            "node_type": kind,
            "node_role": role,
            "agent_group": group,
            "dependencies": [f"{before}_{number}"] if before else [],
        }
        for (name, kind, role), before in zip(
            CHAIN, [None, *(name for name, _, _ in CHAIN)], strict=False
        )
    ]


def graph_file(folder: Path, *nodes: dict) -> str:
    """A workflow file of these nodes, as a key."""
    file = folder / "graph.yaml"
    file.write_text(yaml.safe_dump({"pipeline_id": "agents", "nodes": list(nodes)}))
    return f"dag.workflow_file={file}"


def job(folder: Path, *words: str, agents: str) -> list[str]:
    """A run of two chains with these agents."""
    nodes = [*chain(0, number=0), *chain(1, number=1)]
    return [*SMALL, "pipeline=grpo", graph_file(folder, *nodes), f"agents={agents}", *words]


def weights(folder: Path, step: int, name: str = "actor") -> dict[str, torch.Tensor]:
    return load_language_model(folder / "checkpoints" / f"step_{step:08d}" / name).state_dict()


def require_expected_engines(folder: Path, words: list[str]) -> None:
    """The checkpoint's engines are those that a job with these words expects when it resumes."""
    config = parse_config(words)
    expected = trained_engines(load_graph(config), config.agents)
    assert read_manifest(folder / "checkpoints" / "step_00000001")["engines"] == expected


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_two_agents_of_one_run_learn_what_two_runs_of_one_agent_learn(tmp_path):
    words = job(
        tmp_path, "trainer.total_steps=2", agents=f"{{0: {FIRST}, 1: {SECOND}}}".replace(": ", ":")
    )
    together = run(tmp_path / "both", words)
    for agent, (entry, name) in enumerate([(FIRST, "actor"), (SECOND, "actor_1")]):
        alone = [
            *SMALL,
            "pipeline=grpo",
            graph_file(tmp_path, *chain(0, number=0)),
            f"agents={{0:{entry}}}".replace(": ", ":"),
            "trainer.total_steps=2",
        ]
        steps = run(tmp_path / f"alone_{agent}", alone)
        assert equal(weights(tmp_path / "both", 2, name), weights(tmp_path / f"alone_{agent}", 2))
        prefix = f"agent_{agent}/" if agent else ""
        assert [event.metrics[f"{prefix}actor/loss"] for event in together] == [
            event.metrics["actor/loss"] for event in steps
        ]
    assert not equal(weights(tmp_path / "both", 2), weights(tmp_path / "both", 2, "actor_1"))


def check_seed(batch, config, agent_group):
    assert config.data.seed == (1, 7)[agent_group]
    return batch


def test_an_own_function_gets_the_configuration_of_its_nodes_group(tmp_path):
    func = "tests.dag_worker.test_agent_groups:check_seed"
    own = [{"node_id": f"own_{n}", "func": func, "agent_group": n} for n in (0, 1)]
    words = [*job(tmp_path, agents=f"{{0: {FIRST}, 1: {SECOND}}}".replace(": ", ":"))]
    graph_file(tmp_path, *chain(0, number=0), *chain(1, number=1), *own)
    [step] = run(tmp_path / "run", [*words, "trainer.total_steps=1"])
    assert {"time/own_0_s", "time/own_1_s"} <= set(step.metrics)


def test_a_resumed_run_of_two_agents_equals_an_uninterrupted_one_bit_for_bit(tmp_path):
    words = job(tmp_path, agents=f"{{0: {FIRST}, 1: {SECOND}}}".replace(": ", ":"))
    whole = run(tmp_path / "whole", [*words, "trainer.total_steps=2"])
    run(tmp_path / "parts", [*words, "trainer.total_steps=1"])
    require_expected_engines(tmp_path / "parts", words)
    resumed = run(
        tmp_path / "parts",
        [*words, "trainer.total_steps=2", f"trainer.resume={tmp_path / 'parts'}"],
    )
    assert [untimed(event.metrics) for event in resumed] == [untimed(whole[-1].metrics)]
    for name in ("actor", "actor_1"):
        assert equal(weights(tmp_path / "whole", 2, name), weights(tmp_path / "parts", 2, name))


def test_a_group_that_shares_weights_trains_the_weights_of_the_other_group(tmp_path):
    words = job(tmp_path, "trainer.total_steps=2", agents="{0:{},1:{shares:0,data:{seed:7}}}")
    steps = run(tmp_path / "both", words)
    last = tmp_path / "both" / "checkpoints" / "step_00000002"
    assert [folder.name for folder in last.glob("actor*")] == ["actor"]
    require_expected_engines(tmp_path / "both", words)
    updates = [
        (event.metrics["actor/updates"], event.metrics["agent_1/actor/updates"]) for event in steps
    ]
    assert updates == [(1.0, 1.0), (1.0, 1.0)]
    assert [event.metrics["policy/version"] for event in steps] == [2.0, 4.0]
    # rows of the second group are of the version before the first group's update
    gap = "rollout/log_prob_gap_mean"
    assert gap in steps[0].metrics and f"agent_1/{gap}" not in steps[0].metrics


def test_agents_of_one_conversation_train_on_their_own_rows_and_resume_bit_for_bit(tmp_path):
    conversation = Path("docs/examples/solver_checker_job.yaml")
    words = [
        *(word for word in SMALL if word != "env=math"),
        f"dag.workflow_file={conversation.with_name('solver_checker.yaml')}",
    ]
    whole = run(tmp_path / "whole", [*words, "trainer.total_steps=2"], config_file=conversation)
    answers, verdicts = (whole[0].metrics[f"{name}data/trajectories"] for name in ("", "agent_1/"))
    assert 16 < answers <= 32 and verdicts == 16  # the solver revises those that are sent back
    assert 0 < whole[0].metrics["agent_1/reward/mean_score"] < 1
    run(tmp_path / "parts", [*words, "trainer.total_steps=1"], config_file=conversation)
    resumed = run(
        tmp_path / "parts",
        [*words, "trainer.total_steps=2", f"trainer.resume={tmp_path / 'parts'}"],
        config_file=conversation,
    )
    assert [untimed(event.metrics) for event in resumed] == [untimed(whole[-1].metrics)]
    checker = [weights(tmp_path / folder, 2, "actor_1") for folder in ("whole", "parts")]
    assert equal(*checker)
    assert not equal(checker[0], weights(tmp_path / "whole", 1, "actor_1"))


def test_a_robot_and_a_language_model_are_trained_by_one_run(tmp_path):
    robot = (
        "{env:gymnasium,env.id:CartPole-v1,env.num_servers:1,env.envs_per_server:4,"
        "data.train_batch_size:2,actor_rollout_ref:{rollout:{n:4},actor:{ppo_mini_batch_size:2}}}"
    )
    words = job(tmp_path, "trainer.total_steps=1", agents=f"{{0:{{}},1:{robot}}}")
    [step] = run(tmp_path / "run", [*words, "trainer.record_episodes=0"])
    updates = [step.metrics[f"{agent}actor/updates"] for agent in ("", "agent_1/")]
    assert updates == [1.0, 4.0]  # env=gymnasium comes with four epochs
    assert step.metrics["rollout/sums-2/success_rate"] > 0
    assert step.metrics["agent_1/env/steps"] > step.metrics["agent_1/rollout/episodes"] == 8.0
    last = tmp_path / "run" / "checkpoints" / "step_00000001"
    text, policy = (json.loads((last / name / "config.json").read_text()) for name in ACTORS)
    assert "model_type" in text and "model_type" not in policy


@pytest.mark.parametrize(
    ("agents", "sentence"),
    [
        ("{}", "Give each group its models, agents={0: {}, 1: {}}"),
        ("{0:{}}", "agent_group of a node, without an entry in agents, '1'"),
        ("{0:{},1:{},2:{}}", "which no node of the graph has as its agent_group, '2'"),
        ("{0:{},1:{shares:2}}", "Unknown agent group in agents.1.shares '2'"),
        ("{0:{},1:{shares:'0'}}", "shares='0' is not the number of an agent group"),
        ("{0:{},1:{shares:null}}", "for example shares: 0."),
        ("{0:{},1:{shares:1}}", "a group cannot share with itself"),
        ("{0:{shares:1},1:{shares:0}}", "name a group with its own weights"),
        ("{0:{},1:{trainer:{seed:2}}}", "agents.1.trainer belongs to the whole run"),
        ("{0:{},1:{shares:0,model:tiny_lm}}", "agents.1.model is a setting of the weights"),
        (
            "{0:{},1:{shares:0,actor_rollout_ref.actor.optim.lr:1e-4}}",
            "is a setting of the weights",
        ),
        ("{0:{},1:4}", "agents.1=4 must be a mapping of keys"),
        ("{0:{},first:{}}", "agents.first: agent groups are numbered from 0"),
    ],
)
def test_agents_that_do_not_fit_are_refused(agents, sentence, tmp_path):
    with pytest.raises((ConfigError, UnknownNameError)) as error:
        load_graph(parse_config(job(tmp_path, agents=agents)))
    assert sentence in str(error.value)
