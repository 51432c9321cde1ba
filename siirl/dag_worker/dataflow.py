"""Runs one step of a graph: each node gets the output of its dependencies.

    prompts -> entry node -> its dependents -> ...

A node with one dependency gets its batch. A node with several gets the rows that all of them have,
joined by uid, with the columns of each (`siirl.data_coordinator.protocol.join`): a row that one
branch filtered out is not in the join. A node without dependencies, and a DATA_LOAD node, gets the
prompts of the step. An output is kept until its last reader has run. After a node without declared
columns has run, its columns are known, and the graph is checked again.

The order is fixed and the same on every rank, because nodes call collectives. Some nodes can start
work ahead (`siirl.execution.dag.stage`), such as a text reward in processes. Their work starts when
their dependencies have run; the node is called as late as its dependents permit, and other nodes
run meanwhile. If a node asks for more prompts (`NodeOutput.more_prompts`), only its ancestors run
on them; nodes that read those ancestors later get the rows of all rounds. Entry nodes whose rows
are later joined with the asking node's rows get the prompts of all rounds. Left out: how a node is
called (DAGWorker).
"""

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch.profiler import record_function

from siirl.data_coordinator.protocol.join import append_rows, join_batches, positions_in, same_rows
from siirl.errors import ConfigError
from siirl.execution.dag import Node, NodeOutput, NodeStatus, TaskGraph
from siirl.execution.dag.resource_groups import acts, trains
from siirl.execution.dag.stage import declared_start
from siirl.execution.dag.writers import LOADER, Writers, joined_writers

Call = Callable[[Node, TensorDict, Any], NodeOutput]
"""Calls a node's function on its input, with the result of work started ahead (or None)."""
Begin = Callable[[Node, TensorDict], "Future[Any] | None"]
"""Starts a node's work on its input outside this thread; None if the node cannot do that."""
Draw = Callable[[int, int], TensorDict]
"""This rank's prompts for an agent group: those of the step (0), or its share of further ones."""

RollOut = Callable[[TensorDict], Awaitable[TensorDict]]
"""Plays the episodes of a batch of prompts; returns their rows."""


@dataclass
class _RoundState:
    """Outputs of the nodes that have run in a step, or in a refill of it."""

    nodes: frozenset[str]
    """Ids of the nodes that run in this round, or read its outputs."""
    more: int
    """Prompts of the refill; 0 in the step itself."""
    outputs: dict[str, TensorDict] = field(default_factory=dict)
    writers: dict[str, Writers] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)
    """Readers of each output that have not run."""
    done: set[str] = field(default_factory=set)
    prompts: dict[int, TensorDict] = field(default_factory=dict)
    """By agent group."""
    further: dict[str, list[TensorDict]] = field(default_factory=dict)
    """Prompts of refills, by the entry node that gets them as well."""
    begun: dict[str, "_StartedNode"] = field(default_factory=dict)
    """Nodes whose work has started and that have not been called yet."""


@dataclass(frozen=True)
class _StartedNode:
    """A node's work that runs outside this thread, and its input."""

    batch: TensorDict
    writers: Writers
    work: Future[Any] | None


