"""Graphs for the walk through all names: GRPO's, with what its shipped form lacks for some of them."""

from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"


def _rollout(pipeline: Pipeline) -> Pipeline:
    return pipeline.add_node("rollout_actor", func=f"{STAGES}:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)


def _log_probs(pipeline: Pipeline, after: str) -> Pipeline:
    return pipeline.add_node(
        "actor_old_log_prob", func=f"{STAGES}:compute_old_log_prob", deps=[after], node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR, only_forward_compute=True,
    ).add_node(
        "reference_log_prob", func=f"{STAGES}:compute_ref_log_prob", deps=["actor_old_log_prob"], node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.REFERENCE, only_forward_compute=True,
    )  # fmt: skip


def _reward(pipeline: Pipeline, after: str) -> Pipeline:
    return pipeline.add_node(
        "function_reward", func=f"{STAGES}:compute_reward", deps=[after], node_type=NodeType.COMPUTE, node_role=NodeRole.REWARD
    )


def _update(pipeline: Pipeline, after: str) -> Pipeline:
    return pipeline.add_node(
        "calculate_advantages", func=f"{STAGES}:compute_advantage", deps=[after], node_type=NodeType.COMPUTE,
        node_role=NodeRole.ADVANTAGE,
    ).add_node(
        "actor_train", func=f"{STAGES}:train_actor", deps=["calculate_advantages"], node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
    ).add_node(
        "sync_weights", func=f"{STAGES}:sync_weights", deps=["actor_train"], node_type=NodeType.BARRIER_SYNC, node_role=NodeRole.ROLLOUT
    )  # fmt: skip


def kl_in_reward() -> TaskGraph:
    """Both log-probs before the reward, which subtracts their KL."""
    pipeline = _log_probs(_rollout(Pipeline("kl_in_reward", "GRPO's graph with the KL in the reward")), "rollout_actor")
    return _update(_reward(pipeline, "reference_log_prob"), "function_reward").build()
