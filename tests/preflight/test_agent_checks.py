"""Checks and plan of a run with two agents."""

import pytest
import yaml

from siirl.errors import SiirlError
from siirl.params.parser import parse, parse_first, to_tree
from siirl.preflight.configured_graph import load_graph
from siirl.preflight.early_checks import check_early
from siirl.preflight.group_placement import place
from siirl.preflight.plan_text import render
from siirl.preflight.prepare import prepare
from tests.two_agents import two_chains

SEPARATE = ("trainer.n_gpus_per_node=2", "dag.groups={rollout:1,train:1}")
CARTPOLE = "env:gymnasium,env.id:CartPole-v1"


@pytest.fixture
def chains(tmp_path):
    return two_chains(tmp_path)


def parsed(graph: str, agents: str, *words: str):
    return parse(
        [
            "pipeline=grpo",
            "env=math",
            graph,
            f"agents={agents}",
            "trainer.total_steps=1",
            "trainer.max_minutes=null",
            *(words or ["cluster=local"]),
        ]
    )


def test_the_plan_describes_each_agent_and_adds_their_needs(chains):
    job = parsed(chains, "{0:{},1:{data.train_batch_size:16}}")
    plan = prepare(job.config, check_early(job.config, named=job.named)).plan
    text = " ".join(render(plan).split())
    assert "agent 0 a step 32 prompts x 16 rollouts = 512 trajectories" in text
    assert "agent 1 a step 16 prompts x 16 rollouts = 256 trajectories" in text
    assert "768 trajectories, 3 optimiser steps" in text
    assert "agent 1's weights 3 MB, agent 1's Adam 5 MB" in text


def test_an_agent_that_shares_weights_needs_no_memory_for_them(chains):
    job = parsed(chains, "{0:{},1:{shares:0}}")
    text = " ".join(render(prepare(job.config, check_early(job.config)).plan).split())
    assert "agent 1 policy that of agent 0" in text
    assert "agent 1's weights" not in text and "agent 1's Adam" not in text


def test_the_plan_says_whose_nodes_separate_ranks_run(chains):
    job = parsed(chains, "{0:{},1:{}}", *SEPARATE)
    text = " ".join(render(prepare(job.config, check_early(job.config)).plan).split())
    chain = "get_rollout_{0} -> reward_{0} -> advantage_{0} -> train_{0} -> sync_weights_{0}"
    train = f"agent 0: {chain.format(0)}; agent 1: {chain.format(1)}"
    assert f"group train rank 0 (set by dag.groups) on machine 0: {train}" in text
    assert "agent 0: rollout_0 -> put_rollout_0; agent 1: rollout_1 -> put_rollout_1" in text


def test_ranks_that_do_not_divide_an_agents_mini_batch_are_refused(chains):
    """Of 16 prompts x 3 and x 4 rollouts only the former are divisible by 3."""
    words = ("trainer.n_gpus_per_node=4", "dag.groups={rollout:1,train:3}")
    agents = "{0:{actor_rollout_ref.rollout.n:3},1:{actor_rollout_ref.rollout.n:4}}"
    config = parsed(chains, agents, *words).config
    with pytest.raises(SiirlError) as error:
        place(config, load_graph(config))
    assert "agents.1: actor_rollout_ref.actor.ppo_mini_batch_size=16" in str(error.value)
    assert "agents.0" not in str(error.value)


def test_agents_are_checked_by_the_rules_of_their_domain(chains):
    """`max_response_length` is of text; the robot's agent may inherit and not set it."""
    job = parsed(chains, f"{{0:{{}},1:{{{CARTPOLE}}}}}", "data.max_response_length=6")
    assert check_early(job.config, named=job.named).name == "math"


