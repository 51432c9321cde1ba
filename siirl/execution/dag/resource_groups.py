"""Resource groups: assigns nodes to groups of ranks, and cuts the graph between them.

A node belongs to the group that it names (`group=`). Otherwise it belongs to `rollout`, if the run
has that group, and if it acts with the policy, comes before a node that does, or gets the prompts;
else to `train`. `cut_graph` makes a graph for each group: an
edge from one group to another becomes a PUT_TO_BUFFER node at its beginning and a GET_FROM_BUFFER
node at its end. Pure: graphs in, graphs out. Left out: the number of ranks of a group
(`siirl.execution.scheduler.task_scheduler`), and the buffer (`siirl.dag_worker.separate`).
"""

from collections.abc import Collection, Mapping

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag.node import Node, NodeRole, NodeType
from siirl.execution.dag.task_graph import TaskGraph

ROLLOUT, TRAIN = "rollout", "train"
GROUPS = (TRAIN, ROLLOUT)
"""Names that a run may have; rank 0 belongs to the first."""
PUT = "siirl.dag_worker.stages:put_to_group"
GET = "siirl.dag_worker.stages:get_from_group"


def group_of_node(graph: TaskGraph, node: Node, *, groups: Collection[str]) -> str:
    """The group that runs `node`, of those that the run has.

    Raises:
        UnknownNameError: The node names a group that the run lacks.
    """
    if node.group is not None:
        if node.group not in groups:
            raise UnknownNameError.of(
                kind=f"resource group of node {node.node_id!r} (dag.groups)",
                name=node.group,
                known=sorted(groups),
            )
        return node.group
    if ROLLOUT not in groups or trains(node):
        return TRAIN
    after = [other for other in graph.nodes if node.node_id in graph.get_ancestors(other)]
    leads = any(acts(graph.nodes[other]) for other in (node.node_id, *after))
    return ROLLOUT if leads or not graph.get_sources(node.node_id) else TRAIN


def acts(node: Node) -> bool:
    """Whether the node plays episodes with the policy."""
    if node.node_type is NodeType.BARRIER_SYNC:  # takes over new weights
        return False
    return node.node_role is NodeRole.ROLLOUT or node.node_type is NodeType.ENV_INTERACT


def trains(node: Node) -> bool:
    """Whether the node changes weights."""
    return node.node_type is NodeType.MODEL_TRAIN and not node.only_forward_compute


def cut_graph(graph: TaskGraph, *, groups: Collection[str]) -> dict[str, TaskGraph]:
    """One graph for each of `groups`, in the order of `GROUPS`.

    With the group `train` alone this is the graph itself.

    Raises:
        ConfigError: A group without nodes, a node in a group that cannot run it or that reads what
            only the other has, or several nodes whose rows pass to `train`.
    """
    owner = {
        node.node_id: group_of_node(graph, node, groups=groups) for node in graph.nodes.values()
    }
    if set(groups) == {TRAIN}:
        return {TRAIN: graph}
    _check_owners(graph, owner, groups)
    crossing = [
        name
        for name in graph.get_topological_sort()
        if any(owner[after] != owner[name] for after in graph.adj[name])
    ]
    if len(crossing) != 1:
        raise ConfigError(
            f"Graph {graph.graph_id!r}: the rows of {len(crossing)} nodes pass from the group "
            f"{ROLLOUT!r} to {TRAIN!r} ({', '.join(crossing) or 'none'}), and there is one buffer. "
            f"Give one of the two groups to more nodes (group=), so that one node of {ROLLOUT!r} "
            f"is read by {TRAIN!r}."
        )
    return {
        group: _part(graph, group=group, owner=owner, source=crossing[0])
        for group in GROUPS
        if group in groups
    }


def put_node_id(source: str) -> str:
    """Id of the node that puts the rows of `source`."""
    return f"put_{source}"


def get_node_id(source: str) -> str:
    """Id of the node that gets the rows of `source`."""
    return f"get_{source}"


def _check_owners(graph: TaskGraph, owner: Mapping[str, str], groups: Collection[str]) -> None:
    for group in groups:
        if group not in owner.values():
            raise ConfigError(
                f"dag.groups names {group!r}, and no node of graph {graph.graph_id!r} belongs to "
                "it: leave the group out, or give it a node (group=)."
            )
    for node in graph.nodes.values():
        if owner[node.node_id] == ROLLOUT and not _may_roll_out(node):
            kind = f"{node.node_type.value}/{node.node_role.value}"
            raise ConfigError(
                f"Node {node.node_id!r} ({kind}) needs the models or the process group that only "
                f"the group {TRAIN!r} has: set group={TRAIN}, or leave its group out."
            )
        if owner[node.node_id] == TRAIN and not graph.get_sources(node.node_id):
            raise ConfigError(
                f"Node {node.node_id!r} gets the prompts, which the group {ROLLOUT!r} draws: set "
                f"group={ROLLOUT}, or leave its group out."
            )
        for before in graph.rev_adj[node.node_id]:
            if owner[node.node_id] == ROLLOUT and owner[before] == TRAIN:
                raise ConfigError(
                    f"Node {node.node_id!r} of the group {ROLLOUT!r} reads {before!r} of the group "
                    f"{TRAIN!r}: rows pass from {ROLLOUT!r} to {TRAIN!r} only. Give both one group."
                )


def _may_roll_out(node: Node) -> bool:
    """Whether a rank of the group `rollout`, which has the acting policy alone, can run it."""
    computes = node.node_type in (NodeType.COMPUTE, NodeType.CUSTOM, NodeType.DATA_LOAD)
    return computes or (acts(node) and not trains(node))


def _part(graph: TaskGraph, *, group: str, owner: Mapping[str, str], source: str) -> TaskGraph:
    part = TaskGraph(f"{graph.graph_id}/{group}", graph.description)
    receives = owner[source] != group
    if receives:
        part.add_node(_get_node(graph, source))
    for node in graph.nodes.values():
        if owner[node.node_id] != group:
            continue
        own = node.copy()
        own.dependencies = [
            get_node_id(source) if name == source and receives else name
            for name in graph.rev_adj[node.node_id]
        ]
        part.add_node(own)
    if not receives:
        part.add_node(
            Node(put_node_id(source), NodeType.PUT_TO_BUFFER, executable_ref=PUT, provides=())
        )
        part.nodes[put_node_id(source)].dependencies = [source]
        part.update_edges()
    return part


def _get_node(graph: TaskGraph, source: str) -> Node:
    """The node that gets the rows of `source`, with all columns that they have at that point."""
    before = [graph.nodes[name] for name in (*graph.get_writers(source), source)]
    provided = [node.provided_columns for node in before]
    loaded = frozenset().union(*(node.required_columns for node in before))
    columns = loaded.union(*(names or () for names in provided))
    return Node(
        get_node_id(source),
        NodeType.GET_FROM_BUFFER,
        executable_ref=GET,
        provides=None if None in provided else columns,
    )
