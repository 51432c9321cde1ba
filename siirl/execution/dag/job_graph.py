"""Fits a graph to its job before it runs.

Forward passes whose result no node uses are skipped, with a reason. A KL in the reward moves the
log-probs before the reward. A sync lets every trained policy act with its new weights in the next
step. The caller decides what is needed (whether there is a KL, whether the policy has changed),
because a graph does not see the configuration.
"""

from siirl.errors import ConfigError
from siirl.execution.dag.node import Node, NodeRole, NodeType
from siirl.execution.dag.task_graph import TaskGraph
from siirl.execution.dag.task_loader import trained_models, update_nodes

NO_KL = "no KL has a weight (actor_rollout_ref.actor.use_kl_loss, algorithm.use_kl_in_reward)"
ON_POLICY = "the rollout's log-probs serve as the old ones"
SYNC = "siirl.dag_worker.stages:sync_weights"
SYNC_ID = "sync_weights"


def skip_unused(
    graph: TaskGraph, *, needs_reference: bool, needs_old_log_probs: bool, group: int | None = None
) -> None:
    """Skip the nodes of reference and old log-probs where they are not needed.

    Args:
        graph: The graph.
        needs_reference: Whether a KL to the reference is computed.
        needs_old_log_probs: Whether old log-probs must be computed, because those of acting cannot
            be used.
        group: Agent group whose nodes are considered; None: all.

    Raises:
        ConfigError: A reference is needed, but the graph has no node for it.
    """
    nodes = [node for node in graph.get_nodes() if group in (None, node.agent_group)]
    references = [node.node_id for node in nodes if node.node_role is NodeRole.REFERENCE]
    if needs_reference and not references:
        raise ConfigError(
            f"The configuration has a KL to the reference policy, but graph {graph.graph_id!r} "
            "has no node with the role REFERENCE: add one, or set "
            "actor_rollout_ref.actor.use_kl_loss=false and algorithm.use_kl_in_reward=false."
        )
    for node_id in [] if needs_reference else references:
        graph.skip_node(node_id, reason=NO_KL)
    old = [
        node.node_id
        for node in nodes
        if node.node_role is NodeRole.ACTOR and node.only_forward_compute
    ]
    for node_id in [] if needs_old_log_probs else old:
        graph.skip_node(node_id, reason=ON_POLICY)


def order_for_kl_in_reward(
    graph: TaskGraph, *, use_kl_in_reward: bool, group: int | None = None
) -> None:
    """Move log-prob nodes that come after the first reward to right before it.

    With `group` only the nodes of that agent group are moved.

    Their former dependents then depend on their former dependencies. A graph without a node for old
    log-probs is fine: behaviour log-probs (`rollout_log_probs`) serve instead.

    Raises:
        ConfigError: The graph has no reference, a second reward comes before the log-probs on
            another path, or a moved node lacks a column there.
    """
    if not use_kl_in_reward:
        return
    nodes = [node for node in graph.get_nodes() if group in (None, node.agent_group)]
    references = [node for node in nodes if node.node_role is NodeRole.REFERENCE]
    rewards = [node.node_id for node in nodes if node.node_role is NodeRole.REWARD]
    if not references:
        raise ConfigError(
            f"algorithm.use_kl_in_reward=true, but graph {graph.graph_id!r} has no node with the "
            "role REFERENCE. Add one before the reward, or set it to false."
        )
    if not rewards:
        return
    for node in [*(node for node in nodes if _is_old_log_prob(node)), *references]:
        if node.node_id not in graph.get_ancestors(rewards[0]):
            _move_before(graph, node, rewards[0])
    for reward in rewards[1:]:
        late = [
            node.node_id for node in references if node.node_id not in graph.get_ancestors(reward)
        ]
        if late:
            raise ConfigError(
                "KL in the reward needs the log-prob nodes before the reward: in graph "
                f"{graph.graph_id!r} {' and '.join(map(repr, late))} "
                f"must come before {reward!r}, which is on a different path from {rewards[0]!r}. "
                "Add the dependency, or set algorithm.use_kl_in_reward=false."
            )
    graph.check_columns()


def _move_before(graph: TaskGraph, node: Node, reward: str) -> None:
    """Move `node` between the reward and the reward's dependencies."""
    dependents = graph.get_dependents(node.node_id)
    graph.remove_node(node.node_id)
    node.dependencies = list(graph.nodes[reward].dependencies)
    graph.nodes[reward].dependencies = [node.node_id]
    graph.add_node(node)
    for dependent in dependents:
        _drop_implied_dependencies(graph, dependent)


def _drop_implied_dependencies(graph: TaskGraph, node: Node) -> None:
    """Remove dependencies that another dependency of `node` already implies."""
    names = graph.rev_adj[node.node_id]
    implied = set[str]().union(*(graph.get_ancestors(name) for name in names))
    node.dependencies = [name for name in names if name not in implied]
    graph.update_edges()


def _is_old_log_prob(node: Node) -> bool:
    return node.node_role is NodeRole.ACTOR and node.only_forward_compute


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
            f"{', '.join(map(str, groups))}, but the run has the models of one: {', '.join(nodes)} "
            f"would train and act with the weights of group {groups[0]}. Give each group its "
            f"models, agents={{{entries}}}, or leave agent_group out of these nodes."
        )


def sync_at_the_end(graph: TaskGraph) -> None:
    """Add a sync of each trained policy that no BARRIER_SYNC node with the role ROLLOUT follows."""
    groups = sorted(
        group for model, group in trained_models(graph.get_nodes()) if model == "policy"
    )
    for group in groups:
        updates = update_nodes(graph, ("policy", group))
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


def _is_synced(graph: TaskGraph, node: Node) -> bool:
    return any(
        other.syncs_weights
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
