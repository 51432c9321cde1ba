"""PPO's clipped loss: with dual clip and two bounds, and decoupled from the acting policy."""

# B row (trajectory), T token

import torch

from siirl.algos.importance import importance_weights
from siirl.algos.policy_losses.loss_registry import PolicyLoss, register_policy_loss
from siirl.algos.ratios import check_clip, checked_ratio
from siirl.algos.tensor_checks import require_same_shape


def clipped_loss(
    advantages_BT: torch.Tensor, ratio_BT: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's pessimistic bound `max(-A r, -A clip(r))`, and where the clip is active.

    One number per token, or one per row.
    """
    require_same_shape(advantages=advantages_BT, ratio=ratio_BT)
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    return torch.maximum(plain_BT, clipped_BT), (clipped_BT > plain_BT).detach()


@register_policy_loss("vanilla", times_advantage=True, token_by_token=True)
def vanilla_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float | None = 3.0,
) -> PolicyLoss:
    """PPO's clipped loss (arXiv 1707.06347, equation 7), with separate bounds and the dual clip.

    `max(-A r, -A clip(r, 1 - low, 1 + high))`, and for A < 0 at most `-A c` (dual clip, arXiv
    1912.09729, equation 5).

    Args:
        log_probs_BT: Log-probs under the trained policy, with gradient.
        old_log_probs_BT: Log-probs under the policy in the ratio's denominator, without gradient.
        advantages_BT: One number per token.
        mask_BT: 1 at the tokens that count.
        clip_ratio_low: 0.2, PPO's own.
        clip_ratio_high: 0.2, PPO's own; DAPO takes 0.28 (arXiv 2503.14476, section 3.1).
        clip_ratio_c: 3, from the dual clip's paper; None: no dual clip.
    """
    check_clip(
        clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high, clip_ratio_c=clip_ratio_c
    )
    _, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    loss_BT, clipped_BT = clipped_loss(
        advantages_BT, log_ratio_BT.exp(), clip_ratio_low, clip_ratio_high
    )
    bounded_BT = torch.zeros_like(clipped_BT)
    if clip_ratio_c is not None:
        ceiling_BT = -advantages_BT * clip_ratio_c
        bounded_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT).detach()
        loss_BT = torch.where(bounded_BT, ceiling_BT, loss_BT)
    return PolicyLoss(
        loss_BT=loss_BT,
        metrics_BT={
            "pg_clipfrac": clipped_BT.float(),
            "pg_clipfrac_lower": bounded_BT.float(),
            "ppo_kl": -log_ratio_BT.detach(),
        },
    )


@register_policy_loss("decoupled", times_advantage=True, token_by_token=True, own_weights=True)
def decoupled_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    rollout_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float | None = 3.0,
    behaviour_weight_cap: float = 5.0,
) -> PolicyLoss:
    """PPO whose clip is centred on a recent policy, not on the one that acted.

    The decoupled objective, arXiv 2110.00641, section 2; AReaL, arXiv 2505.24298, section 5.2,
    equations 4 and 5.

    `w * max(-A r, -A clip(r))` with `r = pi / pi_old`, where old is the proximal policy, and `w =
    pi_old / pi_rollout`, a constant. So it is vanilla times masked importance weights.

    Args:
        log_probs_BT: Log-probs under the trained policy, with gradient.
        old_log_probs_BT: Log-probs under the proximal policy: the weights before this training
            step.
        rollout_log_probs_BT: Log-probs under the policy that acted, perhaps some updates ago.
        advantages_BT: One number per token.
        mask_BT: 1 at the tokens that count.
        clip_ratio_low: 0.2, PPO's own.
        clip_ratio_high: 0.2, PPO's own.
        clip_ratio_c: 3, from the dual clip's paper; None: no dual clip.
        behaviour_weight_cap: Tokens with a larger weight are dropped but stay in the denominator;
            5, AReaL's former default (arXiv 2505.24298).
    """
    weights_BT = importance_weights(
        old_log_probs_BT=old_log_probs_BT,
        rollout_log_probs_BT=rollout_log_probs_BT,
        mask_BT=mask_BT,
        level="token",
        bound="mask",
        high=behaviour_weight_cap,
    )
    vanilla = vanilla_policy_loss(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
        clip_ratio_low=clip_ratio_low,
        clip_ratio_high=clip_ratio_high,
        clip_ratio_c=clip_ratio_c,
    )
    return PolicyLoss(
        loss_BT=vanilla.loss_BT * weights_BT,
        metrics_BT={**vanilla.metrics_BT, "importance_weight": weights_BT},
    )
