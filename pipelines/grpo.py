"""GRPO: group-mean reward as the baseline (https://arxiv.org/abs/2402.03300, section 4.1).

    for each step:
        for each prompt or task of the step, sample a group of n responses    rollout_actor
        R = score of each response by the environment or grader               function_reward
        A = (R - mean of the group) / deviation of the group                  calculate_advantages
        log-probs of the responses under the policy,                          actor_old_log_prob
            and under the reference                                           reference_log_prob
        maximise min(ratio * A, clip(ratio) * A), less a KL penalty           actor_train
            with use_kl_loss=true
        give the new weights to the rollout engine                            sync_weights

The pipeline serves VLA policies (`reward=success`, `reward=return`) and text alike.
"""

from siirl.execution.dag import Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"


def grpo_pipeline() -> TaskGraph:
    """Responses, reward, group advantage, log-probs, update."""
    pipeline = Pipeline("grpo", "GRPO: group-relative policy optimisation")
    pipeline.add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["rollout_actor"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["function_reward"])
    pipeline.add_node(
        "actor_old_log_prob", f"{STAGES}:compute_old_log_prob", ["calculate_advantages"]
    )
    pipeline.add_node(
        "reference_log_prob", f"{STAGES}:compute_ref_log_prob", ["actor_old_log_prob"]
    )
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["reference_log_prob"])
    pipeline.add_node("sync_weights", f"{STAGES}:sync_weights", ["actor_train"])
    return pipeline.build()
