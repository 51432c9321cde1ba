"""Pass@k: the advantage of a sample is its contribution to the best of k, which rewards diverse
groups.

`A_i = mean over all choices of k - 1 others of [max(r_i, theirs) - max(theirs)]`, never negative.
If k is the group size, this is `r_max - r_second` for the best sample and 0 for the others
(leave-one-out, arXiv 2503.19595). For a smaller k it is, up to the constant factor k / n, PKPO's
estimate with a baseline that excludes the sample (arXiv 2505.15201, equation 33), computed without
enumerating subsets.
"""

# B sample of all ranks, T token

import torch

from siirl.algos.advantages.advantage_registry import Index, Result, register_adv_est
from siirl.algos.advantages.group_relative import check_epsilon
from siirl.algos.advantages.samples import gather_samples
from siirl.algos.groups import group_statistics
from siirl.algos.ranks import ALONE, Ranks
from siirl.errors import ConfigError


def pass_at_k_advantage(
    *,
    rewards_B: torch.Tensor,
    group_B: torch.Tensor,
    k: int | None = None,
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
    min_group_spread: float = 0.0,
) -> torch.Tensor:
    """How much each sample raises the best of k, divided by the group's deviation (pass@k-GRPO).

    Sort a group's rewards, `r_0 <= ... <= r_(n-1)`. Raising a sample from rank l - 1 to rank l
    gains `r_l - r_(l-1)` in the choices whose k - 1 others all rank below l, a share
    `C(l, k-1) / C(n-1, k-1)` of all. The advantage is the sum of these gains.

    Args:
        rewards_B: One reward per sample; 0 and 1 give pass@k, other numbers max@k.
        group_B: int64.
        k: At least 2; None, or more than the group size: the whole group.
        normalize_by_std: Divide by the group's deviation, as GRPO does.
        epsilon: Added to the deviation.
        min_group_spread: Groups whose rewards span less have advantage 0; see `grpo_advantage`.

    Raises:
        ConfigError: k below 2 (the best of one sample is its reward: use GRPO), or a negative
            epsilon or spread.
        TensorError: Shapes that differ, a reward that is not finite.
    """
    if k is not None and k < 2:
        raise ConfigError(
            f"pass_k={k}: the best of one sample is its own reward, as in grpo; pass@k needs at "
            "least 2."
        )
    check_epsilon(epsilon)
    statistics = group_statistics(values_B=rewards_B, group_B=group_B, name="rewards")
    order_B, rank_B, first_B = _sorted_within_groups(rewards_B, group_B)
    count_B = statistics.count_B[order_B]
    spread_B = statistics.spread_B[order_B]
    chosen_B = count_B if k is None else count_B.clamp(max=k)

    exact_B = rewards_B.detach().to(torch.float64)[order_B]
    # Gains are in units of the group's spread, so that large rewards in one group cost no
    # precision in another group's part of the running sum.
    gap_B = torch.where(rank_B > 0, exact_B - exact_B.roll(1), 0.0) / torch.where(
        spread_B > 0, spread_B, 1.0
    )
    running_B = (_share_below(rank_B, count_B, chosen_B) * gap_B).cumsum(0)
    gain_B = (running_B - running_B[first_B]) * spread_B  # the first of a group gains nothing
    if normalize_by_std:
        gain_B = gain_B / (statistics.std_B[order_B] + epsilon)
    advantages_B = torch.empty_like(gain_B)
    advantages_B[order_B] = gain_B
    kept_B = statistics.differ(min_group_spread)
    return torch.where(kept_B, advantages_B, 0.0).to(rewards_B.dtype)


def _sorted_within_groups(
    rewards_B: torch.Tensor, group_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows sorted by group and reward, each row's rank in its group, and its group's first row."""
    by_reward_B = torch.argsort(rewards_B, stable=True)
    order_B = by_reward_B[torch.argsort(group_B[by_reward_B], stable=True)]
    groups_B = group_B[order_B]
    place_B = torch.arange(len(groups_B), device=groups_B.device)
    begins_B = torch.ones_like(groups_B, dtype=torch.bool)
    begins_B[1:] = groups_B[1:] != groups_B[:-1]
    first_B = torch.where(begins_B, place_B, 0).cummax(0).values
    return order_B, place_B - first_B, first_B


def _share_below(
    rank_B: torch.Tensor, count_B: torch.Tensor, chosen_B: torch.Tensor
) -> torch.Tensor:
    """`C(rank, k - 1) / C(n - 1, k - 1)`, by log-factorials; exactly 1 for a group's best."""
    rank = rank_B.double()
    last = count_B.double() - 1
    others = chosen_B.double() - 1
    possible_B = rank >= others
    rest = torch.where(possible_B, rank - others, 0.0)
    logarithm = (torch.lgamma(rank + 1) - torch.lgamma(last + 1)) - (
        torch.lgamma(rest + 1) - torch.lgamma(last - others + 1)
    )
    return torch.where(possible_B, logarithm.exp(), 0.0)


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
    samples = gather_samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = pass_at_k_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        k=pass_k,
        normalize_by_std=norm_adv_by_std_in_grpo,
        epsilon=epsilon,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)
