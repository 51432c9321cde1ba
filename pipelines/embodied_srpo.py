"""SRPO: GRPO on trajectory rewards that also rank failures (https://arxiv.org/abs/2511.15605).

    for each step:
        for each task of the step, run a group of n episodes with the policy  rollout_actor
        drop failed episodes, and groups without a learning signal            embodied_sampling
        share the rest among the ranks, balanced by work                      data_rebalance
        R = 1 for a success,                                                  compute_reward
            alpha * sigmoid(-z) for a failure, z = standardised distance of the video's
            embedding to the nearest cluster of successes
        A = R - mean of the group                                             calculate_advantages
        log-probs of the taken actions under the policy,                      actor_old_log_prob
            and under the reference, if a KL penalty is set                   reference_log_prob
        maximise min(ratio * A, clip(ratio) * A), less that penalty           actor_train
        give the new weights to the rollout engine                            sync_weights

The filter runs before the reward, because it only drops groups whose episodes no reward can
distinguish. The configuration selects reward, advantage and loss (`reward`, `algorithm`,
`actor_rollout_ref.actor`); above are its defaults (configs/pipeline/embodied_srpo.yaml). The paper
also divides A by the deviation of the group (`algorithm.adv_estimator=grpo`).
"""

from siirl.execution.dag import Pipeline, TaskGraph

STAGES = "siirl.dag_worker.stages"
FILTER = "siirl.user_interface.filter_interface.embodied.embodied_local_rank_sampling"
DOCUMENTS_NAMES = ("dynamic_sampling", "dynaminc_sampling")


def embodied_srpo_pipeline() -> TaskGraph:
    """Episodes, filter, balance, trajectory reward, group advantage, log-probs, update."""
    pipeline = Pipeline(
        "embodied_srpo",
        "SRPO: group-relative policy optimisation on trajectory rewards from videos",
    )
    pipeline.add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("embodied_sampling", FILTER, ["rollout_actor"], aliases=DOCUMENTS_NAMES)
    pipeline.add_node("data_rebalance", f"{STAGES}:data_rebalance", ["embodied_sampling"])
    pipeline.add_node("compute_reward", f"{STAGES}:compute_reward", ["data_rebalance"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["compute_reward"])
    pipeline.add_node(
        "actor_old_log_prob", f"{STAGES}:compute_old_log_prob", ["calculate_advantages"]
    )
    pipeline.add_node(
        "reference_log_prob", f"{STAGES}:compute_ref_log_prob", ["actor_old_log_prob"]
    )
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["reference_log_prob"])
    pipeline.add_node("sync_weights", f"{STAGES}:sync_weights", ["actor_train"])
    return pipeline.build()
