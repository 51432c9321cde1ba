"""Skips forward passes whose result no node uses: their nodes stay in the graph with a reason and
do not run.

The caller decides which are needed (is there a KL, has the policy moved), because a graph does not
see the configuration.
"""

from siirl.errors import ConfigError
from siirl.execution.dag.node import NodeRole
from siirl.execution.dag.task_graph import TaskGraph

NO_KL = "no KL has a weight (actor_rollout_ref.actor.use_kl_loss, algorithm.use_kl_in_reward)"
ON_POLICY = "the log-probs of acting serve as the old ones"


def skip_unused(
    graph: TaskGraph, *, needs_reference: bool, needs_old_log_probs: bool, group: int | None = None
) -> None:
    """Skip the reference's and the old log-probs' nodes where they are not needed.

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
            f"The configuration has a KL to the reference policy, but graph {graph.graph_id!r} has no "
            "node with the role REFERENCE: add one, or set actor_rollout_ref.actor.use_kl_loss=false "
            "and algorithm.use_kl_in_reward=false."
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
