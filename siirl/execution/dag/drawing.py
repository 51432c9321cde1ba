"""Draws a graph as lines of text: `a -> b -> c` for a chain, and one line for each branch and each
join.

    a
    a -> b -> c
    a -> d
    c + d -> e

Skipped nodes are left out; their dependents follow the skipped node's dependencies.
"""

from siirl.execution.dag.task_graph import TaskGraph


def drawn(graph: TaskGraph) -> tuple[str, ...]:
    """The lines, in the order in which nodes run."""
    running = graph.copy()
    for node in graph.get_nodes():
        if node.skip_reason is not None:
            running.remove_node(node.node_id)
    lines: list[str] = []
    for node_id in running.get_topological_sort():
        before = running.rev_adj[node_id]
        if len(before) == 1 and len(running.adj[before[0]]) == 1:
            continue  # drawn with the node before it
        start = [" + ".join(before)] if before else []
        lines.append(" -> ".join([*start, *_stretch(running, node_id)]))
    return tuple(lines)


def _stretch(graph: TaskGraph, node_id: str) -> list[str]:
    """Nodes from here to the next fork or join."""
    stretch = [node_id]
    while len(after := graph.adj[stretch[-1]]) == 1 and len(graph.rev_adj[after[0]]) == 1:
        stretch.append(after[0])
    return stretch