@pytest.mark.parametrize(
    ("agents", "words", "sentence"),
    [
        (
            f"{{0:{{}},1:{{{CARTPOLE},data.max_response_length:5}}}}",
            [],
            "agents.1: data.max_response_length=5 is read by text jobs only",
        ),
        (
            f"{{0:{{{CARTPOLE}}},1:{{{CARTPOLE}}}}}",
            ["data.max_response_length=6"],
            "data.max_response_length=6 is read by text jobs only",
        ),
        (
            "{0:{data.train_batch_size:7},1:{}}",
            [],
            "agents.0: actor_rollout_ref.actor.ppo_mini_batch_size=16 does not divide",
        ),
        (f"{{0:{{}},1:{{{CARTPOLE},shares:0}}}}", [], "only text agents share weights"),
        (
            "{0:{},1:{shares:0,actor_rollout_ref.actor.use_kl_loss:true}}",
            [],
            "loads no reference: give both the KL, or neither",
        ),
        (
            "{0:{},1:{actor_rollout_ref.rollout.mode:sync}}",
            [*SEPARATE, "trainer.max_staleness=1"],
            "agents.0 starts episodes continuously, but agents.1 step by step: a rollout rank does",
        ),
        (
            "{0:{},1:{}}",
            ["rollout=server", "actor_rollout_ref.rollout.server.urls=[http://127.0.0.1:8100]"],
            "agents.1: actor_rollout_ref.rollout.server.urls has http://127.0.0.1:8100, which "
            "agents.0 also names: a server holds one policy",
        ),
        ("{0:{},1:{env:nowhere}}", [], "nowhere"),
        (
            "{0:{env.played_by:[0,1]},1:{}}",
            [],
            "env.played_by=[0, 1]: environment 'math' names no agents",
        ),
        ("{0:{},1:{data:{train_batch:3}}}", [], "Unknown key 'data.train_batch' (agents.1)"),
    ],
)
def test_an_impossible_agent_is_refused(agents, words, sentence, chains):
    with pytest.raises(SiirlError) as error:
        job = parsed(chains, agents, *words)
        check_early(job.config, named=job.named)
    assert sentence in str(error.value)


def test_the_saved_configuration_of_a_run_with_agents_reads_back_the_same(chains, tmp_path):
    job = parsed(chains, f"{{0:{{}},1:{{{CARTPOLE},data:{{seed:4}}}}}}", "data.seed=3")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_tree(job.config)))
    again = parse(config_file=file).config
    assert again.agent_configs == job.config.agent_configs
    assert [config.data.seed for config in again.agent_configs.values()] == [3, 4]


def test_an_environment_that_an_agent_chooses_has_no_arguments_of_the_runs(chains):
    job = parsed(chains, f"{{0:{{}},1:{{{CARTPOLE}}}}}", "env.kwargs={wording:words}")
    kwargs = [config.env.kwargs for config in job.config.agent_configs.values()]
    assert kwargs == [{"wording": "words"}, {}]


def test_what_is_typed_for_an_evaluation_wins_over_the_first_agents_entry(chains, tmp_path):
    job = parsed(chains, "{0:{env:math,data:{seed:4}},1:{}}")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_tree(job.config)))
    config = parse_first(["actor_rollout_ref.model.path=elsewhere"], config_file=file)
    assert (config.actor_rollout_ref.model.path, config.data.seed) == ("elsewhere", 4)


PAIR = ("env.name=solver_checker:SolverChecker", "cluster=local")


@pytest.mark.parametrize(
    ("agents", "words", "sentence"),
    [
        ("{0:{},1:{}}", [], "env.played_by=[0, 1, 2] with agents={0: {}, 1: {}, 2: {}}"),
        (
            *("{0:{},1:{}}", ["env.played_by=[0,4,0]"]),
            "Unknown agent group in env.played_by=[0, 4, 0] '4'",
        ),
        ("{0:{},1:{}}", ["env.played_by=[0,0,0]"], "agent group 1 plays none of solver, checker"),
        ("{0:{},1:{}}", ["env.played_by=[1,1,1]"], "agent group 0 plays none of solver, checker"),
        ("{0:{},1:{}}", ["env.played_by=[0,1]"], "must give the agent group of each of solver"),
        ("{}", ["env.played_by=[0,1,0]"], "Unknown agent group in env.played_by=[0, 1, 0] '0'"),
        (
            "{0:{},1:{}}",
            ["env.played_by=[0,1,0]", "actor_rollout_ref.rollout.workflow=a:b"],
            "only the shipped workflow hands turns",
        ),
    ],
)
def test_roles_without_a_possible_player_are_refused(agents, words, sentence, chains):
    with pytest.raises(SiirlError) as error:
        job = parsed(chains, agents, *PAIR, *words)
        check_early(job.config, named=job.named)
    assert sentence in str(error.value)


def test_the_plan_names_the_player_of_each_role(chains):
    job = parsed(chains, "{0:{},1:{}}", *PAIR, "env.played_by=[1,0,1]")
    text = " ".join(render(prepare(job.config, check_early(job.config)).plan).split())
    assert "solver played by agent 1, checker played by agent 0, reviser played by agent 1" in text
