"""Buffers of PUT_TO_BUFFER and GET_FROM_BUFFER nodes: one node fills a buffer, and one later node
reads it.
"""

from collections.abc import Collection

from siirl.errors import ConfigError
from siirl.execution.dag.node import Node, NodeType
from siirl.execution.dag.node_config import BUFFER
from siirl.execution.dag.task_graph import TaskGraph


def buffer_of(node: Node) -> str:
    """The buffer of a PUT_TO_BUFFER or GET_FROM_BUFFER node; without a name it is `buffer`."""
    return str(node.config.get(BUFFER, BUFFER))


def check_buffers(graph: TaskGraph) -> None:
    """Refuse a node unless one node fills its buffer and one later node reads it.

    Raises:
        ConfigError: Names the node, its buffer and the remedy.
    """
    for node in _of_type(graph, NodeType.GET_FROM_BUFFER):
        before = graph.get_ancestors(node.node_id)
        filling = _of_buffer(graph, before, NodeType.PUT_TO_BUFFER, buffer_of(node))
        if len(filling) != 1:
            raise ConfigError(
                f"Node {node.node_id!r} of graph {graph.graph_id!r} takes from buffer "
                f"{buffer_of(node)!r}, which {len(filling)} nodes before it fill "
                f"({', '.join(filling) or 'none'}). Let it depend on one PUT_TO_BUFFER node with "
                f"the same name: config: {{{BUFFER}: NAME}}."
            )
    for node in _of_type(graph, NodeType.PUT_TO_BUFFER):
        after = [other for other in graph.nodes if node.node_id in graph.get_ancestors(other)]
        taking = _of_buffer(graph, after, NodeType.GET_FROM_BUFFER, buffer_of(node))
        if len(taking) != 1:
            raise ConfigError(
                f"Node {node.node_id!r} of graph {graph.graph_id!r} fills buffer "
                f"{buffer_of(node)!r}, from which {len(taking)} nodes after it take "
                f"({', '.join(taking) or 'none'}). Let one GET_FROM_BUFFER node with the same "
                f"name depend on it: config: {{{BUFFER}: NAME}}."
            )


def _of_type(graph: TaskGraph, node_type: NodeType) -> list[Node]:
    return [node for node in graph.get_nodes() if node.node_type is node_type]


def _of_buffer(
    graph: TaskGraph, names: Collection[str], node_type: NodeType, buffer: str
) -> list[str]:
    nodes = _of_type(graph, node_type)
    return [node.node_id for node in nodes if node.node_id in names and buffer_of(node) == buffer]
