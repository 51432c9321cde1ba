"""Losses with one ratio per row: the geometric mean of token ratios.

GSPO clips the mean, GMPO clips each token. The length of a row is its number of kept tokens,
without tool output and unexecuted actions. The advantage of a row is the mean over its kept tokens.
Each kept token gets the loss of its row, so the mean over tokens is the row's loss.
"""

# B row (trajectory), T token

import torch

from siirl.algos.masked import masked_mean
from siirl.algos.policy_losses.clipped_ratio import clipped_loss
from siirl.algos.policy_losses.loss_registry import PolicyLoss, register_policy_loss
from siirl.algos.ratios import check_clip, checked_ratio


@register_policy_loss(
    "gspo", aggregation="seq-mean-token-mean", own_bounds=True, times_advantage=True
)
def gspo_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 3e-4,
    clip_ratio_high: float = 4e-4,
) -> PolicyLoss:
    """GSPO: one ratio per row, `s = exp(mean_t log(pi_t / pi_old_t))`, clipped as a whole.

    Source: arXiv 2507.18071, equations 5 to 7. `max(-A s, -A clip(s, 1 - low, 1 + high))`. The
    bounds 3e-4 and 4e-4 are the paper's (section 5.1): a mean log-ratio is far smaller than a
    token's.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    kept_BT, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    ratio_B = masked_mean(log_ratio_BT, kept_BT, -1).exp()
    loss_B, clipped_B = clipped_loss(
        masked_mean(advantages_BT, kept_BT, -1), ratio_B, clip_ratio_low, clip_ratio_high
    )
    return PolicyLoss(
        loss_BT=_at_kept_tokens(loss_B, kept_BT),
        metrics_BT={
            "pg_clipfrac": _at_kept_tokens(clipped_B.float(), kept_BT),
            "ppo_kl": -log_ratio_BT.detach(),
        },
    )


@register_policy_loss(
    "gspo_token", aggregation="seq-mean-token-mean", own_bounds=True, times_advantage=True
)
def gspo_token_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 3e-4,
    clip_ratio_high: float = 4e-4,
) -> PolicyLoss:
    """GSPO's token form for advantages per token: `stop(s) * exp(log pi_t - stop(log pi_t))`.

    Source: arXiv 2507.18071, equations 13 and 14. Its value equals the row form's; so does its
    gradient if the advantages of a row are equal.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    kept_BT, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    row_B1 = masked_mean(log_ratio_BT.detach(), kept_BT, -1)[:, None]
    token_BT = torch.where(
        kept_BT, log_probs_BT - log_probs_BT.detach(), torch.zeros_like(log_probs_BT)
    )  # 0, with gradient
    loss_BT, clipped_BT = clipped_loss(
        advantages_BT, (row_B1 + token_BT).exp(), clip_ratio_low, clip_ratio_high
    )
    return PolicyLoss(
        loss_BT=torch.where(kept_BT, loss_BT, torch.zeros_like(loss_BT)),
        metrics_BT={"pg_clipfrac": clipped_BT.float(), "ppo_kl": -log_ratio_BT.detach()},
    )


@register_policy_loss(
    "gmpo", aggregation="seq-mean-token-mean", own_bounds=True, times_advantage=True
)
def gmpo_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 0.4,
    clip_ratio_high: float = 0.4,
) -> PolicyLoss:
    """GMPO: geometric mean of token ratios, each clipped pessimistically before the mean.

    Source: arXiv 2507.20673, section 3, equation 4. `-A exp(mean_t m_t)` with the log-ratio `d_t`
    and `m_t = min(d_t, clip(d_t))` for A > 0, `max(d_t, clip(d_t))` for A < 0. The bounds are those
    of the *log*-ratio, `[-low, high]`; 0.4 is the paper's (e^-0.4, e^0.4), wider than PPO's.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    kept_BT, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    advantage_B = masked_mean(advantages_BT, kept_BT, -1)
    held_BT = log_ratio_BT.clamp(-clip_ratio_low, clip_ratio_high)
    pessimistic_BT = torch.where(
        advantage_B[:, None] > 0,
        torch.minimum(log_ratio_BT, held_BT),
        torch.maximum(log_ratio_BT, held_BT),
    )
    loss_B = -advantage_B * masked_mean(pessimistic_BT, kept_BT, -1).exp()
    clipped_BT = (pessimistic_BT != log_ratio_BT).detach() & kept_BT
    return PolicyLoss(
        loss_BT=_at_kept_tokens(loss_B, kept_BT),
        metrics_BT={"pg_clipfrac": clipped_BT.float(), "ppo_kl": -log_ratio_BT.detach()},
    )


def _at_kept_tokens(values_B: torch.Tensor, kept_BT: torch.Tensor) -> torch.Tensor:
    return torch.where(
        kept_BT,
        values_B[:, None].expand(kept_BT.shape),
        torch.zeros((), dtype=values_B.dtype, device=values_B.device),
    )
