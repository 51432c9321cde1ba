"""Ensures that every policy trained by a graph acts with its new weights in the next step."""

from siirl.errors import ConfigError
from siirl.execution.dag.node import Node, NodeRole, NodeType
from siirl.execution.dag.task_graph import TaskGraph
from siirl.execution.dag.task_loader import trained_models

SYNC = "siirl.dag_worker.stages:sync_weights"
SYNC_ID = "sync_weights"


def check_one_policy(graph: TaskGraph) -> None:
    """Refuse nodes of several agent groups in a run without `agents`, which has one policy.

    Raises:
        ConfigError: Names the groups and the remedy.
    """
    groups = graph.agent_groups()
    if len(groups) > 1:
        nodes = [node.node_id for node in graph.get_nodes() if node.agent_group == groups[1]]
        entries = ", ".join(f"{group}: {{}}" for group in groups)
        raise ConfigError(
            f"Graph {graph.graph_id!r} has nodes of the agent groups "
            f"{', '.join(map(str, groups))}, and the run has the models of one: "
            f"{', '.join(nodes)} would train and act with the weights of group {groups[0]}. Give "
            f"each group its models, agents={{{entries}}}, or leave agent_group out of these nodes."
        )


def sync_at_the_end(graph: TaskGraph) -> None:
    """Add a sync of each trained policy that no BARRIER_SYNC node with the role ROLLOUT follows."""
    groups = sorted(
        group for model, group in trained_models(graph.get_nodes()) if model == "policy"
    )
    for group in groups:
        updates = [node for node in graph.get_nodes() if _updates(node, group)]
        late = [node.node_id for node in updates if not _is_synced(graph, node)]
        if late:
            graph.add_node(
                Node(
                    node_id=_free_id(graph, group, several=len(groups) > 1),
                    node_type=NodeType.BARRIER_SYNC,
                    node_role=NodeRole.ROLLOUT,
                    agent_group=group,
                    dependencies=late,
                    executable_ref=SYNC,
                )
            )


def _updates(node: Node, group: int) -> bool:
    return node.skip_reason is None and ("policy", group) in trained_models([node])


def _is_synced(graph: TaskGraph, node: Node) -> bool:
    return any(
        other.node_type is NodeType.BARRIER_SYNC
        and other.node_role is NodeRole.ROLLOUT
        and other.agent_group == node.agent_group
        and node.node_id in graph.get_ancestors(other.node_id)
        for other in graph.nodes.values()
    )


def _free_id(graph: TaskGraph, group: int, *, several: bool) -> str:
    wanted = f"{SYNC_ID}_{group}" if several else SYNC_ID
    taken = {name for node in graph.nodes.values() for name in (node.node_id, *node.aliases)}
    while wanted in taken:
        wanted += "_at_the_end"
    return wanted
