"""SRPO for policies that act: GRPO on trajectory rewards that also tell failures apart (https://arxiv.org/abs/2511.15605).

    for each step:
        for each of the step's tasks, run a group of n episodes with the policy           rollout_actor
        drop what could not be simulated, and groups that teach nothing                   embodied_sampling
        share the rest among the ranks, alike in work                                     data_rebalance
        R = 1 for a success,                                                              compute_reward
            alpha * sigmoid(-z) for a failure, z = standardised distance of the video's
            embedding to the nearest cluster of successes
        A = (R - mean of the group) / deviation of the group                              calculate_advantages
        log-probs of the taken actions under the policy, and under the reference          actor_old_log_prob, reference_log_prob
        maximise min(ratio * A, clip(ratio) * A), less the KL penalty                     actor_train
        give the new weights to the rollout engine                                        sync_weights

The filter comes before the reward, because it only drops groups that no reward can tell apart. Which reward is computed, and how
the advantage and the loss are, is said in the configuration (`reward`, `algorithm`, `actor_rollout_ref.actor`). Observation columns
(`pixel_values`, `proprioception`, `instruction_ids`, `video_embedding`) are not listed: they depend on environment, policy and reward.
"""

from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"
PROMPT_COLUMNS = ["index", "task_name", "task_id", "trial_id", "seed"]
ROLLOUT_COLUMNS = [
    *PROMPT_COLUMNS,
    *("uid", "policy_version", "responses", "response_mask", "rollout_log_probs"),
    *("finish_step", "complete", "truncated", "env_return"),
]


def embodied_srpo_pipeline() -> TaskGraph:
    """Episodes, filter, balance, trajectory reward, group advantage, log-probs, update."""
    pipeline = Pipeline("embodied_srpo", "SRPO: group-relative policy optimisation on trajectory rewards from videos")

    pipeline.add_node(
        "rollout_actor",
        func=f"{STAGES}:generate",
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.ROLLOUT,
        requires=PROMPT_COLUMNS,
        provides=ROLLOUT_COLUMNS,
    ).add_node(
        "embodied_sampling",
        func="siirl.user_interface.filter_interface.embodied.embodied_local_rank_sampling",
        deps=["rollout_actor"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.DYNAMIC_SAMPLING,
        aliases=("dynamic_sampling", "dynaminc_sampling"),  # other spellings in the documents
        requires=["index", "task_name", "complete", "truncated"],
        provides=[],
    ).add_node(
        "data_rebalance",
        func=f"{STAGES}:data_rebalance",
        deps=["embodied_sampling"],
        node_type=NodeType.COMPUTE,
        requires=["uid", "index", "response_mask"],
        provides=[],
    ).add_node(
        "compute_reward",
        func=f"{STAGES}:compute_reward",
        deps=["data_rebalance"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.REWARD,
        requires=["uid", "index", "task_name", "complete", "env_return", "response_mask"],
        provides=["token_level_scores", "token_level_rewards"],
    ).add_node(
        "calculate_advantages",
        func=f"{STAGES}:compute_advantage",
        deps=["compute_reward"],
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
