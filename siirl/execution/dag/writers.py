"""Tracks the last writer of each column, and the version that holds where branches meet.

A column has one writer on every path. Where paths meet, the version holds whose writer comes after
all others; where two branches each wrote a column after they had parted, none does, and the graph
is refused. `TaskGraph.check_columns` applies this to what nodes declare; `siirl.dag_worker.dataflow`
applies it to what they did, because a function may declare nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from siirl.errors import ConfigError

if TYPE_CHECKING:
    from siirl.execution.dag.task_graph import TaskGraph

LOADER = ""
"""Writer of the prompts' columns; it comes before every node."""

Writers = Mapping[str, str]
"""Id of the node that wrote each column, or LOADER."""


def meet(graph: "TaskGraph", node_id: str, branches: Mapping[str, Writers]) -> dict[str, str]:
    """Writers of the joined columns of `node_id`.

    Args:
        graph: The graph.
        node_id: The node at which branches meet.
        branches: For each of its dependencies the writers of the columns that it puts out.

    Raises:
        ConfigError: Two branches both wrote a column.
    """
    names = dict.fromkeys(name for writers in branches.values() for name in writers)
    return {name: _latest(graph, node_id, name, branches) for name in names}


def _latest(graph: "TaskGraph", node_id: str, column: str, branches: Mapping[str, Writers]) -> str:
    writers = list(
        dict.fromkeys(branch[column] for branch in branches.values() if column in branch)
    )
    for writer in writers:
        if all(_comes_before(graph, other, writer) for other in writers):
            return writer
    first, second = _rivals(graph, writers)
    raise ConfigError(
        f"Node {node_id!r} of graph {graph.graph_id!r} joins branches that both wrote the column "
        f"{column!r}: {first!r} and {second!r}. Make one of these nodes depend on the other, or "
        "give their columns different names."
    )


def _comes_before(graph: "TaskGraph", writer: str, other: str) -> bool:
    """Whether `other` has seen what `writer` wrote."""
    return writer in (LOADER, other) or (other != LOADER and writer in graph.get_ancestors(other))


def _rivals(graph: "TaskGraph", writers: list[str]) -> tuple[str, str]:
    """Two writers without an order between them."""
    return next(
        (first, second)
        for first in writers
        for second in writers
        if not _comes_before(graph, first, second) and not _comes_before(graph, second, first)
    )
