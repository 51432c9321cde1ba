"""PPO: a learned value function is the baseline (arXiv 1707.06347, algorithm 1).

    for each step:
        roll out the step's prompts or tasks with the policy                  rollout_actor
        log-probs of the responses under the policy,                          actor_old_log_prob
            and under the reference                                           reference_log_prob
        r = score by the environment or grader, less the KL penalty           function_reward
        V = the critic's values of the states at the decisions                compute_value
        delta = r + gamma V' - V, A = sum (gamma lambda)^k delta, R = A + V   calculate_advantages
        with rollout.n_steps: a row for each decision                         single_decisions
        minimise (V - R)^2, clipped around the old V                          critic_train
        maximise min(ratio * A, clip(ratio) * A)                              actor_train
        give the new weights to the rollout engine                            sync_weights

Log-probs precede the reward, so that `algorithm.use_kl_in_reward=true` can use them (arXiv
2203.02155, section 3.5); they are skipped if unused. The first `trainer.critic_warmup` steps leave
the actor unchanged. The pipeline serves VLA policies and text: a decision is an action chunk or a
token.

With `actor_rollout_ref.rollout.n_steps`, each environment runs that many decisions, across the ends
of episodes, as in algorithm 1. Without it, rows are whole episodes.
"""

from siirl.execution.dag import Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"


def ppo_pipeline() -> TaskGraph:
    """Responses, log-probs, reward, values, generalised advantages, both updates."""
    pipeline = Pipeline("ppo", "PPO: proximal policy optimisation with a critic")
    pipeline.add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("actor_old_log_prob", f"{STAGES}:compute_old_log_prob", ["rollout_actor"])
    pipeline.add_node(
        "reference_log_prob", f"{STAGES}:compute_ref_log_prob", ["actor_old_log_prob"]
    )
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["reference_log_prob"])
    pipeline.add_node("compute_value", f"{STAGES}:compute_value", ["function_reward"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["compute_value"])
    pipeline.add_node("single_decisions", f"{STAGES}:single_decisions", ["calculate_advantages"])
    pipeline.add_node("critic_train", f"{STAGES}:train_critic", ["single_decisions"])
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["critic_train"])
    pipeline.add_node("sync_weights", f"{STAGES}:sync_weights", ["actor_train"])
    return pipeline.build()
