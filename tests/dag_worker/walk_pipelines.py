"""Graphs for the runs of all names: GRPO's, with the nodes that some names need in addition."""

from siirl.execution.dag import Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"


def kl_in_reward() -> TaskGraph:
    """Both log-probs before the reward, which subtracts their KL."""
    pipeline = Pipeline("kl_in_reward", "GRPO's graph with the KL in the reward")
    pipeline.add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("actor_old_log_prob", f"{STAGES}:compute_old_log_prob", ["rollout_actor"])
    pipeline.add_node(
        "reference_log_prob", f"{STAGES}:compute_ref_log_prob", ["actor_old_log_prob"]
    )
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["reference_log_prob"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["function_reward"])
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["calculate_advantages"])
    pipeline.add_node("sync_weights", f"{STAGES}:sync_weights", ["actor_train"])
    return pipeline.build()