class Dataflow:
    """Executor of a graph on one rank.

    Args:
        graph: The checked graph.
        call: Calls one node.
        begin: Begins the work of one.
        draw: Draws prompts.
    """

    def __init__(self, graph: TaskGraph, *, call: Call, begin: Begin, draw: Draw) -> None:
        self.graph = graph
        self.call = call
        self.begin = begin
        self.draw = draw
        joins = [name for name in graph.nodes if len(graph.get_sources(name)) > 1]
        self._meets_later = frozenset().union(*(graph.get_writers(name) for name in joins))
        """Nodes whose outputs are joined later, so that their columns are compared."""

    def run_step(self) -> None:
        """Run every node once, on the prompts of one step."""
        for node in self.graph.nodes.values():
            if node.skip_reason is None:
                node.status = NodeStatus.PENDING
        step = _RoundState(nodes=frozenset(self.graph.nodes), more=0)
        try:
            for node, begins in self._order:
                self._mark_ready(step)
                if begins:
                    self._begin(node, step)
                else:
                    self._run(node, step)
        finally:  # an error elsewhere must not leave a thread behind that uses a closed reward
            wait([begun.work for begun in step.begun.values() if begun.work is not None])

    async def run_beside(self, prompts: TensorDict, *, roll_out: RollOut) -> None:
        """Run every node once on `prompts`; other calls of this method may be waiting for episodes
        meanwhile.

        Args:
            prompts: The entry nodes get them.
            roll_out: Replaces the function of nodes that act; nothing else is awaited.
        """
        groups = self.graph.agent_groups()
        step = _RoundState(
            frozenset(self.graph.nodes), more=0, prompts=dict.fromkeys(groups, prompts)
        )
        for node in self.graph.get_nodes():
            if not acts(node):
                self._run(node, step)
                continue
            batch, writers = self._input(node, step)
            rows = await roll_out(batch)
            self._keep(node, step, before=batch, after=rows, writers=writers)

    @functools.cached_property
    def _order(self) -> list[tuple[Node, bool]]:
        """`running_order`, the same in every step; the graph is complete before the first one."""
        return running_order(self.graph)

    def _mark_ready(self, this: _RoundState) -> None:
        for name, before in self.graph.rev_adj.items():
            node = self.graph.nodes[name]
            if node.status is NodeStatus.PENDING and this.done.issuperset(before):
                node.status = NodeStatus.READY

    def _begin(self, node: Node, this: _RoundState) -> None:
        with record_function(f"{range_name(node)}: start"):
            batch, writers = self._input(node, this)
            this.begun[node.node_id] = _StartedNode(batch, writers, self.begin(node, batch))

    def _run(self, node: Node, this: _RoundState) -> None:
        with record_function(range_name(node)):
            self._run_to_end(node, this)

    def _run_to_end(self, node: Node, this: _RoundState) -> None:
        begun = this.begun.pop(node.node_id, None)
        if begun is None:
            (before, writers), started = self._input(node, this), None
        else:
            before, writers = begun.batch, begun.writers
            started = None if begun.work is None else begun.work.result()
        undeclared = node.provided_columns is None
        rows = before
        while True:
            versions = _versions(rows)
            output = self.call(node, rows, started)
            changed = [name for name, found in _versions(rows).items() if found != versions[name]]
            self._refuse_shared(changed, rows, node, this)
            writers = {**writers, **dict.fromkeys(changed, node.node_id)}
            if not output.more_prompts:
                break
            more, fresh = self._refill(node, this, prompts=output.more_prompts)
            before = append_rows(before, more)
            rows, started = append_rows(output.batch, more), None
            writers = {**writers, **fresh}
        if undeclared:
            self.graph.check_columns(loader_columns=self.graph.loader_columns)
        self._keep(node, this, before=before, after=output.batch, writers=writers)

    def _refuse_shared(
        self, changed: Sequence[str], rows: TensorDict, node: Node, this: _RoundState
    ) -> None:
        """Raise ConfigError if `node` changed in place a tensor that other nodes will read."""
        if not changed:
            return
        shared = {_address(value) for held in self._unread(node, this) for value in held.values()}
        for name in changed:
            if _address(rows[name]) in shared - {None}:
                raise ConfigError(
                    f"Node {node.node_id!r} changed the column {name!r} in place, and other "
                    "nodes share the tensor. Assign a new one: "
                    f"batch[{name!r}] = batch[{name!r}] + 1 instead of batch[{name!r}] += 1."
                )

    def _unread(self, node: Node, this: _RoundState) -> Iterator[TensorDict]:
        """Batches that nodes other than `node` have yet to read."""
        yield from this.outputs.values()
        yield from (begun.batch for begun in this.begun.values())
        for name, other in self.graph.nodes.items():
            waits = name not in this.done and other is not node and not self.graph.get_sources(name)
            if waits and other.agent_group in this.prompts:
                yield this.prompts[other.agent_group]

    def _input(self, node: Node, this: _RoundState) -> tuple[TensorDict, Writers]:
        names = self.graph.get_sources(node.node_id)
        for name in set(self.graph.rev_adj[node.node_id]) - set(names):
            self._release(name, this)
        if not names:
            if node.agent_group not in this.prompts:
                this.prompts[node.agent_group] = self.draw(node.agent_group, this.more)
            prompts = this.prompts[node.agent_group]
            writers = {str(name): LOADER for name in prompts.keys()}
            for more in this.further.get(node.node_id, ()):
                prompts = append_rows(prompts, more)
            return prompts, writers
        batches = [this.outputs[name] for name in names]
        known = {name: this.writers[name] for name in names if name in this.writers}
        for name in names:
            self._release(name, this)
        if len(names) == 1:
            return batches[0], next(iter(known.values()), {})
        joined = joined_writers(
            node.node_id,
            known,
            graph_id=self.graph.graph_id,
            ancestors=self.graph.get_writers,
        )
        source = {}
        for column, writer in joined.items():
            source[column] = next(
                position for position, name in enumerate(names) if known[name].get(column) == writer
            )
        unwritten = [column for column, writer in joined.items() if writer == LOADER]
        return join_batches(batches, source=source, unwritten=unwritten), joined

    def _keep(
        self,
        node: Node,
        this: _RoundState,
        *,
        before: TensorDict,
        after: TensorDict,
        writers: Writers,
    ) -> None:
        this.done.add(node.node_id)
        readers = sum(name in this.nodes for name in self.graph.adj[node.node_id])
        if not readers:
            return
        this.outputs[node.node_id], this.readers[node.node_id] = after, readers
        if node.node_id in self._meets_later:
            this.writers[node.node_id] = writers_after(
                node, before=before, after=after, inherited=writers
            )

    def _release(self, name: str, this: _RoundState) -> None:
        if name not in this.readers:
            return  # a DATA_LOAD node waits for it, and the refill does not run it
        this.readers[name] -= 1
        if not this.readers[name]:
            del this.outputs[name]

    def _refill(self, node: Node, this: _RoundState, *, prompts: int) -> tuple[TensorDict, Writers]:
        """The input of `node` on further prompts; other readers of its ancestors get the rows too.

        Raises:
            ConfigError: An ancestor trains, or was read by a node outside of the refill.
        """
        before = self.graph.get_writers(node.node_id)
        self._check_refill(node, before, this)
        refill = _RoundState(nodes=frozenset({node.node_id, *before}), more=prompts)
        kept = {name: this.outputs[name] for name in before if name in this.outputs}
        others = self._entries_met_by(node)
        self._check_entries(node, others, this)
        for earlier in self.graph.get_nodes():
            if earlier.node_id not in before:
                continue
            self._run(earlier, refill)
            if earlier.node_id in kept:
                name = earlier.node_id
                this.outputs[name] = append_rows(kept[name], refill.outputs[name])
        rows = self._input(node, refill)  # draws prompts if `node` is an entry node
        for name in others:
            drawn = refill.prompts.get(self.graph.nodes[name].agent_group)
            if drawn is not None:
                this.further.setdefault(name, []).append(drawn)
        return rows

    def _entries_met_by(self, node: Node) -> list[str]:
        """Entry nodes that do not lead to `node`, but whose rows are later joined with its rows."""
        # each node, and all nodes that its rows have passed
        lines = {name: {name, *self.graph.get_writers(name)} for name in self.graph.nodes}
        joined = set[str]().union(*(line for line in lines.values() if node.node_id in line))
        return [
            name
            for name in self.graph.nodes
            if name in joined
            and name not in lines[node.node_id]
            and node.node_id not in lines[name]
            and not self.graph.get_sources(name)
        ]

    def _check_entries(self, node: Node, entries: Iterable[str], this: _RoundState) -> None:
        for name in entries:
            if name in {*this.done, *this.begun}:
                raise ConfigError(
                    f"Node {node.node_id!r} requests more prompts after {name!r} has run on the "
                    "prompts of the step. Their rows are joined later, and the join would drop all "
                    f"rows of the additional prompts. Give {node.node_id!r} "
                    f"node_role=DYNAMIC_SAMPLING, so that it runs first, or make {name!r} depend "
                    "on it."
                )

    def _check_refill(self, node: Node, before: Iterable[str], this: _RoundState) -> None:
        for name in before:
            if trains(self.graph.nodes[name]):
                raise ConfigError(
                    f"Node {node.node_id!r} asks for more prompts, but {name!r} trains before it "
                    "and would train twice in a step. Train after it."
                )
            for reader in self.graph.adj[name]:
                reads = name in self.graph.get_sources(reader)
                if reads and reader in {*this.done, *this.begun} and reader not in before:
                    raise ConfigError(
                        f"Node {node.node_id!r} asks for more prompts after {reader!r} has read "
                        f"{name!r}, which the refill runs again. Give {node.node_id!r} "
                        "node_role=DYNAMIC_SAMPLING, so that it comes first, or let "
                        f"{reader!r} depend on it."
                    )


