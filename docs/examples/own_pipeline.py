"""A pipeline with a branch: correctness and brevity are scored side by side, then joined.

    siirl train env=math dag.custom_pipeline_fn=own_pipeline:brief_grpo
    siirl train env=math dag.workflow_file=own_pipeline.yaml

                    +-> function_reward -+
    rollout_actor --|                    |--> join_rewards -> calculate_advantages -> actor_train
                    +-> score_brevity ---+                                                 |
                                                                     sync_weights <--------+

The YAML file declares the same graph. `@columns` declares the columns that a node reads and adds,
so a graph without a node that provides a required column is refused before anything starts.
"""

# B sample, T token

from tensordict import TensorDict

from siirl.algos.trajectories import reward_at_finish
from siirl.execution.dag import NodeOutput, Pipeline, TaskGraph, columns
from siirl.reporting.metrics import Reduction, register_metric

STAGES = "siirl.dag_worker.stages"
WEIGHT = 0.1

register_metric("brevity/mean", reduction=Reduction.RANK_MEAN, meaning="brevity of the answers")
register_metric("reward/joined", reduction=Reduction.RANK_MEAN, meaning="reward of both branches")


@columns(requires=["response_mask"], provides=["brevity"])
def brevity(*, batch: TensorDict) -> NodeOutput:
    """1 for an answer of one token, falling with its length: float [B]."""
    batch["brevity"] = 1.0 / batch["response_mask"].sum(-1).clamp(min=1)
    return NodeOutput(batch=batch, metrics={"brevity/mean": batch["brevity"].mean()})


@columns(
    requires=["token_level_scores", "response_mask", "brevity"], provides=["token_level_rewards"]
)
def join_rewards(*, batch: TensorDict) -> NodeOutput:
    """R = score + WEIGHT * brevity for right answers, at the last token."""
    scores_B = batch["token_level_scores"].sum(-1)
    rewards_B = scores_B * (1.0 + WEIGHT * batch["brevity"])
    batch["token_level_rewards"] = reward_at_finish(
        rewards_B=rewards_B, mask_BT=batch["response_mask"]
    )
    return NodeOutput(batch=batch, metrics={"reward/joined": rewards_B.mean()})


def brief_grpo() -> TaskGraph:
    """GRPO whose reward is joined from two branches."""
    own = __name__
    pipeline = Pipeline("brief_grpo", "GRPO with a reward for short right answers")
    pipeline.add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["rollout_actor"])
    pipeline.add_node("score_brevity", f"{own}:brevity", ["rollout_actor"])
    pipeline.add_node("join_rewards", f"{own}:join_rewards", ["function_reward", "score_brevity"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["join_rewards"])
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["calculate_advantages"])
    pipeline.add_node("sync_weights", f"{STAGES}:sync_weights", ["actor_train"])
    return pipeline.build()
