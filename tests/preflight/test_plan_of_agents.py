"""The plan of agents that meet in the episodes of one environment."""

import dataclasses

import pytest

from envs.base import EnvSpec
from siirl.dag_worker.agent_groups import updates_of
from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph
from siirl.params.parser import parse_config
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.make_plan import make_plan, plan_of_groups
from siirl.preflight.plan import Machine, Plan
from siirl.preflight.plan_text import render
from tests.preflight.camera_spec import SPEC

WRITER_AND_CHECKER = dataclasses.replace(
    SPEC, num_agents=3, agent_names=("writer", "checker", "writer again")
)
JOB = (
    "actor_rollout_ref.model.path=null",
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_epochs=1",
    "env.played_by=[0,1,0]",
    "trainer.total_steps=3",
)


def graph(*, updates: dict[str, int]) -> TaskGraph:
    """One rollout, and an update node of each name for its agent group."""
    pipeline = Pipeline("own").add_node(
        "rollout", None, node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT
    )
    for name, group in updates.items():
        pipeline.add_node(
            name,
            None,
            ["rollout"],
            node_type=NodeType.MODEL_TRAIN,
            node_role=NodeRole.ACTOR,
            agent_group=group,
        )
    return pipeline.build()


def plan_of(
    group: int,
    job_graph: TaskGraph,
    *,
    spec: EnvSpec = WRITER_AND_CHECKER,
    words: tuple[str, ...] = (),
    episodes_of: tuple[int, SiiRLArguments] | None = None,
) -> Plan:
    return make_plan(
        parse_config([*JOB, *words]),
        job_graph,
        spec,
        machine=Machine(free_memory_bytes=64e9, cores=2),
        loss="vanilla",
        group=group,
        episodes_of=episodes_of,
        sends=False,  # a run of several agents stores its weights
    )


@pytest.fixture
def both() -> dict[int, Plan]:
    """The writer's plan, which plays the episodes, and the checker's."""
    job = graph(updates={"write": 0, "check": 1})
    playing = (job.playing_group(1), parse_config(JOB))
    words = ("data.train_batch_size=2",)  # of the checker's own prompts, which nobody draws
    return {0: plan_of(0, job), 1: plan_of(1, job, words=words, episodes_of=playing)}


def test_an_agent_of_two_roles_has_at_most_two_trajectories_an_episode(both) -> None:
    writer, checker = both[0], both[1]
    # 4 prompts x 2 rollouts, in mini-batches of 2 x 2 trajectories
    assert (writer.trajectories, writer.optimiser_steps) == (16, 4)
    assert (checker.trajectories, checker.optimiser_steps) == (8, 2)


def test_the_learning_rate_is_planned_for_the_steps_of_the_plan() -> None:
    """The job's configuration is that of both agents; the second node of the writer doubles it."""
    job, twice = graph(updates={"a": 0, "b": 1}), graph(updates={"a": 0, "again": 0, "b": 1})
    config = parse_config(JOB)
    assert [updates_of(config, job, groups=[group]).policy for group in (0, 1)] == [4, 2]
    assert updates_of(config, twice, groups=[0, 1]).policy == 4 + 4 + 2
    assert updates_of(config, job, groups=[0]).critic == 0


def test_the_plan_of_both_says_that_numbers_vary_and_whose_episodes_they_are(both) -> None:
    text = " ".join(render(plan_of_groups(both, shared={})).split())
    assert "agent 0 a step 4 prompts x 2 rollouts x 2 roles = at most 16 trajectories" in text
    assert "agent 1 environments none: it trains on the episodes of agent 0" in text
    assert "3 steps" in text
    assert "at most 72 trajectories, at most 18 optimiser steps" in text


def test_environments_are_those_of_the_agent_that_plays(both) -> None:
    parts = dict(plan_of_groups(both, shared={}).needs.memory_parts)
    assert parts["environments"] == dict(both[0].needs.memory_parts)["environments"]
    assert "agent 1's environments" not in parts
    assert parts["agent 1's weights"] > 0


def test_an_agent_that_acts_with_anothers_weights_publishes_none() -> None:
    job, words = graph(updates={"write": 0, "check": 1}), ("dag.groups={rollout: 1, train: 1}",)
    plans = {group: plan_of(group, job, words=words) for group in (0, 1)}
    published = "agent 1's weights for rollout ranks"
    assert published in dict(plan_of_groups(plans, shared={}).needs.memory_parts)
    sharing = dict(plan_of_groups(plans, shared={1: 0}).needs.memory_parts)
    own = {name for name in sharing if name.startswith("agent 1")}
    assert own == {"agent 1's environments", "agent 1's images"}


def test_each_node_that_updates_a_policy_takes_its_steps() -> None:
    job = graph(updates={"short": 0, "long": 0})
    plan = plan_of(0, job, spec=SPEC, words=("env.played_by=[]",))
    assert plan.optimiser_steps == 2 * 2
    assert "2 nodes x 2 mini-batches of 4 trajectories = 4 optimiser steps" in " ".join(
        render(plan).split()
    )


def test_agents_on_prompts_of_their_own_play_their_own_episodes() -> None:
    pipeline = Pipeline("two")
    for group in (0, 1):
        pipeline.add_node(f"rollout_{group}", None, agent_group=group)
    assert [pipeline.build().playing_group(group) for group in (0, 1)] == [0, 1]


def test_evaluations_are_those_of_all_agents_that_play(both) -> None:
    playing = dataclasses.replace(both[1], episodes_of=None)
    of_one = both[0].length.val_episodes
    assert plan_of_groups(both, shared={}).length.val_episodes == of_one
    assert plan_of_groups(both | {1: playing}, shared={}).length.val_episodes == 2 * of_one
