"""A directed acyclic graph of nodes, and its checks before a run.

`check` refuses a missing dependency, a cycle (named node by node), a function that does not exist
or has a parameter that no node gets, and a column that is required but provided neither by an
ancestor nor by the loader. Left out: executing (siirl.dag_worker) and placing
(siirl.execution.scheduler).
"""

import heapq
from collections.abc import Callable, Iterable

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag.columns import PROMPT_COLUMNS, PROMPT_ROW, column_set, providers_of
from siirl.execution.dag.node import Node, NodeRole, NodeStatus, NodeType
from siirl.execution.dag.writers import joined_writers


class TaskGraph:
    """Nodes by id, with edges in both directions; nodes may be added in any order.

    Attributes:
        nodes: Node by id, in the order of their addition.
        adj: For each node the ids of those that depend on it.
        rev_adj: For each node the ids that it depends on.
        loader_columns: Columns of the first batch, from the last check of columns.
    """

    def __init__(self, graph_id: str, description: str = "") -> None:
        self.graph_id = graph_id
        self.description = description
        self.nodes: dict[str, Node] = {}
        self.adj: dict[str, list[str]] = {}
        self.rev_adj: dict[str, list[str]] = {}
        self.loader_columns: frozenset[str] | None = None

    def __str__(self) -> str:
        """One line per node: id, function, dependencies."""
        lines = [f"{self.graph_id}: {self.description}".rstrip(": ")]
        for node_id in self.get_topological_sort():
            after = (
                f"after {', '.join(self.rev_adj[node_id])}" if self.rev_adj[node_id] else "entry"
            )
            skipped = self.nodes[node_id].skip_reason
            lines.append(f"  {node_id} ({after})" + (f": skipped, {skipped}" if skipped else ""))
        return "\n".join(lines)

    # Building

    def add_node(self, node: Node) -> None:
        """Add a node; its dependencies may follow later.

        Raises:
            ConfigError: The node's id or one of its aliases is taken.
        """
        taken = {name for known in self.nodes.values() for name in (known.node_id, *known.aliases)}
        for name in (node.node_id, *node.aliases):
            if name in taken:
                raise ConfigError(
                    f"Graph {self.graph_id!r} already has a node {name!r}. Give the new one "
                    "another id."
                )
        self.nodes[node.node_id] = node
        self.update_edges()

    def remove_node(self, node_id: str) -> None:
        """Remove a node; its dependents then depend on its dependencies."""
        removed = self.get_node(node_id)
        for dependent in self.get_dependents(removed.node_id):
            before = self.rev_adj[dependent.node_id]
            position = before.index(removed.node_id)
            dependent.dependencies = (
                before[:position] + self.rev_adj[removed.node_id] + before[position + 1 :]
            )
        del self.nodes[removed.node_id]
        self.update_edges()

    def skip_node(self, node_id: str, *, reason: str) -> None:
        """Keep a node in the graph but do not run it; later nodes no longer require its columns
        (unless another node provides them).
        """
        skipped = self.get_node(node_id)
        dropped = skipped.provided_columns or frozenset()
        skipped.skip_reason = reason
        skipped.status = NodeStatus.SKIPPED
        for node in self.nodes.values():
            if skipped.node_id in self.get_writers(node.node_id):
                still_provided = self._provided_before(node.node_id)
                node.waived |= dropped - still_provided

    def copy(self) -> "TaskGraph":
        """A copy of the graph whose nodes have not run."""
        duplicate = TaskGraph(self.graph_id, self.description)
        duplicate.nodes = {node_id: node.copy() for node_id, node in self.nodes.items()}
        duplicate.loader_columns = self.loader_columns
        duplicate.update_edges()
        return duplicate

    def update_edges(self) -> None:
        """Recompute both adjacency lists after a change of a node's dependencies; a missing node
        counts as soon as it is added.
        """
        self.adj = {node_id: [] for node_id in self.nodes}
        self.rev_adj = {}
        for node_id, node in self.nodes.items():
            self.rev_adj[node_id] = [
                self._resolve(name) for name in dict.fromkeys(node.dependencies)
            ]
            for name in self.rev_adj[node_id]:
                if name in self.adj:
                    self.adj[name].append(node_id)

    # Reading

    def get_node(self, node_id: str) -> Node:
        """The node of this id or alias; UnknownNameError with the known ids if there is none."""
        resolved = self._resolve(node_id)
        if resolved not in self.nodes:
            raise UnknownNameError.of(
                kind=f"node of graph {self.graph_id!r}", name=node_id, known=self.nodes
            )
        return self.nodes[resolved]

    def get_nodes(self) -> list[Node]:
        """All nodes in topological order."""
        return [self.nodes[node_id] for node_id in self.get_topological_sort()]

    def agent_groups(self) -> tuple[int, ...]:
        """Agent groups of the nodes, ascending."""
        return tuple(sorted({node.agent_group for node in self.nodes.values()}))

    def drawing_nodes(self) -> dict[str, int]:
        """Agent groups of the nodes that get prompts, by the node's id."""
        return {
            node_id: node.agent_group
            for node_id, node in self.nodes.items()
            if not self.get_sources(node_id)
        }

    def playing_group(self, group: int) -> int:
        """The agent group whose episodes `group` trains on: itself, if one of its nodes gets the
        prompts; otherwise the lowest group that leads to its nodes.
        """
        entries = self.drawing_nodes()
        if group in entries.values():
            return group
        own = [node_id for node_id, node in self.nodes.items() if node.agent_group == group]
        before = set[str]().union(*(self.get_ancestors(node_id) for node_id in own))
        return min(entries[node_id] for node_id in before & entries.keys())

    def get_entry_nodes(self) -> list[Node]:
        """Nodes without dependencies."""
        return [node for node_id, node in self.nodes.items() if not self.rev_adj[node_id]]

    def get_exit_nodes(self) -> list[Node]:
        """Nodes on which no other depends."""
        return [node for node_id, node in self.nodes.items() if not self.adj[node_id]]

    def get_dependencies(self, node_id: str) -> list[Node]:
        """The nodes that `node_id` names as its dependencies."""
        return [self.nodes[name] for name in self.rev_adj[self.get_node(node_id).node_id]]

    def get_dependents(self, node_id: str) -> list[Node]:
        """The nodes that name `node_id` as a dependency."""
        return [self.nodes[name] for name in self.adj[self.get_node(node_id).node_id]]

    def get_downstream_nodes(self, node_id: str) -> list[Node]:
        """Alias of `get_dependents`."""
        return self.get_dependents(node_id)

    def get_ancestors(self, node_id: str) -> set[str]:
        """Ids of all nodes that must have run before `node_id`."""
        return self._reached(node_id, lambda name: self.rev_adj[name])

    def get_sources(self, node_id: str) -> list[str]:
        """Ids of the nodes whose output `node_id` gets: its dependencies.

        A DATA_LOAD node has none: it gets the prompts and only runs after its dependencies. A
        weight sync at the end of the graph has one, because it reads no rows: its dependencies are
        updates of one policy, possibly on rows that cannot be joined.
        """
        node, before = self.nodes[node_id], self.rev_adj[node_id]
        if node.node_type is NodeType.DATA_LOAD:
            return []
        return before[:1] if node.syncs_weights and not self.adj[node_id] else before

    def get_writers(self, node_id: str) -> set[str]:
        """Ids of all nodes that the rows of `node_id` have passed."""
        return self._reached(node_id, self.get_sources)

    def get_topological_sort(self) -> list[str]:
        """Ids in an order in which each comes after its dependencies (Kahn 1962).

        Among ready nodes, ancestors of a DYNAMIC_SAMPLING node come first, so that no node reads
        rows before a refill adds to them. Other ready nodes follow in the order in which they were
        added.

        Raises:
            ConfigError: A dependency that is not a node, or a cycle, named node by node.
        """
        self._check_dependencies()
        urgent = self._leads_to_sampling()
        ids = sorted(self.nodes, key=lambda node_id: node_id not in urgent)
        position = {node_id: index for index, node_id in enumerate(ids)}
        missing = {node_id: len(self.rev_adj[node_id]) for node_id in ids}
        # ascending, hence a heap
        free = [position[node_id] for node_id in ids if missing[node_id] == 0]
        order: list[str] = []
        while free:
            node_id = ids[heapq.heappop(free)]
            order.append(node_id)
            for dependent in self.adj[node_id]:
                missing[dependent] -= 1
                if missing[dependent] == 0:
                    heapq.heappush(free, position[dependent])
        if len(order) < len(ids):
            cycle = self._find_cycle([node_id for node_id in ids if missing[node_id]])
            raise ConfigError(
                f"Graph {self.graph_id!r} has a cycle: {' -> '.join(cycle)}. Remove one of these "
                "dependencies."
            )
        return order

    # Checking

    def validate_graph(self) -> tuple[bool, str | None]:
        """Whether all dependencies exist without a cycle; if not, the error as a sentence."""
        try:
            self.get_topological_sort()
        except ConfigError as error:
            return False, str(error)
        return True, None

    def check(self, *, loader_columns: Iterable[str] | None = None) -> None:
        """Check edges, functions, signatures and columns, before any process starts.

        Args:
            loader_columns: Columns of the first batch; None: assume that the loader provides those
                that entry nodes require, unless another node provides them.

        Raises:
            ConfigError: Names the node, the value and the remedy.
        """
        if not self.nodes:
            raise ConfigError(f"Graph {self.graph_id!r} has no nodes.")
        self.get_topological_sort()
        for node in self.nodes.values():
            node.check()
        self.check_columns(loader_columns=loader_columns)

    def check_columns(self, *, loader_columns: Iterable[str] | None = None) -> None:
        """Check that each node's required columns come from an ancestor or the loader.

        Nodes after one with undeclared columns are checked when that node has run.

        Raises:
            ConfigError: A column that no node provides, that is provided too late, or that two
                joined branches both write; or a join of rows that moved to other ranks with rows
                that stayed.
        """
        self.loader_columns = (
            self._entry_columns() if loader_columns is None else column_set(loader_columns)
        )
        for node_id in self.get_topological_sort():
            missing = sorted(
                self.nodes[node_id].required_columns
                - self.loader_columns
                - self._provided_before(node_id)
            )
            if missing and not self._has_undeclared_ancestor(node_id):
                self._refuse_column(node_id, missing[0])
        self._check_joins()
        self._check_moved_rows()

    def _reached(self, node_id: str, before: Callable[[str], list[str]]) -> set[str]:
        """Ids of the nodes to which `before` leads from `node_id`."""
        found: set[str] = set()
        waiting = list(before(self.get_node(node_id).node_id))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(before(name))
        return found

    def _resolve(self, name: str) -> str:
        """The id of an alias; any other name unchanged."""
        if name in self.nodes:
            return name
        return next((node_id for node_id, node in self.nodes.items() if name in node.aliases), name)

    def _check_dependencies(self) -> None:
        for node_id, names in self.rev_adj.items():
            for name in names:
                if name not in self.nodes:
                    kind = f"dependency of node {node_id!r} in graph {self.graph_id!r}"
                    raise UnknownNameError.of(kind=kind, name=name, known=self.nodes)

    def _check_joins(self) -> None:
        """Refuse joined branches that both declare to write a column."""
        put_out: dict[str, dict[str, str]] = {}
        for node_id in self.get_topological_sort():
            branches = {name: put_out[name] for name in self.get_sources(node_id)}
            written = dict.fromkeys(self.nodes[node_id].provided_columns or (), node_id)
            joined = joined_writers(
                node_id, branches, graph_id=self.graph_id, ancestors=self.get_writers
            )
            put_out[node_id] = {**joined, **written}

    def _check_moved_rows(self) -> None:
        """Refuse a join of rows that moved between ranks with rows that stayed."""
        for node_id in self.nodes:
            names = self.get_sources(node_id)
            moved = {name: self._movers_up_to(name) for name in names}
            for name in names[1:]:
                differing = moved[names[0]] ^ moved[name]
                if differing:
                    raise ConfigError(
                        f"Node {node_id!r} of graph {self.graph_id!r} joins {names[0]!r} and "
                        f"{name!r}, and {sorted(differing)[0]!r} on one of these paths moves rows "
                        "to other ranks. Put it before the split, or after the join."
                    )

    def _movers_up_to(self, node_id: str) -> set[str]:
        return {
            name
            for name in (*self.get_writers(node_id), node_id)
            if self.nodes[name].moves_rows and self.nodes[name].skip_reason is None
        }

    def _leads_to_sampling(self) -> set[str]:
        sampling = [
            node_id
            for node_id, node in self.nodes.items()
            if node.node_role is NodeRole.DYNAMIC_SAMPLING
        ]
        return set(sampling).union(*(self.get_ancestors(node_id) for node_id in sampling))

    def _find_cycle(self, candidates: list[str]) -> list[str]:
        """A cycle among nodes that wait for each other."""
        walk = [candidates[0]]
        while True:
            waits_for = next(name for name in self.rev_adj[walk[-1]] if name in candidates)
            if waits_for in walk:
                return list(reversed([*walk[walk.index(waits_for) :], waits_for]))
            walk.append(waits_for)

    def _entry_columns(self) -> frozenset[str]:
        """Columns of the prompts, plus further columns that nodes with prompts require and that no
        other node provides.
        """
        found = {*PROMPT_COLUMNS, PROMPT_ROW}
        for name, node in self.nodes.items():
            if not self.get_sources(name):
                others = [other for other in self.nodes.values() if other is not node]
                provided = (other.provided_columns or () for other in others)
                found |= node.required_columns.difference(*provided)
        return frozenset(found)

    def _provided_before(self, node_id: str) -> frozenset[str]:
        return frozenset().union(
            *(self.nodes[name].provided_columns or () for name in self.get_writers(node_id))
        )

    def _has_undeclared_ancestor(self, node_id: str) -> bool:
        return any(self.nodes[name].provided_columns is None for name in self.get_writers(node_id))

    def _refuse_column(self, node_id: str, column: str) -> None:
        own = self.nodes[node_id].agent_group
        elsewhere = [
            name
            for name, node in sorted(
                self.nodes.items(), key=lambda item: item[1].agent_group != own
            )
            if column in (node.provided_columns or ()) and name != node_id
        ]
        if elsewhere:
            raise ConfigError(
                f"Node {node_id!r} requires the column {column!r}, which {elsewhere[0]!r} "
                "provides, but that node does not come before it. "
                f"Add {elsewhere[0]!r} to the dependencies of {node_id!r} or of a node before it."
            )
        known = self._provided_before(node_id) | (self.loader_columns or frozenset())
        error = UnknownNameError.of(
            kind=f"column, required by node {node_id!r} and provided by no node before it:",
            name=column,
            known=known,
        )
        providers = providers_of(column)
        raise (
            UnknownNameError(f"{error} {column!r} is provided by {' and '.join(providers)}.")
            if providers
            else error
        )
