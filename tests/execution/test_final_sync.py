"""Every policy that a graph trains is synced in the same step."""

import pytest

from siirl.errors import ConfigError
from siirl.execution.dag import Node, NodeRole, NodeType, Pipeline
from siirl.execution.dag.builtin_pipelines import PIPELINES, grpo_pipeline
from siirl.execution.dag.job_graph import check_one_policy, sync_at_the_end


def passes(batch):
    return batch


def trained(*groups):
    pipeline = Pipeline("p").add_node("rollout_actor", passes)
    for group in groups:
        pipeline.add_node(
            f"update_{group}",
            passes,
            ["rollout_actor"],
            node_type=NodeType.MODEL_TRAIN,
            node_role=NodeRole.ACTOR,
            agent_group=group,
        )
    return pipeline


def added(graph):
    before = set(graph.nodes)
    sync_at_the_end(graph)
    return {
        name: (node.agent_group, graph.rev_adj[name])
        for name, node in graph.nodes.items()
        if name not in before
    }


def test_a_policy_without_a_sync_gets_one_at_the_end():
    graph = trained(0).add_node("later", passes, ["update_0"]).build()
    assert added(graph) == {"sync_weights": (0, ["update_0"])}
    assert graph.get_topological_sort()[-1] == "sync_weights"


def test_each_agents_policy_gets_its_own():
    assert added(trained(0, 1).build()) == {
        "sync_weights_0": (0, ["update_0"]),
        "sync_weights_1": (1, ["update_1"]),
    }


def test_a_policy_that_two_branches_update_gets_one_sync_which_does_not_join_their_rows():
    pipeline = Pipeline("p").add_node("rollout_actor", passes)
    for branch in ("a", "b"):
        pipeline.add_node(f"{branch}_adv", passes, ["rollout_actor"], provides=["advantages"])
        pipeline.add_node(
            f"{branch}_update",
            passes,
            [f"{branch}_adv"],
            node_type=NodeType.MODEL_TRAIN,
            node_role=NodeRole.ACTOR,
            provides=[],
        )
    graph = pipeline.build()
    assert added(graph) == {"sync_weights": (0, ["a_update", "b_update"])}
    graph.check_columns()
    assert graph.get_sources("sync_weights") == ["a_update"]
    later = graph.copy()
    later.nodes["a_update"].provides = later.nodes["b_update"].provides = frozenset({"loss"})
    later.add_node(Node("after", NodeType.COMPUTE, dependencies=["sync_weights"]))
    with pytest.raises(ConfigError, match=r"'sync_weights' .* both wrote the column"):
        later.check_columns()


def test_a_sync_before_the_update_does_not_count():
    pipeline = Pipeline("p").add_node(
        "sync_weights",
        passes,
        node_type=NodeType.BARRIER_SYNC,
        node_role=NodeRole.ROLLOUT,
    )
    pipeline.add_node(
        "update",
        passes,
        ["sync_weights"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
    )
    assert added(pipeline.build()) == {"sync_weights_at_the_end": (0, ["update"])}


def test_shipped_pipelines_have_theirs():
    assert [added(make()) for make in PIPELINES.values()] == [{}] * len(PIPELINES)


def test_a_graph_that_trains_nothing_needs_none():
    graph = grpo_pipeline()
    graph.remove_node("sync_weights")
    graph.remove_node("actor_train")
    assert added(graph) == {}


def test_a_graph_that_uses_the_models_of_two_agent_groups_is_refused():
    with pytest.raises(ConfigError, match=r"agent groups 0, 1, .*update_1 would train"):
        check_one_policy(trained(0, 1).build())


def test_a_graph_of_one_agent_group_passes():
    check_one_policy(trained(0).build())
    check_one_policy(grpo_pipeline())
