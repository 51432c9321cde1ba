"""The estimators of `algorithm.adv_estimator`: formulas applied to tokens and ranks.

An outcome estimator sums a sample's token rewards at all positions, because a custom reward may be
in the last column, which may be padding. Every kept token gets the advantage of its sample; returns
are the same numbers. A row without kept tokens still counts in its group: it was sampled and
rewarded. A group may span ranks.
"""

# B sample, T token

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from siirl.algos.advantages.advantage_registry import Index, register_adv_est
from siirl.algos.advantages.group_relative import (
    cpgd_advantage,
    gpg_advantage,
    grpo_advantage,
    opo_advantage,
    rloo_advantage,
)
from siirl.algos.advantages.pass_at_k import pass_at_k_advantage
from siirl.algos.advantages.token_level import (
    discounted_returns,
    gae_advantage,
    gae_of_decisions,
    whiten_advantages,
    with_bootstrap,
)
from siirl.algos.groups import group_ids
from siirl.algos.ranks import ALONE, Ranks
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import TensorError

Result = tuple[torch.Tensor, torch.Tensor]
Found = TypeVar("Found")


@dataclass(frozen=True)
class _Samples:
    """The samples of all ranks, and the index range of this rank's."""

    rewards_B: torch.Tensor
    """Each sample's summed token rewards."""
    group_B: torch.Tensor
    own: slice
    kept_BT: torch.Tensor
    """Bool: the tokens of this rank's samples that the policy chose."""
    rewards_BT: torch.Tensor
    """This rank's token rewards."""

    def at_tokens(self, advantages_B: torch.Tensor) -> Result:
        """Advantages and returns [B, T]: each kept token gets the advantage of its sample."""
        own_BT = advantages_B[self.own][:, None].expand_as(self.rewards_BT)
        advantages_BT = torch.where(self.kept_BT, own_BT, torch.zeros_like(self.rewards_BT))
        return advantages_BT, advantages_BT.clone()


def _samples(
    rewards_BT: torch.Tensor, mask_BT: torch.Tensor, index: Index, *, ranks: Ranks
) -> _Samples:
    """Gather the samples of all ranks.

    Raises:
        TensorError: Shapes that differ, or a sum that is not finite, which every rank refuses.
    """
    rewards_BT = rewards_BT.detach()
    require_axes(2, token_level_rewards=rewards_BT)
    require_same_shape(token_level_rewards=rewards_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    if ranks.size > 1 and not isinstance(index, torch.Tensor):
        raise TensorError(
            "index must be an int64 tensor on several ranks: the numbers of strings would differ "
            "between ranks."
        )
    group_B = group_ids(index).to(rewards_BT.device)
    if len(group_B) != len(rewards_BT):
        raise TensorError(
            f"index has {len(group_B)} entries and token_level_rewards {len(rewards_BT)} rows: "
            "each sample needs one."
        )
    rewards_B, own = ranks.gather_rows(rewards_BT.sum(-1))
    if not bool(torch.isfinite(rewards_B).all()):
        require_finite(token_level_rewards=rewards_BT)
        require_finite(summed_token_level_rewards=rewards_B[own])  # finite with an infinite sum
        raise TensorError(
            "token_level_rewards of another rank are not finite; its own message names the row."
        )
    group_B, _ = ranks.gather_rows(group_B)
    return _Samples(rewards_B, group_B, own, kept_BT, rewards_BT)


@register_adv_est("grpo")
def compute_grpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """`grpo_advantage` of each sample's summed reward, at all of its tokens."""
    samples = _samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = grpo_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        epsilon=epsilon,
        normalize_by_std=norm_adv_by_std_in_grpo,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)


@register_adv_est("dr_grpo")
def compute_dr_grpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """Dr. GRPO: `grpo_advantage` without the deviation; its other half is
    `loss_agg_mode=seq-mean-token-sum-norm`.
    """
    samples = _samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = grpo_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        normalize_by_std=False,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)


@register_adv_est("rloo")
def compute_rloo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """`rloo_advantage` of each sample's summed reward, at all of its tokens."""
    samples = _samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = rloo_advantage(
        rewards_B=samples.rewards_B, group_B=samples.group_B, min_group_spread=min_group_spread
    )
    return samples.at_tokens(advantages_B)


@register_adv_est("opo")
def compute_opo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """`opo_advantage` of each sample's summed reward; lengths are counted in kept tokens."""
    samples = _samples(token_level_rewards, response_mask, index, ranks=ranks)
    length_B, _ = ranks.gather_rows(as_bool_mask(response_mask).sum(-1))
    advantages_B = opo_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        length_B=length_B,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)


