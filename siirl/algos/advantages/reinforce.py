"""REINFORCE with baselines: discounted returns of tokens, REINFORCE++ and ReMax."""

# B sample, T token

import torch

from siirl.algos.advantages.advantage_registry import Index, Result, register_adv_est
from siirl.algos.advantages.gae import gae_advantage
from siirl.algos.advantages.group_relative import compute_dr_grpo_outcome_advantage
from siirl.algos.advantages.whitening import whiten_advantages
from siirl.algos.ranks import ALONE, Ranks, reject_on_all_ranks
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite
from siirl.errors import TensorError


def discounted_returns(
    *, rewards_BT: torch.Tensor, mask_BT: torch.Tensor, gamma: float
) -> torch.Tensor:
    """`G_t = r_t + gamma * G_{t+1}` over the kept tokens: GAE with values 0 and lambda 1.

    Raises the errors of `gae_advantage`.
    """
    returns_BT, _ = gae_advantage(
        rewards_BT=rewards_BT,
        values_BT=torch.zeros_like(rewards_BT),
        mask_BT=mask_BT,
        gamma=gamma,
        lam=1.0,
    )
    return returns_BT


@register_adv_est("reinforce_plus_plus")
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float = 1.0,
    *,
    adv_whitening: str = "unbiased",
    ranks: Ranks = ALONE,
) -> Result:
    """REINFORCE++: discounted returns of tokens, whitened over all kept tokens of all ranks (arXiv
    2501.03262, section 3).

    It needs no group. The KL to the reference policy belongs in the reward
    (`algorithm.use_kl_in_reward`). Returns are not whitened.
    """
    with reject_on_all_ranks(ranks):
        returns_BT = discounted_returns(
            rewards_BT=token_level_rewards, mask_BT=response_mask, gamma=gamma
        )
    return whiten_advantages(returns_BT, response_mask, how=adv_whitening, ranks=ranks), returns_BT


@register_adv_est("reinforce_plus_plus_baseline")
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    *,
    adv_whitening: str = "unbiased",
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """REINFORCE++ with baseline: `r - mean of the group`, whitened over all kept tokens of all
    ranks (arXiv 2501.03262, section 3).

    The scale is the batch's, not the group's. The mean is over tokens: if long and short samples
    differ in reward, a group without signal gets minus that mean instead of 0.
    """
    centred_BT, _ = compute_dr_grpo_outcome_advantage(
        token_level_rewards,
        response_mask,
        index,
        min_group_spread=min_group_spread,
        ranks=ranks,
    )
    advantages_BT = whiten_advantages(centred_BT, response_mask, how=adv_whitening, ranks=ranks)
    return advantages_BT, advantages_BT.clone()


@register_adv_est("remax", reward_at_finish=True)
def compute_remax_outcome_advantage(
    token_level_rewards: torch.Tensor,
    reward_baselines: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    ranks: Ranks = ALONE,
) -> Result:
    """ReMax: `sum of the rewards to come - reward of the greedy response` (arXiv 2310.10505,
    section 4), at every kept token.

    Args:
        token_level_rewards: [B, T].
        reward_baselines: [B], the reward that the policy's greedy response to the same prompt gets.
            A pipeline that uses this estimator rolls every prompt out once more, without sampling,
            and puts the reward of that rollout into the column.
        response_mask: [B, T].
    """
    require_axes(1, reward_baselines=reward_baselines)
    if len(reward_baselines) != len(token_level_rewards):
        raise TensorError(
            f"reward_baselines has {len(reward_baselines)} entries and token_level_rewards "
            f"{len(token_level_rewards)} rows."
        )
    with reject_on_all_ranks(ranks):
        require_finite(reward_baselines=reward_baselines)
        returns_BT = discounted_returns(
            rewards_BT=token_level_rewards, mask_BT=response_mask, gamma=1.0
        )
    baselines_BT = reward_baselines[:, None].expand_as(returns_BT).to(returns_BT.dtype)
    return torch.where(
        as_bool_mask(response_mask), returns_BT - baselines_BT, torch.zeros_like(returns_BT)
    ), returns_BT
