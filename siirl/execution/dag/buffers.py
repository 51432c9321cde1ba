"""The buffer that a PUT_TO_BUFFER or GET_FROM_BUFFER node names; each must be filled before it is
read.
"""

from siirl.errors import ConfigError
from siirl.execution.dag.node import Node, NodeType
from siirl.execution.dag.task_graph import TaskGraph

NAME = "buffer"
"""Key of `Node.config`, and the default name of a buffer."""


def buffer_of(node: Node) -> str:
    """The buffer of a PUT_TO_BUFFER or GET_FROM_BUFFER node."""
    return str(node.config.get(NAME, NAME))


def check_buffers(graph: TaskGraph) -> None:
    """Refuse a GET_FROM_BUFFER node unless exactly one node before it fills its buffer.

    Raises:
        ConfigError: Names the node, its buffer and the remedy.
    """
    for node in graph.get_nodes():
        if node.node_type is not NodeType.GET_FROM_BUFFER:
            continue
        before = [graph.nodes[name] for name in graph.get_ancestors(node.node_id)]
        filling = [
            other.node_id
            for other in before
            if other.node_type is NodeType.PUT_TO_BUFFER and buffer_of(other) == buffer_of(node)
        ]
        if len(filling) != 1:
            raise ConfigError(
                f"Node {node.node_id!r} of graph {graph.graph_id!r} takes from buffer "
                f"{buffer_of(node)!r}, which {len(filling)} nodes before it fill "
                f"({', '.join(filling) or 'none'}). Let it depend on one PUT_TO_BUFFER node with "
                f"the same name: config: {{{NAME}: NAME}}."
            )
