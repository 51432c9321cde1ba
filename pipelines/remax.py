"""ReMax: REINFORCE with the greedy response's reward as baseline (arXiv 2310.10505, algorithm 1).

    for each step:
        b = score of the greedy response                                      greedy_baseline
            to each of the step's prompts or tasks
        sample n responses to each                                            rollout_actor
        R = score of each response by the environment or grader               function_reward
        A = R - b of the same prompt                                          calculate_advantages
        log-probs of the responses under the policy,                          actor_old_log_prob
            and under the reference                                           reference_log_prob
        maximise the ratio to them, weighed by A, less the KL penalty         actor_train
        give the new weights to the rollout engine                            sync_weights

It needs no critic and no group: n = 1 suffices. The reward of the greedy episode estimates a
prompt's value.
"""

from siirl.execution.dag import Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"


def remax_pipeline() -> TaskGraph:
    """Baseline, responses, reward, advantage, log-probs, update."""
    pipeline = Pipeline(
        "remax", "ReMax: REINFORCE with the reward of a greedy response as baseline"
    )
    pipeline.add_node("greedy_baseline", f"{STAGES}:greedy_baseline")
    pipeline.add_node("rollout_actor", f"{STAGES}:generate", ["greedy_baseline"])
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
