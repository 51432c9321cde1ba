"""The graph is sorted, searched and checked before anything runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag import Node, NodeStatus, NodeType, Pipeline, TaskGraph, columns


def passes(batch):
    return batch


def graph_of(**dependencies):
    """A graph from `id=[dependencies]`, whose nodes declare that they need and add nothing."""
    graph = TaskGraph("g")
    for node_id, names in dependencies.items():
        graph.add_node(node(node_id, names))
    return graph


def node(node_id, dependencies=(), *, function=passes, requires=(), provides=(), **options):
    return Node(
        node_id,
        NodeType.COMPUTE,
        dependencies=list(dependencies),
        executable_ref=function,
        requires=requires,
        provides=provides,
        **options,
    )


def ids(nodes):
    return [found.node_id for found in nodes]


def test_dependencies_come_first_and_ties_keep_the_order_of_addition():
    assert graph_of(c=["a"], b=[], a=[], d=["c", "b"]).get_topological_sort() == [
        "b",
        "a",
        "c",
        "d",
    ]


def test_edges_in_both_directions():
    graph = graph_of(a=[], b=["a"], c=["a", "b"])
    assert graph.adj == {"a": ["b", "c"], "b": ["c"], "c": []}
    assert graph.rev_adj == {"a": [], "b": ["a"], "c": ["a", "b"]}


def test_entries_exits_and_neighbours():
    graph = graph_of(a=[], b=["a"], c=["a"])
    assert ids(graph.get_entry_nodes()) == ["a"]
    assert ids(graph.get_exit_nodes()) == ["b", "c"]
    assert ids(graph.get_downstream_nodes("a")) == ids(graph.get_dependents("a")) == ["b", "c"]
    assert ids(graph.get_dependencies("c")) == ["a"]


def test_cycle_is_named_node_by_node():
    with pytest.raises(
        ConfigError, match=r"has a cycle: (b -> c -> d -> b|c -> d -> b -> c|d -> b -> c -> d)"
    ):
        graph_of(a=[], b=["a", "d"], c=["b"], d=["c"], e=["d"]).get_topological_sort()


def test_node_that_depends_on_itself_is_a_cycle():
    assert graph_of(a=["a"]).validate_graph() == (
        False,
        "Graph 'g' has a cycle: a -> a. Remove one of these dependencies.",
    )


def test_missing_dependency_is_named_with_the_nearest():
    valid, message = graph_of(rollout_actor=[], reward=["rollout_actr"]).validate_graph()
    assert not valid
    assert "dependency of node 'reward'" in message
    assert "Did you mean 'rollout_actor'?" in message


def test_a_valid_graph_has_no_errors():
    assert graph_of(a=[], b=["a"]).validate_graph() == (True, None)


def test_empty_graph_is_refused():
    with pytest.raises(ConfigError, match="has no nodes"):
        TaskGraph("g").check()


def test_id_can_be_used_once():
    graph = graph_of(a=[])
    with pytest.raises(ConfigError, match="already has a node 'a'"):
        graph.add_node(node("a"))


def test_alias_names_the_node_in_dependencies_and_lookups():
    graph = TaskGraph("g")
    graph.add_node(node("filter", aliases=("dynaminc_sampling",)))
    graph.add_node(node("reward", ["dynaminc_sampling"]))
    assert graph.rev_adj["reward"] == ["filter"]
    assert graph.get_node("dynaminc_sampling").node_id == "filter"


def test_unknown_node_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="Known: a, b"):
        graph_of(a=[], b=[]).get_node("c")


def test_removed_nodes_dependents_inherit_its_dependencies():
    graph = graph_of(a=[], b=["a"], c=["b"])
    graph.remove_node("b")
    assert graph.rev_adj == {"a": [], "c": ["a"]}


def test_copy_shares_nothing_that_changes():
    graph = graph_of(a=[], b=["a"])
    graph.nodes["a"].run(batch={})
    duplicate = graph.copy()
    duplicate.remove_node("a")
    assert duplicate.nodes["b"].status is NodeStatus.PENDING
    assert graph.rev_adj["b"] == ["a"]


@given(st.lists(st.integers(min_value=0, max_value=2**8 - 1), min_size=1, max_size=8))
def test_every_graph_without_backward_edges_can_be_sorted(masks):
    """Bit j of mask i makes node i depend on node j < i."""
    graph = TaskGraph("g")
    for index, mask in reversed(list(enumerate(masks))):
        graph.add_node(
            node(str(index), [str(other) for other in range(index) if mask >> other & 1])
        )
    order = graph.get_topological_sort()
    assert sorted(order) == sorted(graph.nodes)
    assert all(
        order.index(name) < order.index(node_id)
        for node_id in order
        for name in graph.rev_adj[node_id]
    )


# Columns


def chain(*nodes):
    graph = TaskGraph("g")
    for previous, current in zip((None, *nodes), nodes, strict=False):
        current.dependencies = [] if previous is None else [previous.node_id]
        graph.add_node(current)
    return graph


def test_column_without_a_provider_is_refused_with_the_nearest():
    graph = chain(node("rollout", provides=["responses"]), node("reward", requires=["response"]))
    with pytest.raises(
        UnknownNameError, match=r"required by node 'reward'.*'response'. Did you mean 'responses'"
    ):
        graph.check()


def test_column_that_comes_too_late_is_refused_with_its_source():
    graph = chain(
        node("rollout"),
        node("advantage", requires=["rewards"]),
        node("reward", provides=["rewards"]),
    )
    with pytest.raises(
        ConfigError,
        match=(
            "'advantage' requires the column 'rewards', which 'reward' provides, but that node "
            "does not come"
        ),
    ):
        graph.check()


def test_the_node_that_is_proposed_as_a_dependency_trains_the_same_agent():
    graph = chain(node("rollout"))
    for agent in (0, 1):
        graph.add_node(
            node(f"advantage_{agent}", ["rollout"], agent_group=agent, provides=["advantages"])
        )
    graph.add_node(node("train", ["rollout"], agent_group=1, requires=["advantages"]))
    with pytest.raises(ConfigError, match="Add 'advantage_1' to the dependencies of 'train'"):
        graph.check()


def test_column_from_a_parallel_branch_is_refused():
    graph = TaskGraph("g")
    graph.add_node(node("rollout"))
    graph.add_node(node("reward", ["rollout"], provides=["rewards"]))
    graph.add_node(node("advantage", ["rollout"], requires=["rewards"]))
    with pytest.raises(ConfigError, match="Add 'reward' to the dependencies of 'advantage'"):
        graph.check()


def test_columns_of_distant_ancestors_count():
    chain(node("a", provides=["x"]), node("b"), node("c", requires=["x"])).check()


def test_the_loader_is_assumed_to_give_what_entry_nodes_require():
    chain(node("rollout", requires=["seed"]), node("reward", requires=["seed"])).check()


def test_a_column_of_a_later_node_is_not_assumed_to_come_from_the_loader():
    graph = chain(node("rollout"), node("advantage", provides=["advantages"]))
    graph.add_node(node("train", requires=["advantages"]))
    with pytest.raises(ConfigError, match="Add 'advantage' to the dependencies of 'train'"):
        graph.check()


def test_a_column_of_the_loader_may_be_provided_again():
    required = ["seed", "prompt_row", "note"]
    chain(
        node("select", requires=required, provides=["note"]),
        node("rewrite", provides=["seed", "prompt_row"]),
    ).check()


def test_loader_that_does_not_give_a_column_is_refused():
    with pytest.raises(ConfigError, match="required by node 'rollout'"):
        chain(node("rollout", requires=["seed"])).check(loader_columns=["task_name"])


def test_decorated_functions_are_checked_like_nodes():
    @columns(requires=["values"])
    def advantage(batch):
        return batch

    graph = chain(
        node("rollout"), node("advantage", function=advantage, requires=None, provides=None)
    )
    with pytest.raises(ConfigError, match="'values'"):
        graph.check()


def moved_in_one_branch(**after):
    graph = TaskGraph("g")
    graph.add_node(node("rollout"))
    graph.add_node(node("balance", ["rollout"], moves_rows=True))
    graph.add_node(node("reference", [after.get("reference_after", "rollout")]))
    graph.add_node(node("update", ["balance", "reference"]))
    return graph


def test_rows_that_moved_are_not_joined_with_rows_that_stayed():
    with pytest.raises(ConfigError, match=r"'update'.*'balance' on one of these paths moves rows"):
        moved_in_one_branch().check()


def test_rows_that_moved_before_the_paths_part_can_be_joined():
    moved_in_one_branch(reference_after="balance").check()


def test_skipped_nodes_columns_are_required_no_more():
    graph = chain(
        node("rollout"),
        node("reference", provides=["ref_log_prob"]),
        node("train", requires=["ref_log_prob"]),
    )
    graph.skip_node("reference", reason="KL coefficient 0")
    graph.check()
    assert graph.nodes["train"].required_columns == frozenset()
    assert "reference (after rollout): skipped, KL coefficient 0" in str(graph)


def test_skipping_keeps_what_another_node_provides():
    graph = chain(
        node("first", provides=["x"]), node("second", provides=["x"]), node("train", requires=["x"])
    )
    graph.skip_node("second", reason="not needed")
    assert graph.nodes["train"].required_columns == {"x"}


def test_the_prompts_columns_are_there_after_an_own_function_that_declares_others():
    pipeline = Pipeline("own").add_node("load", count, node_type=NodeType.DATA_LOAD, provides=["n"])
    pipeline.add_node("rollout", "siirl.dag_worker.stages:generate", ["load"]).build()


def count(batch):
    batch["n"] = len(batch)
    return batch
