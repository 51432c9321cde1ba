"""ReMax: REINFORCE whose baseline is the reward of the policy's most likely response (https://arxiv.org/abs/2310.10505, algorithm 1).

    for each step:
        b = what the environment or the grader says of the most likely response           greedy_baseline
            to each of the step's prompts or tasks
        sample n responses to each                                                        rollout_actor
        R = what the environment or the grader says of each                               function_reward
        A = R - b of the same prompt                                                      calculate_advantages
        log-probs of the responses under the policy, and under the reference              actor_old_log_prob, reference_log_prob
        maximise the ratio to them, weighed by A, less the KL penalty                     actor_train
        give the new weights to the rollout engine                                        sync_weights

There is no critic and no group: n = 1 will do. What a prompt is worth under the policy as it is, its greedy episode says.
"""

from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"
PROMPT_COLUMNS = ["index", "task_name", "task_id", "trial_id", "seed"]


def remax_pipeline() -> TaskGraph:
    """Baseline, responses, reward, advantage, log-probs, update."""
    pipeline = Pipeline("remax", "ReMax: REINFORCE with the reward of a greedy response as baseline")

    pipeline.add_node(
        "greedy_baseline",
        func=f"{STAGES}:greedy_baseline",
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.ROLLOUT,
        requires=PROMPT_COLUMNS,
        provides=["reward_baselines"],
    ).add_node(
        "rollout_actor",
        func=f"{STAGES}:generate",
        deps=["greedy_baseline"],
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.ROLLOUT,
        requires=PROMPT_COLUMNS,
        provides=["uid", "index", "policy_version", "responses", "response_mask", "rollout_log_probs"],
    ).add_node(
        "function_reward",
        func=f"{STAGES}:compute_reward",
        deps=["rollout_actor"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.REWARD,
        requires=["uid", "index", "responses", "response_mask"],
        provides=["token_level_scores", "token_level_rewards"],
    ).add_node(
        "calculate_advantages",
        func=f"{STAGES}:compute_advantage",
        deps=["function_reward"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.ADVANTAGE,
        requires=["token_level_rewards", "response_mask", "index", "reward_baselines"],
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
