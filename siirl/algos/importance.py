"""Importance weights `pi_old / pi_rollout` for samples of a stale policy or another engine.

Weights are constants (no gradient) that multiply the loss of a token. A product over tokens is
unbiased with high variance; a weight per token is biased with low variance. Both are bounded:
`truncate` limits a weight to the bound (TIS), `mask` drops weights outside the bounds (MIS,
IcePop). Dropped tokens stay in the loss's denominator: a mean over the rest would depend on the
number of dropped tokens, which is known only after all log-probs.
"""

# B row (trajectory), T token

import torch

from siirl.algos.masked import masked_mean, masked_sum
from siirl.algos.ratios import LOG_RATIO_LIMIT, log_ratio
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import ConfigError, UnknownNameError

LEVELS = ("token", "sequence", "geometric")
BOUNDS = ("truncate", "mask")


def importance_weights(
    *,
    old_log_probs_BT: torch.Tensor,
    rollout_log_probs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    level: str,
    bound: str,
    high: float,
    low: float = 0.0,
) -> torch.Tensor:
    """Weights [B, T] without gradient, 0 where the mask is 0.

    With `d_t = log pi_old - log pi_rollout` the weight is `exp(d_t)` (token), `exp(sum d)` of the
    row's kept tokens (sequence) or `exp(mean d)` (geometric).

    Args:
        old_log_probs_BT: Log-probs under the policy that the samples are weighted for.
        rollout_log_probs_BT: Log-probs under the policy that generated the samples.
        mask_BT: 1 at the tokens that count.
        level: One of `LEVELS`.
        bound: `truncate`: `min(w, high)` (V-trace, arXiv 1802.01561, section 4.1; TIS, Yao et al.
            2025); `mask`: `w` inside of [low, high], else 0 (IcePop, arXiv 2510.18855, section
            2.3.2, per token in [0.5, 5]; MIS, Liu et al. 2025, per sequence).
        high: Largest weight.
        low: Smallest weight that `mask` keeps; 0: no lower bound.

    Raises:
        UnknownNameError: No such level or bound.
        ConfigError: Invalid bounds.
        TensorError: Shapes that differ, or numbers that are not finite where the mask is on.
    """
    check_importance(level=level, bound=bound, high=high, low=low)
    require_axes(2, old_log_probs=old_log_probs_BT)
    require_same_shape(
        old_log_probs=old_log_probs_BT,
        rollout_log_probs=rollout_log_probs_BT,
        response_mask=mask_BT,
    )
    kept_BT = as_bool_mask(mask_BT)
    old_log_probs_BT = old_log_probs_BT.detach()
    rollout_log_probs_BT = rollout_log_probs_BT.detach()
    require_finite(
        mask=kept_BT, old_log_probs=old_log_probs_BT, rollout_log_probs=rollout_log_probs_BT
    )
    exponent_BT = log_ratio(
        log_probs_BT=old_log_probs_BT, old_log_probs_BT=rollout_log_probs_BT, mask_BT=kept_BT
    )
    if level != "token":
        of_row = masked_sum if level == "sequence" else masked_mean
        exponent_BT = (
            of_row(exponent_BT, kept_BT, -1)[:, None]
            .expand_as(exponent_BT)
            .clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        )
    weights_BT = exponent_BT.exp()
    inside_BT = kept_BT
    if bound == "truncate":
        weights_BT = weights_BT.clamp(max=high)
    else:
        inside_BT = kept_BT & (weights_BT >= low) & (weights_BT <= high)
    return torch.where(inside_BT, weights_BT, torch.zeros_like(weights_BT))


def check_importance(*, level: str, bound: str, high: float, low: float) -> None:
    """Refuse unknown names and invalid bounds."""
    if level not in LEVELS:
        raise UnknownNameError.of(kind="level of importance weights", name=level, known=LEVELS)
    if bound not in BOUNDS:
        raise UnknownNameError.of(kind="bound of importance weights", name=bound, known=BOUNDS)
    if not high >= 1.0:
        raise ConfigError(
            f"Importance weights: high={high} is below 1, the weight of a sample of the policy "
            "itself."
        )
    if not 0.0 <= low <= 1.0:
        raise ConfigError(
            f"Importance weights: low={low} must lie in [0, 1], as 1 is the weight of a sample of "
            "the policy itself."
        )
    if bound == "truncate" and low > 0.0:
        raise ConfigError(
            f"Importance weights: low={low} is read by bound=mask; truncate bounds large weights "
            "only: leave low out."
        )
