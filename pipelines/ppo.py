"""PPO: a learned value function is the baseline of every decision (https://arxiv.org/abs/1707.06347, algorithm 1).

    for each step:
        roll out the step's prompts or tasks with the policy                              rollout_actor
        log-probs of the responses under the policy, and under the reference              actor_old_log_prob, reference_log_prob
        r = what the environment or the grader says of each, less the KL penalty          function_reward
        V = the critic's values of the states behind the decisions                        compute_value
        delta = r + gamma V' - V,  A = sum of (gamma lambda)^k delta,  R = A + V          calculate_advantages
        minimise (V - R)^2, clipped around the old V                                      critic_train
        maximise min(ratio * A, clip(ratio) * A)                                          actor_train
        give the new weights to the rollout engine                                        sync_weights

Log-probs stand before the reward, so that `algorithm.use_kl_in_reward=true` finds them (arXiv 2203.02155, section 3.5); they are skipped
where nobody reads them. The first `trainer.critic_warmup` steps leave the actor as it is. Nothing here knows robots from text: a
decision is a chunk of actions, or a token.
"""

from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"


def ppo_pipeline() -> TaskGraph:
    """Responses, log-probs, reward, values, generalised advantages, both updates."""
    pipeline = Pipeline("ppo", "PPO: proximal policy optimisation with a critic")

    pipeline.add_node(
        "rollout_actor",
        func=f"{STAGES}:generate",
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.ROLLOUT,
        provides=["uid", "index", "policy_version", "responses", "response_mask", "rollout_log_probs"],
    ).add_node(
        "actor_old_log_prob",
        func=f"{STAGES}:compute_old_log_prob",
        deps=["rollout_actor"],
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
        "function_reward",
        func=f"{STAGES}:compute_reward",
        deps=["reference_log_prob"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.REWARD,
        requires=["uid", "index", "responses", "response_mask", "old_log_probs", "ref_log_prob"],
        provides=["token_level_scores", "token_level_rewards"],
    ).add_node(
        "compute_value",
        func=f"{STAGES}:compute_value",
        deps=["function_reward"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.CRITIC,
        only_forward_compute=True,
        requires=["responses", "response_mask"],
        provides=["values", "value_mask"],
    ).add_node(
        "calculate_advantages",
        func=f"{STAGES}:compute_advantage",
        deps=["compute_value"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.ADVANTAGE,
        requires=["token_level_rewards", "response_mask", "index", "values", "value_mask"],
        provides=["advantages", "returns"],
    ).add_node(
        "critic_train",
        func=f"{STAGES}:train_critic",
        deps=["calculate_advantages"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.CRITIC,
        requires=["responses", "response_mask", "values", "value_mask", "returns"],
        provides=[],
    ).add_node(
        "actor_train",
        func=f"{STAGES}:train_actor",
        deps=["critic_train"],
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
