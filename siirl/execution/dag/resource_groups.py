"""Resource groups: assigns nodes to groups of ranks, and cuts the graph between them.

A node belongs to the group that it names (`group=`). Otherwise it belongs to `rollout` if the run
has that group and the node acts with the policy, precedes a node that does, or gets the prompts.
All other nodes belong to `train`. `cut_graph` makes a graph for each group. An edge from one group
to another becomes a PUT_TO_BUFFER node at its beginning and a GET_FROM_BUFFER node at its end, one
pair for each agent group that draws prompts. Rows that are read together are joined first. The
functions are pure: graphs in, graphs out. Left out: the number of ranks of a group
(`siirl.execution.scheduler.task_scheduler`), and the buffers (`siirl.dag_worker.separate`).
"""

from collections.abc import Collection, Mapping, Sequence

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag.node import Node, NodeRole, NodeType
from siirl.execution.dag.task_graph import TaskGraph

ROLLOUT, TRAIN = "rollout", "train"
GROUPS = (TRAIN, ROLLOUT)
"""Group names that a run may have; rank 0 belongs to the first."""
PUT = "siirl.dag_worker.stages:put_to_group"
GET = "siirl.dag_worker.stages:get_from_group"


def group_of_node(graph: TaskGraph, node: Node, *, groups: Collection[str]) -> str:
    """The group of the run that runs `node`.

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


def check_group_names(graph: TaskGraph) -> None:
    """Refuse nodes of unknown groups, even in a run without groups, which ignores the names.

    Raises:
        UnknownNameError: See `group_of_node`.
    """
    for node in graph.nodes.values():
        group_of_node(graph, node, groups=GROUPS)


def acts(node: Node) -> bool:
    """Whether the node plays episodes with the policy."""
    if node.node_type is NodeType.BARRIER_SYNC:  # loads new weights
        return False
    return node.node_role is NodeRole.ROLLOUT or node.node_type is NodeType.ENV_INTERACT


def trains(node: Node) -> bool:
    """Whether the node changes weights."""
    return node.node_type is NodeType.MODEL_TRAIN and not node.only_forward_compute


def cut_graph(graph: TaskGraph, *, groups: Collection[str]) -> dict[str, TaskGraph]:
    """One graph for each of `groups`, in the order of `GROUPS`.

    With the group `train` alone this is the graph itself.

    Raises:
        ConfigError: A group without nodes; a node in a group that cannot run it, or that reads data
            of the other group; or several nodes whose rows pass to `train` but are not read
            together.
    """
    owner = {
        node.node_id: group_of_node(graph, node, groups=groups) for node in graph.nodes.values()
    }
    if set(groups) == {TRAIN}:
        return {TRAIN: graph}
    _check_owners(graph, owner, groups)
    graph = _with_joins(graph, owner)
    sources = _sources(graph, owner)
    _check_joins(graph, owner, sources)
    return {
        group: _part(graph, group=group, owner=owner, sources=sources)
        for group in GROUPS
        if group in groups
    }


def part_of_agent(graph: TaskGraph, group: int) -> TaskGraph:
    """The nodes of one agent group, in a graph whose agents read no rows of each other."""
    part = TaskGraph(f"{graph.graph_id}/{group}", graph.description)
    for node in graph.nodes.values():
        if node.agent_group == group:
            part.add_node(node)
    return part


def put_node_id(source: str) -> str:
    """Id of the node that puts the rows of `source`."""
    return f"put_{source}"


def get_node_id(source: str) -> str:
    """Id of the node that gets the rows of `source`."""
    return f"get_{source}"


def put_of(get: str) -> str:
    """Id of the node that puts the rows for the node `get`."""
    return put_node_id(get.removeprefix(get_node_id("")))


def _with_joins(graph: TaskGraph, owner: dict[str, str]) -> TaskGraph:
    """The graph, with joins added to `rollout`. An agent gets a join of several nodes if its nodes
    of `train` always read these nodes together; `owner` gets the new node as well.
    """
    reads: dict[str, list[str]] = {}
    for name in graph.nodes:
        if owner[name] == TRAIN:
            reads[name] = [before for before in graph.rev_adj[name] if owner[before] == ROLLOUT]
    joined = graph.copy()
    for name, before in graph.rev_adj.items():
        joined.nodes[name].dependencies = list(before)  # as ids: a node may name aliases
    for agent in graph.agent_groups():
        found = [
            names
            for names in reads.values()
            if agent in {graph.nodes[name].agent_group for name in names}
        ]
        names = found[0] if found else []
        one_agent = all(graph.nodes[name].agent_group == agent for name in names)
        if len(names) < 2 or not one_agent or any(set(other) != set(names) for other in found):
            continue
        name = "_and_".join(names)
        while any(name in (node.node_id, *node.aliases) for node in joined.nodes.values()):
            name += "_joined"
        join = Node(name, NodeType.COMPUTE, agent_group=agent, dependencies=names)
        joined.add_node(join)
        owner[join.node_id] = ROLLOUT
        for reader in reads:
            joined.nodes[reader].dependencies = [
                join.node_id if name in names else name
                for name in joined.nodes[reader].dependencies
            ]
    joined.update_edges()
    return joined


def _sources(graph: TaskGraph, owner: Mapping[str, str]) -> list[str]:
    """The nodes whose rows pass to `train`: one for each agent group that draws prompts."""
    crossing = [
        name
        for name in graph.get_topological_sort()
        if any(owner[after] != owner[name] for after in graph.adj[name])
    ]
    drawing = {graph.nodes[name].agent_group for name, group in owner.items() if group == ROLLOUT}
    for agent in sorted(drawing):
        found = [name for name in crossing if graph.nodes[name].agent_group == agent]
        if len(found) != 1:
            whose = f"Graph {graph.graph_id!r}"
            if len(drawing) > 1:
                whose += f", agent group {agent}"
            raise ConfigError(
                f"{whose}: the rows of {len(found)} nodes pass from the group {ROLLOUT!r} to "
                f"{TRAIN!r} ({', '.join(found) or 'none'}), but there is only one buffer. Give one "
                f"of the two groups to more nodes (group=), so that {TRAIN!r} reads one node of "
                f"{ROLLOUT!r}, or the same nodes everywhere."
            )
    return crossing


def _check_joins(graph: TaskGraph, owner: Mapping[str, str], sources: Sequence[str]) -> None:
    """Refuse nodes of `rollout` that read another agent's nodes, and nodes of `train` that join
    rows of several buffers: each buffer is divided among the ranks separately, by work.
    """
    for node in graph.nodes.values():
        for before in graph.rev_adj[node.node_id]:
            other = graph.nodes[before].agent_group
            if owner[node.node_id] == ROLLOUT and other != node.agent_group:
                raise ConfigError(
                    f"Node {node.node_id!r} of agent group {node.agent_group} and of the group "
                    f"{ROLLOUT!r} reads {before!r} of agent group {other}. Rollout ranks run the "
                    f"prompts of each agent separately: set group={TRAIN}, or agent_group={other}."
                )
        met = [name for name in sources if name in graph.get_ancestors(node.node_id)]
        if owner[node.node_id] == TRAIN and len(met) > 1:
            raise ConfigError(
                f"Node {node.node_id!r} joins rows of {' and '.join(map(repr, met))}, which come "
                f"from the group {ROLLOUT!r} through separate buffers, each divided separately. "
                "Let it depend on one of them, or leave dag.groups out."
            )


def _check_owners(graph: TaskGraph, owner: Mapping[str, str], groups: Collection[str]) -> None:
    for group in groups:
        if group not in owner.values():
            raise ConfigError(
                f"dag.groups names {group!r}, but no node of graph {graph.graph_id!r} belongs to "
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
    """Whether a rank of the group `rollout`, which has only the acting policy, can run it."""
    computes = node.node_type in (NodeType.COMPUTE, NodeType.CUSTOM, NodeType.DATA_LOAD)
    return computes or (acts(node) and not trains(node))


def _part(
    graph: TaskGraph, *, group: str, owner: Mapping[str, str], sources: Sequence[str]
) -> TaskGraph:
    part = TaskGraph(f"{graph.graph_id}/{group}", graph.description)
    received = {name: get_node_id(name) for name in sources if owner[name] != group}
    for node in graph.nodes.values():
        if owner[node.node_id] != group:
            continue
        for name in graph.rev_adj[node.node_id]:  # rows are awaited when they are first read
            if name in received and received[name] not in part.nodes:
                part.add_node(_get_node(graph, name))
        own = node.copy()
        own.dependencies = [received.get(name, name) for name in graph.rev_adj[node.node_id]]
        part.add_node(own)
    for name in sources:
        if name not in received:
            part.add_node(_put_node(graph.nodes[name]))
    return part


def _put_node(source: Node) -> Node:
    return Node(
        put_node_id(source.node_id),
        NodeType.PUT_TO_BUFFER,
        agent_group=source.agent_group,
        dependencies=[source.node_id],
        executable_ref=PUT,
        provides=(),
    )


def _get_node(graph: TaskGraph, source: str) -> Node:
    """The node that gets the rows of `source`, with all their columns at that point."""
    before = [graph.nodes[name] for name in (*graph.get_writers(source), source)]
    provided = [node.provided_columns for node in before]
    loaded = frozenset().union(*(node.required_columns for node in before))
    columns = loaded.union(*(names or () for names in provided))
    return Node(
        get_node_id(source),
        NodeType.GET_FROM_BUFFER,
        agent_group=graph.nodes[source].agent_group,
        executable_ref=GET,
        provides=None if None in provided else columns,
    )
