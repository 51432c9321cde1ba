"""Rules on the order of nodes that the columns alone do not tell."""

from siirl.errors import ConfigError
from siirl.execution.dag.node import Node, NodeRole
from siirl.execution.dag.task_graph import TaskGraph


def check_kl_in_reward_order(graph: TaskGraph, *, use_kl_in_reward: bool) -> None:
    """KL in the reward needs the log-probs before the reward.

    A graph without a node for old log-probs is fine: behaviour log-probs (`rollout_log_probs`)
    serve instead.

    Raises:
        ConfigError: A reward node before a log-prob node, or no reference at all.
    """
    if not use_kl_in_reward:
        return
    nodes = graph.get_nodes()
    references = [node.node_id for node in nodes if node.node_role is NodeRole.REFERENCE]
    if not references:
        raise ConfigError(
            f"algorithm.use_kl_in_reward=true, but graph {graph.graph_id!r} has no node with the role REFERENCE. "
            "Add one before the reward, or set it to false."
        )
    log_prob_nodes = [node.node_id for node in nodes if _is_old_log_prob(node)] + references
    for reward in (node for node in nodes if node.node_role is NodeRole.REWARD):
        late = [name for name in log_prob_nodes if name not in graph.get_ancestors(reward.node_id)]
        if late:
            raise ConfigError(
                f"KL in the reward needs the log-prob nodes before the reward: in graph {graph.graph_id!r} {' and '.join(map(repr, late))} "
                f"must come before {reward.node_id!r}. Move them, or set algorithm.use_kl_in_reward=false."
            )


def _is_old_log_prob(node: Node) -> bool:
    return node.node_role is NodeRole.ACTOR and node.only_forward_compute
