"""Tracks the last writer of each column, and selects the version that is valid after a join.

A column has one writer on every path. At a join, the version of the writer that comes after all
others is valid. If two branches both wrote a column after their split, no such writer exists, and
the graph is refused. `TaskGraph.check_columns` applies this to declared columns;
`siirl.dag_worker.dataflow` applies it to actual outputs, because a function may declare nothing.
"""

from collections.abc import Callable, Mapping

from siirl.errors import ConfigError

LOADER = ""
"""Writer of the prompts' columns; it comes before every node."""

Writers = Mapping[str, str]
"""Id of the node that wrote each column, or LOADER."""
Ancestors = Callable[[str], set[str]]
"""Ids of all nodes that a node's rows have passed (`TaskGraph.get_writers`)."""


def joined_writers(
    node_id: str, branches: Mapping[str, Writers], *, graph_id: str, ancestors: Ancestors
) -> dict[str, str]:
    """Writers of the joined columns of `node_id`.

    Args:
        node_id: The node at which branches meet.
        branches: For each dependency of the node, the writers of its output columns.
        graph_id: Name of the graph, for errors.
        ancestors: Ids of all nodes that a node's rows have passed.

    Raises:
        ConfigError: Two branches both wrote a column.
    """
    names = dict.fromkeys(name for writers in branches.values() for name in writers)
    joined = {}
    for name in names:
        writers = [branch[name] for branch in branches.values() if name in branch]
        latest = _latest(list(dict.fromkeys(writers)), ancestors)
        if latest is None:
            first, second = _rivals(writers, ancestors)
            raise ConfigError(
                f"Node {node_id!r} of graph {graph_id!r} joins branches that both wrote the "
                f"column {name!r}: {first!r} and {second!r}. Make one of these nodes depend on the "
                "other, or give their columns different names."
            )
        joined[name] = latest
    return joined


def _latest(writers: list[str], ancestors: Ancestors) -> str | None:
    """The writer that comes after all others, or None."""
    for writer in writers:
        if all(_comes_before(other, writer, ancestors) for other in writers):
            return writer
    return None


def _comes_before(writer: str, other: str, ancestors: Ancestors) -> bool:
    """Whether `writer` is an ancestor of `other`, so that `other` had its column."""
    return writer in (LOADER, other) or (other != LOADER and writer in ancestors(other))


def _rivals(writers: list[str], ancestors: Ancestors) -> tuple[str, str]:
    """Two writers without an order between them."""
    for first in writers:
        for second in writers:
            ordered = _comes_before(first, second, ancestors)
            if not ordered and not _comes_before(second, first, ancestors):
                return first, second
    raise AssertionError("Each writer comes before or after every other.")
