"""Splits a task graph into parts; different groups of ranks load them and run them in parallel.

A part is complete: it contains every ancestor of its last node, so common ancestors are in each
part. Two parts never share a model that one of them trains, because the other would continue with
stale weights; such a graph stays whole, and its ranks run it data-parallel. The built-in
algorithms, with one policy each, are therefore never split; the agents of a multi-agent workflow
with separate policies are.
"""

from siirl.errors import ConfigError
from siirl.execution.dag.node import Node, NodeRole
from siirl.execution.dag.resource_groups import trains
from siirl.execution.dag.task_graph import TaskGraph

# Roles that use weights which training changes, and the model of each role.
MODEL_OF_ROLE = {NodeRole.ACTOR: "policy", NodeRole.ROLLOUT: "policy", NodeRole.CRITIC: "critic"}

Model = tuple[str, int]  # model and agent group


def discover_and_split_parallel_paths(src_task_graph: TaskGraph) -> list[TaskGraph]:
    """Split by exits, then by reconverging paths, until no part can be split further.

    Returns:
        Independent copies: one with the original id if the graph cannot be split, else `<id>/0`,
            `<id>/1`, …
    """
    waiting, irreducible = [src_task_graph], []
    while waiting:
        graph = waiting.pop(0)
        parts = split_by_fan_out_to_exits(graph)
        if len(parts) == 1:
            parts = split_by_reconverging_paths(graph)
        if len(parts) == 1:
            irreducible.append(graph.copy())
        else:
            waiting = parts + waiting
    return irreducible


def split_by_fan_out_to_exits(graph: TaskGraph) -> list[TaskGraph]:
    """One part for each exit with all its ancestors; exits that share a trained model stay in one
    part.
    """
    closures = [
        graph.get_ancestors(node.node_id) | {node.node_id} for node in graph.get_exit_nodes()
    ]
    groups: list[set[str]] = []
    for closure in closures:
        bound = [group for group in groups if _share_trained_model(graph, group, closure)]
        groups = [group for group in groups if group not in bound] + [closure.union(*bound)]
    if len(groups) < 2:
        return [graph]
    return [_part(graph, index=index, node_ids=group) for index, group in enumerate(groups)]


def split_by_reconverging_paths(graph: TaskGraph) -> list[TaskGraph]:
    """One part for each dependency of the first node at which parallel paths meet, if each part
    alone has all columns that it requires.
    """
    for node in graph.get_nodes():
        if len(node.dependencies) < 2 or node.provided_columns is None:
            continue
        parts = [
            _with_one_dependency(graph, node.node_id, name, index=index)
            for index, name in enumerate(graph.rev_adj[node.node_id])
        ]
        if _are_independent(parts):
            return parts
    return [graph]


def trained_models(nodes: list[Node]) -> set[Model]:
    """Models whose weights these nodes change."""
    return {
        (MODEL_OF_ROLE[node.node_role], node.agent_group)
        for node in nodes
        if trains(node) and node.node_role in MODEL_OF_ROLE
    }


def update_nodes(graph: TaskGraph, model: Model) -> list[Node]:
    """Nodes that run and change the weights of `model`, in topological order."""
    return [
        node
        for node in graph.get_nodes()
        if node.skip_reason is None and model in trained_models([node])
    ]


def used_models(nodes: list[Node]) -> set[Model]:
    """Models that these nodes use or train."""
    return {
        (MODEL_OF_ROLE[node.node_role], node.agent_group)
        for node in nodes
        if node.node_role in MODEL_OF_ROLE
    }


def _share_trained_model(graph: TaskGraph, left: set[str], right: set[str]) -> bool:
    left_nodes = [graph.nodes[name] for name in left]
    right_nodes = [graph.nodes[name] for name in right]
    return bool(
        trained_models(left_nodes) & used_models(right_nodes)
        or trained_models(right_nodes) & used_models(left_nodes)
    )


def _part(graph: TaskGraph, *, index: int, node_ids: set[str]) -> TaskGraph:
    part = TaskGraph(f"{graph.graph_id}/{index}", graph.description)
    for node_id, node in graph.nodes.items():
        if node_id in node_ids:
            part.add_node(node.copy())
    return part


def _with_one_dependency(
    graph: TaskGraph, node_id: str, dependency: str, *, index: int
) -> TaskGraph:
    """The graph in which `node_id` depends on `dependency` alone, without nodes that no exit then
    depends on.
    """
    narrowed = TaskGraph(graph.graph_id, graph.description)
    for node in graph.nodes.values():
        narrowed.add_node(node.copy())
    narrowed.nodes[node_id].dependencies = [dependency]
    narrowed.update_edges()
    exits = {node.node_id for node in graph.get_exit_nodes()}
    kept = exits.union(*(narrowed.get_ancestors(name) for name in exits))
    return _part(narrowed, index=index, node_ids=kept)


def _are_independent(parts: list[TaskGraph]) -> bool:
    for index, part in enumerate(parts):
        try:
            part.check_columns()
        except ConfigError:
            return False
        others = parts[:index] + parts[index + 1 :]
        if any(
            trained_models(part.get_nodes()) & used_models(other.get_nodes()) for other in others
        ):
            return False
    return True
