"""An advantage, a loss, a filter and a reward of your own, ten lines each; no file of siirl
changes.

    siirl train env=gymnasium env.id=CartPole-v1 pipeline=grpo \
        dag.custom_pipeline_fn=own_algorithm:own_pipeline \
        algorithm.adv_estimator=median actor_rollout_ref.actor.loss=only_better

Naming the graph imports this file, and importing it registers the advantage and the loss; filter
and reward are nodes of the graph. A node gets a copy of its rank's rows and returns its result. A
node that compares rows asks `ranks` for the rows of all ranks.
"""

# B rollout, T token

import torch
from tensordict import TensorDict

from siirl.algos import PolicyLoss, register_adv_est, register_policy_loss
from siirl.algos.groups import group_statistics
from siirl.algos.policy_losses import log_ratio
from siirl.algos.ranks import Ranks
from siirl.algos.trajectories import reward_at_finish
from siirl.dag_worker.context import StageContext
from siirl.data_coordinator.protocol.batch import select_rows
from siirl.execution.dag import NodeOutput, Pipeline, TaskGraph, columns


@register_adv_est("median")
def median_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: torch.Tensor,
    ranks: Ranks,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Difference between a rollout's reward and the median of its group: a single lucky
    rollout does not shift the baseline.
    """
    rewards_B, own = ranks.gather_rows(token_level_rewards.sum(-1))
    group_B, _ = ranks.gather_rows(index)
    medians_B = torch.tensor(
        [float(rewards_B[group_B == group].quantile(0.5)) for group in group_B]
    )
    advantages_BT = (rewards_B - medians_B)[own, None] * response_mask
    return advantages_BT, advantages_BT


@register_policy_loss("only_better")
def only_better_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_high: float,
) -> PolicyLoss:
    """PPO's loss for positive advantages; negative ones have no effect."""
    ratio_BT = (
        log_ratio(log_probs_BT=log_probs_BT, old_log_probs_BT=old_log_probs_BT, mask_BT=mask_BT)
        .exp()
        .clamp(max=1 + clip_ratio_high)
    )
    return PolicyLoss(loss_BT=-advantages_BT.clamp(min=0) * ratio_BT * mask_BT)


@columns(requires=["index", "env_return"], provides=[])
def keep_varied_groups(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Keep the groups whose best and worst return are at least two apart."""
    returns_B, own = context.ranks.gather_rows(batch["env_return"])
    group_B, _ = context.ranks.gather_rows(batch["index"])
    keep_B = group_statistics(values_B=returns_B, group_B=group_B).spread_B >= 2.0
    kept = select_rows(batch, keep_B[own])
    return NodeOutput(batch=kept, metrics={"sampling/kept": float(len(kept))})


@columns(
    requires=["env_return", "response_mask"], provides=["token_level_scores", "token_level_rewards"]
)
def logarithmic_reward(*, batch: TensorDict) -> NodeOutput:
    """The logarithm of the return, at the last token: from 10 to 20 steps is as far as from 20 to
    40.
    """
    rewards_B = torch.log(batch["env_return"])
    batch["token_level_scores"] = reward_at_finish(
        rewards_B=rewards_B, mask_BT=batch["response_mask"]
    )
    batch["token_level_rewards"] = batch["token_level_scores"]
    return NodeOutput(batch=batch, metrics={"reward/score": rewards_B.tolist()})


def own_pipeline() -> TaskGraph:
    """Rollouts, filter, reward, advantage, update."""
    own, stages = __name__, "siirl.dag_worker.stages"
    pipeline = Pipeline("own_algorithm", "GRPO with a custom advantage, loss, filter and reward")
    pipeline.add_node("rollout_actor", f"{stages}:generate")
    pipeline.add_node("own_filter", f"{own}:keep_varied_groups", ["rollout_actor"])
    pipeline.add_node("own_reward", f"{own}:logarithmic_reward", ["own_filter"])
    pipeline.add_node("calculate_advantages", f"{stages}:compute_advantage", ["own_reward"])
    pipeline.add_node("actor_train", f"{stages}:train_actor", ["calculate_advantages"])
    pipeline.add_node("sync_weights", f"{stages}:sync_weights", ["actor_train"])
    return pipeline.build()
