"""Graphs are split only where the parts are complete in themselves and share no model that one of
them trains.
"""

from siirl.execution.dag import (
    Node,
    NodeRole,
    NodeType,
    TaskGraph,
    discover_and_split_parallel_paths,
)


def passes(batch):
    return batch


def add(
    graph,
    node_id,
    dependencies=(),
    *,
    role=NodeRole.DEFAULT,
    train=False,
    agent=0,
    requires=(),
    provides=(),
):
    graph.add_node(
        Node(
            node_id,
            NodeType.MODEL_TRAIN if train else NodeType.COMPUTE,
            node_role=role,
            agent_group=agent,
            dependencies=list(dependencies),
            executable_ref=passes,
            requires=requires,
            provides=provides,
        )
    )


def ids(parts):
    return {part.graph_id: part.get_topological_sort() for part in parts}


def test_chain_stays_whole():
    graph = TaskGraph("g")
    add(graph, "a")
    add(graph, "b", ["a"])
    assert ids(discover_and_split_parallel_paths(graph)) == {"g": ["a", "b"]}


def test_agents_with_policies_of_their_own_are_split_and_keep_the_shared_beginning():
    graph = TaskGraph("g")
    add(graph, "dialogue")
    for agent in (0, 1):
        add(graph, f"reward_{agent}", ["dialogue"])
        add(
            graph,
            f"train_{agent}",
            [f"reward_{agent}"],
            role=NodeRole.ACTOR,
            train=True,
            agent=agent,
        )
    assert ids(discover_and_split_parallel_paths(graph)) == {
        "g/0": ["dialogue", "reward_0", "train_0"],
        "g/1": ["dialogue", "reward_1", "train_1"],
    }


def test_branches_that_use_a_model_which_one_trains_stay_together():
    graph = TaskGraph("g")
    add(graph, "rollout", role=NodeRole.ROLLOUT)
    add(graph, "train_actor", ["rollout"], role=NodeRole.ACTOR, train=True)
    add(graph, "train_critic", ["rollout"], role=NodeRole.CRITIC, train=True)
    assert ids(discover_and_split_parallel_paths(graph)) == {
        "g": ["rollout", "train_actor", "train_critic"]
    }


def test_paths_that_meet_are_split_where_each_has_all_columns():
    graph = TaskGraph("g")
    add(graph, "start", provides=["text"])
    add(graph, "left", ["start"], requires=["text"])
    add(graph, "right", ["start"], requires=["text"])
    add(graph, "report", ["left", "right"], requires=["text"])
    assert ids(discover_and_split_parallel_paths(graph)) == {
        "g/0": ["start", "left", "report"],
        "g/1": ["start", "right", "report"],
    }


def test_paths_whose_columns_are_needed_together_stay_whole():
    graph = TaskGraph("g")
    add(graph, "rollout")
    add(graph, "reward", ["rollout"], provides=["rewards"])
    add(graph, "value", ["rollout"], provides=["values"])
    add(graph, "advantage", ["reward", "value"], requires=["rewards", "values"])
    assert ids(discover_and_split_parallel_paths(graph)) == {
        "g": ["rollout", "reward", "value", "advantage"]
    }


def test_paths_that_meet_in_an_undeclared_node_stay_whole():
    graph = TaskGraph("g")
    add(graph, "left")
    add(graph, "right")
    add(graph, "user", ["left", "right"], requires=None, provides=None)
    assert len(discover_and_split_parallel_paths(graph)) == 1


def test_parts_are_split_further():
    graph = TaskGraph("g")
    add(graph, "start", provides=["text"])
    add(graph, "alone", ["start"])
    add(graph, "left", ["start"])
    add(graph, "right", ["start"])
    add(graph, "report", ["left", "right"], requires=["text"])
    assert sorted(ids(discover_and_split_parallel_paths(graph))) == ["g/0", "g/1/0", "g/1/1"]


def test_original_is_not_touched():
    graph = TaskGraph("g")
    add(graph, "a")
    part = discover_and_split_parallel_paths(graph)[0]
    part.remove_node("a")
    assert list(graph.nodes) == ["a"]
