"""graph.json of a run, and its drawing for report.html: nodes in columns, arrows along
dependencies.

A node's column is the length of the longest path to it, so that every arrow points right. Skipped
nodes are dashed. Left out: crossing minimisation; graphs of this kind have few branches.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from siirl.execution.dag import TaskGraph
from siirl.execution.dag.function_names import describe
from siirl.execution.dag.resource_groups import GET, cut_graph, put_of
from siirl.reporting.run_folder import GRAPH_FILE

_BOX = 176
_HIGH = 34
_GAP_X = 34
_GAP_Y = 16
_COLUMNS = 5
"""Columns of a row of the drawing; a longer chain continues in the next row."""
_LONGEST = 24

Node = Mapping[str, Any]


def graph_rows(graph: TaskGraph, *, groups: Collection[str] = ()) -> list[dict[str, Any]]:
    """The nodes that run, in a possible running order, as JSON values.

    Args:
        graph: The run's graph, before it is cut.
        groups: Names of `dag.groups`; without any, the nodes have no group.
    """
    if not groups:
        return _rows(graph, group=None)
    parts = cut_graph(graph, groups=groups)
    in_order = reversed(parts.items())  # the first part gets the rows that the second puts
    rows = [row for name, part in in_order for row in _rows(part, group=name)]
    for row in rows:
        if row["function"] == GET:
            row["after"] = [put_of(row["id"])]
    return rows


def _rows(graph: TaskGraph, *, group: str | None) -> list[dict[str, Any]]:
    return [
        {
            "id": node.node_id,
            "group": group,
            "function": "" if node.executable is None else describe(node.executable),
            "after": [before.node_id for before in graph.get_dependencies(node.node_id)],
            "skipped": node.skip_reason,
            "requires": sorted(node.required_columns),
            "provides": sorted(node.provided_columns or ()),
        }
        for node in graph.get_nodes()
    ]


def write_graph(graph: TaskGraph, folder: Path, *, groups: Collection[str] = ()) -> None:
    """Write graph.json into the run folder; see `graph_rows`."""
    content = {"graph": graph.graph_id, "nodes": graph_rows(graph, groups=groups)}
    (folder / GRAPH_FILE).write_text(json.dumps(content, indent=1) + "\n")


def read_graph(folder: Path) -> list[Node]:
    """Nodes of a run's graph.json; none for a run without, or for a damaged file."""
    rows = _content(folder).get("nodes")
    return rows if isinstance(rows, list) and all(map(_is_node, rows)) else []


def read_graph_id(folder: Path) -> str | None:
    """Name of a run's graph; None for a run without, or for a damaged file."""
    name = _content(folder).get("graph")
    return name if isinstance(name, str) else None


def _content(folder: Path) -> dict[str, Any]:
    file = folder / GRAPH_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_node(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("id"), str)
        and isinstance(row.get("function"), str)
        and isinstance(row.get("group"), str | None)
        and isinstance(row.get("skipped"), str | None)
        and all(_are_texts(row.get(name)) for name in ("after", "requires", "provides"))
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def draw_graph(nodes: Sequence[Node]) -> Markup:
    """The graph as SVG; empty without nodes. Hover shows a node's function and columns."""
    if not nodes:
        return Markup("")
    places = _places(nodes)
    width = max(x for x, _ in places.values()) + _BOX + 4
    height = max(y for _, y in places.values()) + _HIGH + 4
    arrows = []
    for node in nodes:
        drawn = [before for before in node["after"] if before in places]
        arrows += [_arrow(places[before], places[node["id"]]) for before in drawn]
    boxes = [_box(node, *places[node["id"]]) for node in nodes]
    return Markup(
        '<svg class="graph" viewBox="0 0 {} {}" role="img" aria-label="graph of the pipeline">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>{}</svg>'
    ).format(width, height, Markup("").join([*arrows, *boxes]))


def _places(nodes: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """Left upper corner of each node's box."""
    depth: dict[str, int] = {}
    for node in nodes:  # in topological order
        depth[node["id"]] = max(
            (depth[name] + 1 for name in node["after"] if name in depth), default=0
        )
    columns: dict[int, list[str]] = {}
    for name, column in depth.items():
        columns.setdefault(column, []).append(name)
    places, top = {}, 2
    for first in range(0, max(columns) + 1, _COLUMNS):
        band = [columns[c] for c in range(first, min(first + _COLUMNS, max(columns) + 1))]
        for index, names in enumerate(band):
            for row, name in enumerate(names):
                places[name] = (2 + index * (_BOX + _GAP_X), top + row * (_HIGH + _GAP_Y))
        top += max(map(len, band)) * (_HIGH + _GAP_Y) + _GAP_Y
    return places


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x, y = start[0] + _BOX, start[1] + _HIGH // 2
    u, v = end[0], end[1] + _HIGH // 2
    if u > x:
        middle = (x + u) // 2
        path = f"M{x} {y}C{middle} {y} {middle} {v} {u - 1} {v}"
    else:  # to the next row: below the box, along the gap, and into the target from above
        between = end[1] - _GAP_Y // 2 - 2
        left, right = end[0] + _BOX // 2, start[0] + _BOX // 2
        path = f"M{right} {start[1] + _HIGH}V{between}H{left}V{end[1] - 1}"
    return Markup('<path class="edge" d="{}" marker-end="url(#tip)"/>').format(path)


def _box(node: Node, x: int, y: int) -> Markup:
    name = node["id"]
    lines = [
        name,
        node["function"] or "passes the batch on",
        *([f"group {node['group']}"] if node.get("group") else []),
        *([f"skipped: {node['skipped']}"] if node["skipped"] else []),
        f"reads {', '.join(node['requires']) or 'no column'}",
        f"adds {', '.join(node['provides']) or 'no column'}",
    ]
    return Markup(
        '<g class="node{}" tabindex="0" data-help="{}"><rect x="{}" y="{}" width="{}" height="{}" '
        'rx="6"/><text x="{}" y="{}" text-anchor="middle">{}</text></g>'
    ).format(
        " skipped" if node["skipped"] else "",
        "\n".join(lines),
        *(x, y, _BOX, _HIGH, x + _BOX // 2, y + _HIGH // 2 + 4),
        name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…",
    )
