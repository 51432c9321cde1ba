"""Advantages of whole samples, relative to the other samples of their group.

Three rules are common. A group of one has advantage 0. A group whose rewards are equal up to
rounding, or differ by less than `min_group_spread`, has advantage 0. Computations are in float64
for any dtype of rewards. Formulas come first; the estimators that apply them to tokens and ranks
(`siirl.algos.advantages.samples`) follow. Left out: pass@k (`siirl.algos.advantages.pass_at_k`).
"""

# B sample of all ranks, T token

import math

import torch

from siirl.algos.advantages.advantage_registry import Index, Result, register_adv_est
from siirl.algos.advantages.samples import gather_samples
from siirl.algos.groups import GroupStatistics, group_statistics, group_sum
from siirl.algos.ranks import ALONE, Ranks
from siirl.algos.tensor_checks import as_bool_mask, require_counts, require_same_shape
from siirl.errors import ConfigError, UnknownNameError

CPGD_WEIGHTS = ("STD_weight", "clip_filter_like_weight", "naive")
# siiRL's and LightRFT's: bounds the scale of a step with few useful groups.
LARGEST_CPGD_WEIGHT = 3.0


def check_epsilon(epsilon: float) -> None:
    """Raise ConfigError for a negative or infinite epsilon."""
    if not 0 <= epsilon < math.inf:
        raise ConfigError(
            f"epsilon={epsilon} must be finite and not negative: it is added to the divisor."
        )


def _centred(rewards_B: torch.Tensor, statistics: GroupStatistics) -> torch.Tensor:
    """Rewards minus their group's mean, float64, without gradient.

    Later sums then add small numbers, so a common offset costs no digits.
    """
    return rewards_B.detach().to(torch.float64) - statistics.mean_B


def _zero_if_equal(
    advantages_B: torch.Tensor,
    statistics: GroupStatistics,
    *,
    rewards_B: torch.Tensor,
    min_group_spread: float,
) -> torch.Tensor:
    """Advantages in the rewards' dtype; 0 in groups whose rewards do not differ."""
    kept_B = statistics.differ(min_group_spread)
    return torch.where(kept_B, advantages_B, torch.zeros_like(advantages_B)).to(rewards_B.dtype)


def grpo_advantage(
    *,
    rewards_B: torch.Tensor,
    group_B: torch.Tensor,
    epsilon: float = 1e-6,
    normalize_by_std: bool = True,
    min_group_spread: float = 0.0,
) -> torch.Tensor:
    """GRPO: `A_i = (r_i - mean(r)) / (std(r) + epsilon)` within the group.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2. Without `normalize_by_std` there is no
    division (Dr. GRPO, arXiv 2503.20783, section 3.2). The deviation divides by n - 1, as in common
    implementations. Two deliberate differences from siiRL's and verl's documentation: a group of
    one has advantage 0, not its raw reward, and rewards that differ only by rounding are equal.

    Args:
        rewards_B: One reward per sample.
        group_B: int64, samples with the same number form a group.
        epsilon: 1e-6, as in verl; it matters only for groups of nearly equal rewards.
        normalize_by_std: Divide by the group's deviation.
        min_group_spread: Groups whose largest and smallest reward differ by less have advantage 0:
            noise divided by its own deviation would become +-1.

    Raises:
        ConfigError: A negative epsilon or spread.
        TensorError: Shapes that differ, a reward that is not finite.
    """
    check_epsilon(epsilon)
    statistics = group_statistics(values_B=rewards_B, group_B=group_B, name="rewards")
    centred_B = _centred(rewards_B, statistics)
    if normalize_by_std:
        centred_B = centred_B / (statistics.std_B + epsilon)
    return _zero_if_equal(
        centred_B, statistics, rewards_B=rewards_B, min_group_spread=min_group_spread
    )


def rloo_advantage(
    *, rewards_B: torch.Tensor, group_B: torch.Tensor, min_group_spread: float = 0.0
) -> torch.Tensor:
    """RLOO: `A_i = r_i - mean of the others' r`; 0 for a group of one.

    Source: arXiv 2402.14740, section 3.2. Computed as `n / (n - 1) * (r_i - mean(r))`, with the
    mean over all n samples.
    """
    statistics = group_statistics(values_B=rewards_B, group_B=group_B, name="rewards")
    count_B = statistics.count_B.to(torch.float64)
    scale_B = count_B / (count_B - 1).clamp(min=1)
    advantages_B = scale_B * _centred(rewards_B, statistics)
    return _zero_if_equal(
        advantages_B, statistics, rewards_B=rewards_B, min_group_spread=min_group_spread
    )