def range_name(node: Node) -> str:
    """Name of the node's range in the trace of a profiled step; torch does not escape quotes."""
    return node.node_id.replace('"', "'")


def running_order(graph: TaskGraph) -> list[tuple[Node, bool]]:
    """Nodes in calling order, and the places where work starts ahead (True).

    A node with work started ahead is called right before the first node that depends on it.
    """
    nodes = graph.get_nodes()
    order = [node.node_id for node in nodes]
    steps = [(node, False) for node in nodes]
    for node in nodes:
        if node.skip_reason is not None or declared_start(node.executable) is None:
            continue
        needed = graph.adj[node.node_id]
        called = min((order.index(name) for name in needed), default=len(order))
        begun = order.index(node.node_id)
        between = order[begun + 1 : called]
        if not between:
            continue
        steps.remove((node, False))
        position = next(
            (
                at
                for at, (other, begins) in enumerate(steps)
                if not begins and other.node_id in needed
            ),
            len(steps),
        )
        steps.insert(position, (node, False))
        first = next(at for at, (other, _) in enumerate(steps) if other.node_id == between[0])
        steps.insert(first, (node, True))
    return steps


def writers_after(
    node: Node, *, before: TensorDict, after: TensorDict, inherited: Writers
) -> dict[str, str]:
    """Writer of each column of a node's output: the node itself, or the writer of the input's
    column.

    An undeclared column is compared with the input's: selecting rows does not count as writing.
    """
    declared = node.provided_columns or frozenset()
    places = None
    found: dict[str, str] = {}
    for name, value in after.items():
        if name in declared or name not in inherited:
            found[name] = node.node_id
            continue
        found[name] = inherited[name]
        if value is before.get(name):
            continue
        places = positions_in(before, of=after) if places is None else places
        if places is None or not same_rows(before, after, name, places):
            found[name] = node.node_id
    return found


def _versions(batch: TensorDict) -> dict[str, int]:
    """How often each tensor was changed in place."""
    return {
        name: value._version
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and not value.is_inference()
    }


def _address(value: Any) -> int | None:
    """Address of a column's data; None if it has none."""
    numbers = isinstance(value, torch.Tensor) and value.numel() > 0
    return value.untyped_storage().data_ptr() if numbers else None
