"""Pipelines are declared node by node and checked when they are built."""

import pytest

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag import Node, NodeRole, NodeType, Pipeline, order_for_kl_in_reward, stage


def passes(batch):
    return batch


def test_nodes_are_chained():
    graph = (
        Pipeline("p", "a pipeline")
        .add_node("a", passes)
        .add_node("b", func=passes, deps=["a"], node_role=NodeRole.REWARD)
        .build()
    )
    assert (graph.graph_id, graph.description) == ("p", "a pipeline")
    assert graph.get_topological_sort() == ["a", "b"]
    assert graph.nodes["b"].node_role is NodeRole.REWARD
    assert graph.nodes["a"].node_type is NodeType.COMPUTE


def test_id_can_be_used_once():
    with pytest.raises(ConfigError, match="already has a node 'a'"):
        Pipeline("p").add_node("a", passes).add_node("a", passes)


@pytest.mark.parametrize("node_id", ["", " ", 3, None, "a\nb", "a\ud800"])
def test_an_id_is_printable_text(node_id):
    with pytest.raises(ConfigError, match="the id of a node must be printable text"):
        Pipeline("own", "").add_node(node_id, None)


def test_dependencies_are_a_list():
    with pytest.raises(ConfigError, match=r"deps=\['rollout'\]"):
        Pipeline("p").add_node("a", passes, "rollout")


def test_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"option of node 'a'.*Did you mean 'node_role'\?"):
        Pipeline("p").add_node("a", passes, node_rol=NodeRole.REWARD)


def test_unknown_function_is_refused_when_built():
    with pytest.raises(UnknownNameError, match="node 'a'"):
        Pipeline("p").add_node("a", "json:dumpz").build()


def test_building_twice_gives_two_graphs():
    pipeline = Pipeline("p").add_node("a", passes)
    first, second = pipeline.build(), pipeline.build()
    first.nodes["a"].skip_reason = "changed"
    assert second.nodes["a"].skip_reason is None


# Stages


@stage(
    NodeType.MODEL_TRAIN,
    NodeRole.REFERENCE,
    only_forward_compute=True,
    requires=["responses"],
    provides=["ref_log_prob"],
)
def reference(batch):
    return batch


def test_a_node_has_the_type_and_role_of_its_stage():
    node = Pipeline("p").add_node("a", reference).build().nodes["a"]
    assert (node.node_type, node.node_role, node.only_forward_compute) == (
        NodeType.MODEL_TRAIN,
        NodeRole.REFERENCE,
        True,
    )
    assert (node.required_columns, node.provided_columns) == ({"responses"}, {"ref_log_prob"})


def test_a_type_and_a_role_given_at_the_node_take_the_place_of_the_stages():
    options = {
        "node_type": NodeType.COMPUTE,
        "node_role": NodeRole.DEFAULT,
        "only_forward_compute": False,
    }
    node = Pipeline("p").add_node("a", reference, **options).build().nodes["a"]
    assert (node.node_type, node.node_role, node.only_forward_compute) == (
        NodeType.COMPUTE,
        NodeRole.DEFAULT,
        False,
    )


def test_a_retried_stage_that_trains_is_refused_when_built():
    with pytest.raises(ConfigError, match="retry_limit=1 on a MODEL_TRAIN node"):
        Pipeline("p").add_node("a", reference, retry_limit=1).build()


# KL in the reward


def with_log_probs(*, reward_after):
    """A graph whose reward comes after the node `reward_after`."""
    return (
        Pipeline("p")
        .add_node("rollout_actor", passes)
        .add_node(
            "old", passes, ["rollout_actor"], node_role=NodeRole.ACTOR, only_forward_compute=True
        )
        .add_node("reference", passes, ["old"], node_role=NodeRole.REFERENCE)
        .add_node("reward", passes, [reward_after], node_role=NodeRole.REWARD)
        .build()
    )


def test_kl_in_the_reward_moves_late_log_probs_before_it():
    graph = with_log_probs(reward_after="rollout_actor")
    order_for_kl_in_reward(graph, use_kl_in_reward=True)
    assert graph.get_topological_sort() == ["rollout_actor", "old", "reference", "reward"]
    assert graph.rev_adj["reward"] == ["reference"]


def test_a_moved_node_leaves_a_chain_behind_it():
    graph = (
        Pipeline("p")
        .add_node("rollout_actor", passes)
        .add_node("reward", passes, ["rollout_actor"], node_role=NodeRole.REWARD)
        .add_node("reference", passes, ["rollout_actor"], node_role=NodeRole.REFERENCE)
        .add_node("update", passes, ["reward", "reference"])
        .build()
    )
    order_for_kl_in_reward(graph, use_kl_in_reward=True)
    assert graph.rev_adj["update"] == ["reward"]
    assert graph.rev_adj["reward"] == ["reference"]


def test_a_second_reward_on_another_path_than_the_log_probs_is_refused():
    graph = with_log_probs(reward_after="reference")
    graph.add_node(
        Node(
            "other_reward",
            NodeType.COMPUTE,
            NodeRole.REWARD,
            dependencies=["rollout_actor"],
            executable_ref=passes,
        )
    )
    with pytest.raises(ConfigError, match="'reference' must come before 'other_reward'"):
        order_for_kl_in_reward(graph, use_kl_in_reward=True)


def test_kl_in_the_reward_with_log_probs_before_it_passes():
    order_for_kl_in_reward(with_log_probs(reward_after="reference"), use_kl_in_reward=True)


def test_without_kl_in_the_reward_the_order_is_free():
    order_for_kl_in_reward(with_log_probs(reward_after="rollout_actor"), use_kl_in_reward=False)


def test_kl_in_the_reward_without_reference_is_refused():
    graph = Pipeline("p").add_node("reward", passes, node_role=NodeRole.REWARD).build()
    with pytest.raises(ConfigError, match="no node with the role REFERENCE"):
        order_for_kl_in_reward(graph, use_kl_in_reward=True)


def test_behaviour_log_probs_serve_where_there_is_no_node_for_old_ones():
    graph = (
        Pipeline("p")
        .add_node("reference", passes, node_role=NodeRole.REFERENCE)
        .add_node("reward", passes, ["reference"], node_role=NodeRole.REWARD)
        .build()
    )
    order_for_kl_in_reward(graph, use_kl_in_reward=True)