@register_adv_est("grpo_passk")
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    *,
    pass_k: int | None = None,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """`pass_at_k_advantage` of each sample's summed reward, at all of its tokens."""
    samples = _samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = pass_at_k_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        k=pass_k,
        normalize_by_std=norm_adv_by_std_in_grpo,
        epsilon=epsilon,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)


@register_adv_est("gpg")
def compute_gpg_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    f_norm: float = 1.0,
    alpha: float | None = None,
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """`gpg_advantage` of each sample's summed reward; alpha counts the samples of all ranks."""
    samples = _samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = gpg_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        f_norm=f_norm,
        alpha=alpha,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)


@register_adv_est("cpgd")
def compute_cpgd_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    epsilon: float = 1e-6,
    weight_factor_in_cpgd: str = "STD_weight",
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> Result:
    """`cpgd_advantage` of each sample's summed reward; its loss is `actor.loss=cpgd`."""
    samples = _samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = cpgd_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        weighting=weight_factor_in_cpgd,
        epsilon=epsilon,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)


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

    The scale is the batch's, not the group's. The mean is over tokens, so if long and short samples
    differ in reward, a group without signal ends at minus that mean instead of 0.
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


def _together(kernel: Callable[[], Found], *, ranks: Ranks) -> Found:
    """`kernel()`; if one rank refuses its numbers, all ranks raise, so that none waits for it."""
    try:
        found = kernel()
    except TensorError:
        ranks.sum(torch.ones(()))
        raise
    if float(ranks.sum(torch.zeros(()))):
        raise TensorError("The numbers of another rank are refused; its own message names the row.")
    return found


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

    It needs no group; the KL to the reference policy belongs in its reward
    (`algorithm.use_kl_in_reward`). Returns are not whitened.
    """
    returns_BT = _together(
        lambda: discounted_returns(
            rewards_BT=token_level_rewards, mask_BT=response_mask, gamma=gamma
        ),
        ranks=ranks,
    )
    return whiten_advantages(returns_BT, response_mask, how=adv_whitening, ranks=ranks), returns_BT


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
            scores that too, and puts its reward into the column.
        response_mask: [B, T].
    """
    require_axes(1, reward_baselines=reward_baselines)
    if len(reward_baselines) != len(token_level_rewards):
        raise TensorError(
            f"reward_baselines has {len(reward_baselines)} entries and token_level_rewards "
            f"{len(token_level_rewards)} rows."
        )

    def returns() -> torch.Tensor:
        require_finite(reward_baselines=reward_baselines)
        return discounted_returns(rewards_BT=token_level_rewards, mask_BT=response_mask, gamma=1.0)

    returns_BT = _together(returns, ranks=ranks)
    baselines_BT = reward_baselines[:, None].expand_as(returns_BT).to(returns_BT.dtype)
    return torch.where(
        as_bool_mask(response_mask), returns_BT - baselines_BT, torch.zeros_like(returns_BT)
    ), returns_BT


@register_adv_est("gae")
def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float,
    lam: float,
    *,
    value_mask: torch.Tensor | None = None,
    bootstrap_values: torch.Tensor | None = None,
    adv_whitening: str = "unbiased",
    ranks: Ranks = ALONE,
) -> Result:
    """`gae_advantage`, or with `value_mask` `gae_of_decisions`, whitened over the kept tokens of
    all ranks, as PPO implementations do.

    Rows with `bootstrap_values` get the value of the state after their last decision
    (`with_bootstrap`). Returns are not whitened.
    """

    def rewards() -> torch.Tensor:
        if bootstrap_values is None:
            return token_level_rewards
        return with_bootstrap(
            rewards_BT=token_level_rewards,
            mask_BT=response_mask,
            bootstrap_B=bootstrap_values,
            gamma=gamma,
        )

    kernel = (
        gae_advantage
        if value_mask is None
        else functools.partial(gae_of_decisions, value_mask_BT=value_mask)
    )
    advantages_BT, returns_BT = _together(
        lambda: kernel(
            rewards_BT=rewards(),
            values_BT=values,
            mask_BT=response_mask,
            gamma=gamma,
            lam=lam,
        ),
        ranks=ranks,
    )
    return whiten_advantages(
        advantages_BT, response_mask, how=adv_whitening, ranks=ranks
    ), returns_BT
