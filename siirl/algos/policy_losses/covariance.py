"""Clip-Cov and KL-Cov: restrain the few tokens that reduce entropy most.

Source: arXiv 2505.22617, section 4.2. Entropy falls with the covariance of log-prob and advantage,
`c_t = (log pi_t - mean log pi)(A_t - mean A)`. Clip-Cov removes the gradient of some tokens with
large covariance; KL-Cov adds a penalty at the tokens with the largest.

As in the paper, means, ranking and draw cover the tokens of the whole mini-batch on all ranks; they
are computed once, before its first micro-batch. The authors' code does this per micro-batch: the
choice then depends on the cut, and each micro-batch chooses at least one token, far more than the
configured share. The cost here is one more forward pass.
"""

# B row (trajectory), T token, N compared token, R row of any rank

import torch

from siirl.algos.policy_losses.clipped_ratio import clipped_loss
from siirl.algos.policy_losses.loss_registry import PolicyLoss, register_policy_loss
from siirl.algos.ranks import ALONE, Ranks
from siirl.algos.ratios import check_clip, checked_columns, checked_ratio
from siirl.algos.tensor_checks import require_axes, require_same_shape
from siirl.errors import ConfigError


def token_covariance(
    *,
    log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    ranks: Ranks = ALONE,
) -> torch.Tensor:
    """`c_t` (equation 10), float64 [B, T], with means over the kept tokens of all ranks.

    Minus infinity where the mask is 0.
    """
    kept_BT, advantages_BT = checked_columns(
        mask_BT=mask_BT, log_probs_BT=log_probs_BT, advantages_BT=advantages_BT
    )
    both_2BT = torch.stack([log_probs_BT.detach(), advantages_BT]).to(torch.float64)
    both_2BT = torch.where(kept_BT, both_2BT, torch.zeros_like(both_2BT))
    totals = ranks.sum(torch.cat([both_2BT.sum((1, 2)), kept_BT.sum()[None].to(torch.float64)]))
    centred_2BT = both_2BT - (totals[:2] / totals[2].clamp(min=1))[:, None, None]
    return torch.where(kept_BT, centred_2BT[0] * centred_2BT[1], -torch.inf)


def select_clip_cov(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    place_B: torch.Tensor,
    generator: torch.Generator,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    ranks: Ranks = ALONE,
) -> torch.Tensor:
    """Tokens drawn from those with a covariance between two bounds (equation 11), bool [B, T].

    Tokens that PPO's clip affects are not candidates.

    Args:
        log_probs_BT: Log-probs under the policy before the step.
        old_log_probs_BT: Log-probs under the policy in the ratio's denominator.
        advantages_BT: One number per token.
        mask_BT: 1 at the tokens that count.
        place_B: Position of each row among the rows of all ranks, so that the draw does not depend
            on how rows are distributed.
        generator: Draws the tokens; in the same state on every rank, and always advanced.
        clip_ratio_low: PPO's bound.
        clip_ratio_high: PPO's bound.
        clip_cov_ratio: Share of all kept tokens that is chosen, at least one if there are
            candidates; 2e-4, the paper's.
        clip_cov_lb: Lower bound of the covariance; 1, the paper's, which suits normalised
            advantages.
        clip_cov_ub: Upper bound; 5, the paper's.
        ranks: The ranks that share the mini-batch.
    """
    if not (0 < clip_cov_ratio <= 1 and clip_cov_lb < clip_cov_ub):
        raise ConfigError(
            f"clip_cov needs 0 < clip_cov_ratio={clip_cov_ratio} <= 1 and "
            f"clip_cov_lb={clip_cov_lb} < clip_cov_ub={clip_cov_ub}."
        )
    kept_BT, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    covariance_BT = token_covariance(
        log_probs_BT=log_probs_BT, advantages_BT=advantages_BT, mask_BT=kept_BT, ranks=ranks
    )
    _, clipped_BT = clipped_loss(advantages_BT, log_ratio_BT.exp(), clip_ratio_low, clip_ratio_high)
    candidates_BT = (covariance_BT > clip_cov_lb) & (covariance_BT < clip_cov_ub) & ~clipped_BT

    number_BT, total = _numbered(candidates_BT, place_B, ranks)
    wanted = _share(clip_cov_ratio, kept_BT, ranks)
    # the last entry is for tokens that are not candidates
    drawn_N = torch.zeros(total + 1, dtype=torch.bool)
    drawn_N[torch.randperm(total, generator=generator)[:wanted]] = True
    return drawn_N.to(number_BT.device)[number_BT]


def _numbered(
    candidates_BT: torch.Tensor, place_B: torch.Tensor, ranks: Ranks
) -> tuple[torch.Tensor, int]:
    """Number the candidates of all ranks by row and token.

    Returns:
        Each token's number (the count of candidates for other tokens), and that count.
    """
    require_axes(1, place=place_B)
    require_same_shape(place=place_B, rows=candidates_BT.sum(-1))
    counts_R, own = ranks.gather_rows(candidates_BT.sum(-1))
    places_R, _ = ranks.gather_rows(place_B)
    order_R = places_R.argsort()
    before_R = torch.empty_like(counts_R)
    before_R[order_R] = counts_R[order_R].cumsum(0) - counts_R[order_R]
    total = int(counts_R.sum())
    number_BT = before_R[own][:, None] + candidates_BT.cumsum(-1) - 1
    return torch.where(candidates_BT, number_BT, total), total