def opo_advantage(
    *,
    rewards_B: torch.Tensor,
    group_B: torch.Tensor,
    length_B: torch.Tensor,
    min_group_spread: float = 0.0,
) -> torch.Tensor:
    """OPO: `A_i = r_i - sum(l r) / sum(l)` within the group, l the number of tokens.

    Source: arXiv 2505.23585, section 3.2. The minimum-variance baseline weights rewards by squared
    gradient norms. These norms are proportional to the length if token gradients are orthogonal and
    have equal norms, as the paper assumes.

    Args:
        rewards_B: One reward per sample.
        group_B: int64.
        length_B: Tokens that the policy chose, without tool output. The baseline of a group without
            tokens is the plain mean.
        min_group_spread: Groups whose rewards span less have advantage 0; see `grpo_advantage`.

    Raises:
        TensorError: Shapes that differ, a length that is negative or not finite.
    """
    require_same_shape(rewards=rewards_B, length=length_B)
    require_counts(length=length_B)
    exact_B = length_B.to(torch.float64)
    statistics = group_statistics(values_B=rewards_B, group_B=group_B, name="rewards")
    centred_B = _centred(rewards_B, statistics)
    tokens_B = group_sum(values_B=exact_B, group_B=group_B)
    baseline_B = group_sum(values_B=exact_B * centred_B, group_B=group_B) / torch.where(
        tokens_B > 0, tokens_B, 1.0
    )
    return _zero_if_equal(
        centred_B - baseline_B, statistics, rewards_B=rewards_B, min_group_spread=min_group_spread
    )


def gpg_advantage(
    *,
    rewards_B: torch.Tensor,
    group_B: torch.Tensor,
    f_norm: float = 1.0,
    alpha: float | None = None,
    min_group_spread: float = 0.0,
) -> torch.Tensor:
    """GPG: `A_i = alpha * (r_i - mean(r)) / f_norm` (arXiv 2504.02546v4, equations 6 and 7).

    `alpha = B / (B - M)` with B samples, M of them in groups without signal. These contribute 0 to
    the loss's mean, and alpha removes them from its denominator. If a filter has dropped them, M is
    0 and alpha 1.

    Args:
        rewards_B: One reward per sample.
        group_B: int64.
        f_norm: 1, the paper's choice; dividing by the deviation is GRPO.
        alpha: A fixed factor in place of B / (B - M).
        min_group_spread: Groups whose rewards span less have advantage 0; see `grpo_advantage`.

    Raises:
        ConfigError: f_norm is not positive, or alpha not finite.
        TensorError: Shapes that differ, a reward that is not finite.
    """
    if not f_norm > 0:
        raise ConfigError(f"f_norm={f_norm}: GPG divides by it, so it must be positive.")
    if alpha is not None and not math.isfinite(alpha):
        raise ConfigError(f"alpha={alpha}: GPG multiplies by it, so it must be finite.")
    statistics = group_statistics(values_B=rewards_B, group_B=group_B, name="rewards")
    if alpha is None:
        useful = int(statistics.differ(min_group_spread).sum())
        alpha = len(rewards_B) / max(useful, 1)
    advantages_B = alpha / f_norm * _centred(rewards_B, statistics)
    return _zero_if_equal(
        advantages_B, statistics, rewards_B=rewards_B, min_group_spread=min_group_spread
    )


def cpgd_advantage(
    *,
    rewards_B: torch.Tensor,
    group_B: torch.Tensor,
    weighting: str = "STD_weight",
    epsilon: float = 1e-6,
    min_group_spread: float = 0.0,
) -> torch.Tensor:
    """CPGD: `A_i = w * (r_i - mean(r))` within the group, with one of three weights w.

    Source: arXiv 2505.12504, section 4.3, III.

    - `STD_weight`: `w = 1 / (std(r) + epsilon)`, as GRPO; favours prompts that are nearly always
      or nearly never solved;
    - `clip_filter_like_weight`: `w = min(3, G / G')` for all G groups, G' of them with different
      rewards: the effect of dropping the other groups on a mean, without dropping them;
    - `naive`: `w = 1`.

    Raises:
        UnknownNameError: Another weighting.
    """
    if weighting not in CPGD_WEIGHTS:
        raise UnknownNameError.of(kind="weight_factor_in_cpgd", name=weighting, known=CPGD_WEIGHTS)
    if weighting != "clip_filter_like_weight":
        return grpo_advantage(
            rewards_B=rewards_B,
            group_B=group_B,
            epsilon=epsilon,
            normalize_by_std=weighting == "STD_weight",
            min_group_spread=min_group_spread,
        )
    statistics = group_statistics(values_B=rewards_B, group_B=group_B, name="rewards")
    useful_B = statistics.differ(min_group_spread)
    groups = len(torch.unique(group_B))
    useful_groups = len(torch.unique(group_B[useful_B]))
    weight = min(LARGEST_CPGD_WEIGHT, groups / max(useful_groups, 1))
    advantages_B = weight * _centred(rewards_B, statistics)
    return _zero_if_equal(
        advantages_B, statistics, rewards_B=rewards_B, min_group_spread=min_group_spread
    )


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
    samples = gather_samples(token_level_rewards, response_mask, index, ranks=ranks)
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
    samples = gather_samples(token_level_rewards, response_mask, index, ranks=ranks)
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
    samples = gather_samples(token_level_rewards, response_mask, index, ranks=ranks)
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
    samples = gather_samples(token_level_rewards, response_mask, index, ranks=ranks)
    length_B, _ = ranks.gather_rows(as_bool_mask(response_mask).sum(-1))
    advantages_B = opo_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        length_B=length_B,
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
    samples = gather_samples(token_level_rewards, response_mask, index, ranks=ranks)
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
    samples = gather_samples(token_level_rewards, response_mask, index, ranks=ranks)
    advantages_B = cpgd_advantage(
        rewards_B=samples.rewards_B,
        group_B=samples.group_B,
        weighting=weight_factor_in_cpgd,
        epsilon=epsilon,
        min_group_spread=min_group_spread,
    )
    return samples.at_tokens(advantages_B)
