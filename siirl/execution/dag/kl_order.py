"""KL in the reward needs the log-probs first: moves their nodes before the reward."""

from siirl.errors import ConfigError
from siirl.execution.dag.node import Node, NodeRole
from siirl.execution.dag.task_graph import TaskGraph


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
                f"must come before {reward!r}, which is on another path than {rewards[0]!r}. Add "
                "the dependency, or set algorithm.use_kl_in_reward=false."
            )
    graph.check_columns()


def _move_before(graph: TaskGraph, node: Node, reward: str) -> None:
    """Remove `node` from its place and insert it between the reward and the reward's dependencies."""
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
