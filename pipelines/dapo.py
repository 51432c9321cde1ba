"""DAPO: GRPO with groups that teach something, room for unlikely tokens, and a price on length (https://arxiv.org/abs/2503.14476).

    for each step:
        for each of the step's prompts or tasks, sample a group of n responses            rollout_actor
        R = what the environment or the grader says of each,                              function_reward
            less what it pays for coming near the limit of tokens
        drop groups whose rewards are all alike; while too few are left,                  dynamic_sampling
            sample further prompts, up to a bound, and reward and filter them as well
        share the rest among the ranks, alike in work                                     data_rebalance
        A = (R - mean of the group) / deviation of the group                              calculate_advantages
        log-probs of the responses under the policy, and under the reference              actor_old_log_prob, reference_log_prob
        maximise min(ratio * A, clip(ratio, 1 - low, 1 + high) * A), high > low,          actor_train
            every token of the batch alike
        give the new weights to the rollout engine                                        sync_weights

What is particular to it besides the filter is said in configs/pipeline/dapo.yaml. It serves robots and text alike, but that episodes of
robots have no length to pay for: they are bounded by environment steps, and running out of them is a failure already.
"""

from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"


def dapo_pipeline() -> TaskGraph:
    """Responses, reward, dynamic sampling, group advantage, log-probs, update."""
    pipeline = Pipeline("dapo", "DAPO: decoupled clip and dynamic sampling policy optimisation")

    pipeline.add_node(
        "rollout_actor",
        func=f"{STAGES}:generate",
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.ROLLOUT,
        provides=["uid", "index", "policy_version", "responses", "response_mask", "rollout_log_probs", "complete", "truncated"],
    ).add_node(
        "function_reward",
        func=f"{STAGES}:compute_reward",
        deps=["rollout_actor"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.REWARD,
        requires=["uid", "index", "responses", "response_mask"],
        provides=["token_level_scores", "token_level_rewards"],
    ).add_node(
        "dynamic_sampling",
        func="siirl.user_interface.filter_interface.dapo.dynamic_sampling",
        deps=["function_reward"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.DYNAMIC_SAMPLING,
        aliases=("dynaminc_sampling",),  # as the documents spell it elsewhere
        requires=["index", "complete", "truncated", "token_level_scores", "token_level_rewards"],
        provides=[],
    ).add_node(
        "data_rebalance",
        func=f"{STAGES}:data_rebalance",
        deps=["dynamic_sampling"],
        node_type=NodeType.COMPUTE,
        requires=["uid", "index", "response_mask"],
        provides=[],
    ).add_node(
        "calculate_advantages",
        func=f"{STAGES}:compute_advantage",
        deps=["data_rebalance"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.ADVANTAGE,
        requires=["token_level_rewards", "response_mask", "index"],
        provides=["advantages", "returns"],
    ).add_node(
        "actor_old_log_prob",
        func=f"{STAGES}:compute_old_log_prob",
        deps=["calculate_advantages"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
        only_forward_compute=True,
        requires=["responses", "response_mask", "rollout_log_probs"],
        provides=["old_log_probs"],
    ).add_node(
        "reference_log_prob",
        func=f"{STAGES}:compute_ref_log_prob",
        deps=["actor_old_log_prob"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.REFERENCE,
        only_forward_compute=True,
        requires=["responses", "response_mask"],
        provides=["ref_log_prob"],
    ).add_node(
        "actor_train",
        func=f"{STAGES}:train_actor",
        deps=["reference_log_prob"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
        requires=["responses", "response_mask", "advantages", "rollout_log_probs", "old_log_probs", "ref_log_prob"],
        provides=[],
    ).add_node(
        "sync_weights",
        func=f"{STAGES}:sync_weights",
        deps=["actor_train"],
        node_type=NodeType.BARRIER_SYNC,
        node_role=NodeRole.ROLLOUT,
        provides=[],
    )

    return pipeline.build()
