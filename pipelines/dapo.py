"""DAPO: GRPO with dynamic sampling, a higher upper clip and a length penalty (arXiv 2503.14476).

    for each step:
        for each prompt or task of the step, sample a group of n responses    rollout_actor
        R = score of each response by the environment or grader,              function_reward
            less the penalty near the token limit
        drop groups whose scores are equal; while too few are left,           dynamic_sampling
            sample further prompts, up to a bound, and reward and filter them too
        share the rest among the ranks, balanced by work                      data_rebalance
        A = (R - mean of the group) / deviation of the group                  calculate_advantages
        log-probs of the responses under the policy,                          actor_old_log_prob
            and under the reference                                           reference_log_prob
        maximise min(ratio * A, clip(ratio, 1 - low, 1 + high) * A),          actor_train
            high > low, every token of the batch alike
        give the new weights to the rollout engine                            sync_weights

configs/pipeline/dapo.yaml has DAPO's settings other than the filter. The pipeline serves VLA
policies and text; robot episodes have no length penalty, because they are limited by environment
steps, and running out of steps is already a failure.
"""

from siirl.execution.dag import Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"
FILTER = "siirl.user_interface.filter_interface.dapo.dynamic_sampling"
DOCUMENTS_NAMES = ("dynaminc_sampling",)


def dapo_pipeline() -> TaskGraph:
    """Responses, reward, dynamic sampling, group advantage, log-probs, update."""
    pipeline = Pipeline("dapo", "DAPO: decoupled clip and dynamic sampling policy optimisation")
    pipeline.add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["rollout_actor"])
    pipeline.add_node("dynamic_sampling", FILTER, ["function_reward"], aliases=DOCUMENTS_NAMES)
    pipeline.add_node("data_rebalance", f"{STAGES}:data_rebalance", ["dynamic_sampling"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["data_rebalance"])
    pipeline.add_node(
        "actor_old_log_prob", f"{STAGES}:compute_old_log_prob", ["calculate_advantages"]
    )
    pipeline.add_node(
        "reference_log_prob", f"{STAGES}:compute_ref_log_prob", ["actor_old_log_prob"]
    )
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["reference_log_prob"])
    pipeline.add_node("sync_weights", f"{STAGES}:sync_weights", ["actor_train"])
    return pipeline.build()
