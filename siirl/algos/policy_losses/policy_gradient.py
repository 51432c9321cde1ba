"""Losses whose gradient is a weight times `A * grad log pi`, without PPO's clipped ratio.

The weight is 1 (GPG), 1 within bounds of the log-ratio (CPGD), a bounded constant ratio (CISPO), or
a gate that closes smoothly (SAPO).
"""

# B row (trajectory), T token

import math

import torch

from siirl.algos.policy_losses.loss_registry import PolicyLoss, register_policy_loss
from siirl.algos.ratios import check_clip, checked_columns, checked_ratio
from siirl.errors import ConfigError


@register_policy_loss("gpg", own_bounds=True, times_advantage=True, token_by_token=True)
def gpg_policy_loss(
    *, log_probs_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor
) -> PolicyLoss:
    """GPG: `-A log pi`, the plain policy gradient, for one update per sample.

    Source: arXiv 2504.02546v4, equation 5. `adv_estimator=gpg` rescales for groups without signal.
    """
    kept_BT, advantages_BT = checked_columns(
        mask_BT=mask_BT, log_probs_BT=log_probs_BT, advantages_BT=advantages_BT
    )
    return PolicyLoss(
        loss_BT=-advantages_BT * torch.where(kept_BT, log_probs_BT, torch.zeros_like(log_probs_BT))
    )


@register_policy_loss("cpgd")  # its drift term has a gradient in every row
def cpgd_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    policy_drift_coef: float = 0.01,
    policy_drift_cap: float = 3.0,
) -> PolicyLoss:
    """CPGD: PPO's bound on the log-ratio `d` instead of the ratio, plus a drift term.

    Source: arXiv 2505.12504, equation 2.

    `max(-A d, -A clip(d, log(1 - low), log(1 + high))) + policy_drift_coef * (stop(min(exp(d),
    cap)) - 1) * d`. The second term's gradient `(r - 1) grad log pi` is that of KL(pi_old || pi)
    with a control variate, so it is 0 if the policy has not moved. The first term differs from `-A
    log pi` by a constant; no ratio multiplies the gradient.

    Args:
        log_probs_BT: Log-probs under the trained policy, with gradient.
        old_log_probs_BT: Log-probs under the policy in the ratio's denominator, without gradient.
        advantages_BT: One number per token.
        mask_BT: 1 at the tokens that count.
        clip_ratio_low: 0.2, PPO's own; below 1, because the bound is log(1 - low).
        clip_ratio_high: 0.2, PPO's own.
        policy_drift_coef: 0.01, the authors'; siiRL defaults to 0, its scripts set 0.001.
        policy_drift_cap: Limit of the ratio in the drift term; 3, as in siiRL; the authors use a
            clip range of 0.2.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    if clip_ratio_low == 1.0:
        raise ConfigError(
            "clip_ratio_low=1.0: cpgd clips the log-ratio at log(1 - clip_ratio_low), so it must "
            "be below 1."
        )
    if not (policy_drift_coef >= 0 and policy_drift_cap > 1):
        raise ConfigError(
            f"cpgd needs policy_drift_coef={policy_drift_coef} >= 0 and "
            f"policy_drift_cap={policy_drift_cap} > 1."
        )
    _, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    held_BT = log_ratio_BT.clamp(math.log1p(-clip_ratio_low), math.log1p(clip_ratio_high))
    plain_BT, clipped_BT = -advantages_BT * log_ratio_BT, -advantages_BT * held_BT
    drift_BT = (log_ratio_BT.detach().exp().clamp(max=policy_drift_cap) - 1) * log_ratio_BT
    return PolicyLoss(
        loss_BT=torch.maximum(plain_BT, clipped_BT) + policy_drift_coef * drift_BT,
        metrics_BT={
            "pg_clipfrac": (clipped_BT > plain_BT).detach().float(),
            "ppo_kl": -log_ratio_BT.detach(),
            "policy_drift": drift_BT.detach(),
        },
    )


@register_policy_loss("cispo", own_bounds=True, times_advantage=True, token_by_token=True)
def cispo_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 1.0,
    clip_ratio_high: float = 4.0,
) -> PolicyLoss:
    """CISPO: `-stop(clip(r, 1 - low, 1 + high)) A log pi`.

    Source: MiniMax-M1, arXiv 2506.13585, section 3.1, equations 4 and 5. The weight is clipped, not
    the update: no token loses its gradient.

    Args:
        log_probs_BT: Log-probs under the trained policy, with gradient.
        old_log_probs_BT: Log-probs under the policy in the ratio's denominator, without gradient.
        advantages_BT: One number per token.
        mask_BT: 1 at the tokens that count.
        clip_ratio_low: 1, no lower bound, as the paper.
        clip_ratio_high: 4: a weight is at most 5, as TRL recommends after ScaleRL (arXiv
            2510.13786); the paper gives no number.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    kept_BT, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT.detach(),
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    ratio_BT = log_ratio_BT.exp()
    weight_BT = ratio_BT.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    return PolicyLoss(
        loss_BT=-weight_BT
        * advantages_BT
        * torch.where(kept_BT, log_probs_BT, torch.zeros_like(log_probs_BT)),
        metrics_BT={"pg_clipfrac": (weight_BT != ratio_BT).float(), "ppo_kl": -log_ratio_BT},
    )


@register_policy_loss(
    "sapo",
    aggregation="seq-mean-token-mean",
    own_bounds=True,
    times_advantage=True,
    token_by_token=True,
)
def sapo_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> PolicyLoss:
    """SAPO: `-A sigmoid(tau (r - 1)) * 4 / tau`, a gate that closes smoothly where PPO clips.

    Source: arXiv 2511.20347, section 3, equations 5 and 6. At r = 1 its slope is 1, like that of
    the ratio. Tokens with a positive advantage use `tau_pos`, all others `tau_neg`, which is larger
    because lowering one token raises all others; 1.0 and 1.05 are the paper's.
    """
    if not (tau_pos > 0 and tau_neg > 0):
        raise ConfigError(
            f"sapo divides by its temperatures: tau_pos={tau_pos} and tau_neg={tau_neg} must be "
            "positive."
        )
    _, advantages_BT, log_ratio_BT = checked_ratio(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=old_log_probs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    ones_BT = torch.ones_like(advantages_BT)  # two Python numbers would be float32
    tau_BT = torch.where(advantages_BT > 0, tau_pos * ones_BT, tau_neg * ones_BT)
    gate_BT = torch.sigmoid(tau_BT * (log_ratio_BT.exp() - 1)) * (4 / tau_BT)
    return PolicyLoss(
        loss_BT=-advantages_BT * gate_BT, metrics_BT={"ppo_kl": -log_ratio_BT.detach()}
    )
