"""Declares a graph node by node: `Pipeline("name").add_node(...).add_node(...).build()`.

A pipeline of stages is a table of ids, functions and dependencies: type, role and columns are those
of the function (`siirl.execution.dag.stage`, `siirl.execution.dag.columns`).
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Self, TypedDict, Unpack

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag.node import Node, NodeRole, NodeType
from siirl.execution.dag.stage import declared_stage
from siirl.execution.dag.task_graph import TaskGraph


class NodeOptions(TypedDict, total=False):
    """What `add_node` takes besides id, function and dependencies; see `Node`."""

    node_type: NodeType
    node_role: NodeRole
    only_forward_compute: bool
    moves_rows: bool
    agent_group: int
    group: str | None
    config: dict[str, Any]
    filter_plugin: str | Callable[..., bool] | None
    retry_limit: int
    requires: Iterable[str] | None
    provides: Iterable[str] | None
    aliases: tuple[str, ...]


class Pipeline:
    """Builder of a TaskGraph."""

    def __init__(self, pipeline_id: str, description: str = "") -> None:
        self.pipeline_id = pipeline_id
        self.description = description
        self._nodes: dict[str, Node] = {}
        self._given: dict[str, frozenset[str]] = {}
        """The options passed to `add_node` for each node."""

    def add_node(
        self,
        node_id: str,
        func: str | Callable[..., Any] | None,
        deps: Iterable[str] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self:
        """Declare a node.

        Args:
            node_id: Unique in the pipeline; metrics call its time `time/<node_id>_s`.
            func: `module:Class.method`, `module.function` or a callable; None passes the batch on.
            deps: Ids of the nodes that it depends on.
            options: See `NodeOptions`. Type, role and `only_forward_compute` default to those that
                the function declares as a stage, otherwise to COMPUTE without role. `requires` and
                `provides` are added to its columns.

        Raises:
            ConfigError: The id is taken or is not printable text, `deps` is a string, or an option
                is unknown.
        """
        given: object = node_id  # a user's pipeline may be untyped
        if not isinstance(given, str) or not given.strip() or not given.isprintable():
            raise ConfigError(
                f"Pipeline {self.pipeline_id!r}: the id of a node must be printable text, got "
                f"{node_id!r}."
            )
        if node_id in self._nodes:
            raise ConfigError(
                f"Pipeline {self.pipeline_id!r} already has a node {node_id!r}. Give the new one "
                "another id."
            )
        if isinstance(deps, str):
            raise ConfigError(
                f"Pipeline {self.pipeline_id!r}, node {node_id!r}: deps is a list of ids. Write "
                f"deps=[{deps!r}]."
            )
        for name in options:
            if name not in NodeOptions.__annotations__:
                kind = f"option of node {node_id!r} in pipeline {self.pipeline_id!r}"
                raise UnknownNameError.of(kind=kind, name=name, known=NodeOptions.__annotations__)
        filled: NodeOptions = {"node_type": NodeType.COMPUTE, **options}
        self._nodes[node_id] = Node(
            node_id=node_id, dependencies=list(deps or ()), executable_ref=func, **filled
        )
        self._given[node_id] = frozenset(options)
        return self

    def build(self) -> TaskGraph:
        """The graph, checked (`TaskGraph.check`).

        Raises:
            ConfigError: A missing dependency, a cycle, an unknown function, a column that no
                node provides.
        """
        graph = TaskGraph(self.pipeline_id, self.description)
        for node in self._nodes.values():
            graph.add_node(self._as_declared(node))
        graph.check()
        return graph

    def _as_declared(self, node: Node) -> Node:
        """A copy of `node`; options not passed to `add_node` come from the function's stage
        declaration.
        """
        stage = dataclasses.asdict(declared_stage(node.executable))
        return dataclasses.replace(
            node.copy(),
            **{
                name: value
                for name, value in stage.items()
                if name not in self._given[node.node_id]
            },
        )