def select_kl_cov(
    *,
    log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    place_B: torch.Tensor,
    kl_cov_ratio: float = 2e-3,
    ranks: Ranks = ALONE,
) -> torch.Tensor:
    """The tokens with the largest covariance (equation 13), bool [B, T].

    Ties are broken by the order of rows and tokens.

    Args:
        log_probs_BT: Log-probs under the policy before the step.
        advantages_BT: One number per token.
        mask_BT: 1 at the tokens that count.
        place_B: Position of each row among the rows of all ranks.
        kl_cov_ratio: Share of all kept tokens that is chosen, at least one; 2e-3, the paper's for
            7B (32B: 2e-4).
        ranks: The ranks that share the mini-batch.
    """
    if not 0 < kl_cov_ratio <= 1:
        raise ConfigError(
            f"kl_cov_ratio={kl_cov_ratio} is a share of tokens and must lie in (0, 1]."
        )
    kept_BT, advantages_BT = checked_columns(
        mask_BT=mask_BT, log_probs_BT=log_probs_BT, advantages_BT=advantages_BT
    )
    covariance_BT = token_covariance(
        log_probs_BT=log_probs_BT, advantages_BT=advantages_BT, mask_BT=kept_BT, ranks=ranks
    )
    wanted = _share(kl_cov_ratio, kept_BT, ranks)
    number_BT, total = _numbered(kept_BT, place_B, ranks)
    # no other token of this rank can be among the largest
    own_N = _largest(covariance_BT[kept_BT], number_BT[kept_BT], wanted)
    covariance_N, _ = ranks.gather_rows(covariance_BT[kept_BT][own_N])
    number_N, _ = ranks.gather_rows(number_BT[kept_BT][own_N])
    chosen = torch.zeros(total + 1, dtype=torch.bool, device=number_BT.device)
    chosen[number_N[_largest(covariance_N, number_N, wanted)]] = True
    return chosen[number_BT]


def _largest(values_N: torch.Tensor, number_N: torch.Tensor, wanted: int) -> torch.Tensor:
    """Positions of the `wanted` largest values; ties go to the smaller position."""
    by_number_N = number_N.argsort()
    return by_number_N[values_N[by_number_N].argsort(descending=True, stable=True)][:wanted]


def _share(share: float, kept_BT: torch.Tensor, ranks: Ranks) -> int:
    """Number of tokens in a share of the kept tokens of all ranks; at least one."""
    return max(1, int(share * int(ranks.sum(kept_BT.sum()))))


@register_policy_loss("clip_cov", selection=select_clip_cov)
def clip_cov_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    selected_BT: torch.Tensor,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
) -> PolicyLoss:
    """Clip-Cov: PPO's clipped loss, and 0 at the tokens that `select_clip_cov` drew.

    Source: equation 12, listing 1. Equation 12 omits PPO's clip; the authors' listing has it. Drawn
    tokens count in the denominator, as there.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    kept_BT, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    require_same_shape(response_mask=kept_BT, selected=selected_BT)
    loss_BT, clipped_BT = clipped_loss(
        advantages_BT, log_ratio_BT.exp(), clip_ratio_low, clip_ratio_high
    )
    return PolicyLoss(
        loss_BT=torch.where(selected_BT, torch.zeros_like(loss_BT), loss_BT),
        metrics_BT={
            "pg_clipfrac": clipped_BT.float(),
            "selected_share": selected_BT.float(),
            "ppo_kl": -log_ratio_BT.detach(),
        },
    )


@register_policy_loss("kl_cov", own_bounds=True, selection=select_kl_cov)
def kl_cov_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    selected_BT: torch.Tensor,
    ppo_kl_coef: float = 1.0,
) -> PolicyLoss:
    """KL-Cov: `-A r`, plus `ppo_kl_coef * |log r|` at the tokens that `select_kl_cov` chose.

    Source: equation 14. The ratio is not clipped. The authors' listing 1 estimates the KL to the
    old policy by |log r|, with coefficient 1.
    """
    if not ppo_kl_coef >= 0:
        raise ConfigError(
            f"ppo_kl_coef={ppo_kl_coef} is the weight of a penalty and must not be negative."
        )
    kept_BT, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    require_same_shape(response_mask=kept_BT, selected=selected_BT)
    penalty_BT = torch.where(
        selected_BT, ppo_kl_coef * log_ratio_BT.abs(), torch.zeros_like(log_ratio_BT)
    )
    return PolicyLoss(
        loss_BT=-advantages_BT * log_ratio_BT.exp() + penalty_BT,
        metrics_BT={"selected_share": selected_BT.float(), "ppo_kl": -log_ratio_BT.detach()},
    )
