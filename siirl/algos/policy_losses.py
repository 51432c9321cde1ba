"""Policy losses: a loss per token from new and old log-probs and advantages. How tokens are averaged is `siirl.algos.aggregation`'s.

A loss is called by name with what its signature asks for among `LOSS_ARGUMENTS` and returns a `PolicyLoss`. The documents'
form (four scalars from `old_log_prob, log_prob, ...`) is registered with `siirl.dag_worker.core_algos.register_policy_loss`.
"""

# B row (trajectory), T token

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from siirl.algos.call import call_by_name, check_arguments, same_definition
from siirl.algos.checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.algos.masked import masked_mean
from siirl.errors import ConfigError, UnknownNameError

# exp(80) still fits float32. The ratio of a larger log-ratio is held there instead of becoming infinite (inf * 0 is NaN).
LOG_RATIO_LIMIT = 80.0


@dataclass(frozen=True)
class PolicyLoss:
    """What a policy loss returns."""

    loss_BT: torch.Tensor
    """Loss per token, with gradient; 0 where the mask is 0."""
    metrics_BT: dict[str, torch.Tensor] = field(default_factory=dict)
    """Numbers per token that are averaged over the kept tokens of all ranks and logged as `actor/<name>`."""


PolicyLossFunction = Callable[..., PolicyLoss]

POLICY_LOSSES: dict[str, PolicyLossFunction] = {}

# The aggregation that a loss is defined with; `loss_agg_mode` overrides it.
NATIVE_AGGREGATION: dict[str, str] = {}

LOSS_ARGUMENTS = {
    "log_probs_BT": "log-probs of the policy that is trained, with gradient",
    "old_log_probs_BT": "log-probs of the policy that the ratio is taken against",
    "rollout_log_probs_BT": "log-probs of the policy that acted",
    "advantages_BT": "advantages",
    "mask_BT": "1 at the tokens that the policy chose",
    "clip_ratio_low": "the ratio is clipped at 1 - clip_ratio_low",
    "clip_ratio_high": "the ratio is clipped at 1 + clip_ratio_high",
    "clip_ratio_c": "bound of the dual clip",
    "loss_agg_mode": "name of the aggregation",
    "config": "the actor's whole config, for losses with keys of their own",
}


def register_policy_loss(name: str, *, aggregation: str = "token-mean") -> Callable[[PolicyLossFunction], PolicyLossFunction]:
    """Decorator that registers a policy loss, and the aggregation that it is defined with.

    Raises:
        ConfigError: The name is taken by another function, or the function requires an argument that no loss is given.
    """

    def decorator(function: PolicyLossFunction) -> PolicyLossFunction:
        if name in POLICY_LOSSES and not same_definition(POLICY_LOSSES[name], function):
            raise ConfigError(f"Policy loss {name!r} is already {POLICY_LOSSES[name].__qualname__}: choose another name.")
        check_arguments(function, known=LOSS_ARGUMENTS, kind="policy loss")
        POLICY_LOSSES[name] = function
        NATIVE_AGGREGATION[name] = aggregation
        return function

    return decorator


def policy_loss(*, name: str, available: Mapping[str, Any]) -> PolicyLoss:
    """The loss `name` from what is `available` of `LOSS_ARGUMENTS`.

    Raises:
        UnknownNameError: No such loss.
        ConfigError: The loss needs something that is not available.
        TensorError: Inputs of different shapes, or not finite where the mask is on.
    """
    if name not in POLICY_LOSSES:
        raise UnknownNameError.of(kind="policy loss", name=name, known=POLICY_LOSSES)
    result: PolicyLoss = call_by_name(POLICY_LOSSES[name], available, kind="Policy loss")
    require_same_shape(response_mask=available["mask_BT"], loss=result.loss_BT, **result.metrics_BT)
    return result


def check_clip(*, clip_ratio_low: float, clip_ratio_high: float, clip_ratio_c: float | None = None) -> None:
    """Raise ConfigError for bounds that make no sense."""
    if not 0.0 <= clip_ratio_low <= 1.0:
        raise ConfigError(f"clip_ratio_low={clip_ratio_low}: the ratio is clipped at 1 - clip_ratio_low, so it must lie in [0, 1].")
    if not clip_ratio_high >= 0.0:
        raise ConfigError(f"clip_ratio_high={clip_ratio_high}: the ratio is clipped at 1 + clip_ratio_high, so it must not be negative.")
    if clip_ratio_c is not None and not clip_ratio_c > 1.0:
        raise ConfigError(f"clip_ratio_c={clip_ratio_c}: the dual clip bounds the ratio from above and must be larger than 1.")


def log_ratio(*, log_probs_BT: torch.Tensor, old_log_probs_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """`log pi - log pi_old`, 0 where the mask is 0 and held within +-`LOG_RATIO_LIMIT`.

    Masked before anything is exponentiated, because what stands at a masked token may be anything and 0 * inf is NaN.
    """
    difference_BT = torch.where(as_bool_mask(mask_BT), log_probs_BT - old_log_probs_BT, torch.zeros_like(log_probs_BT))
    return difference_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _checked_mask(
    log_probs_BT: torch.Tensor, old_log_probs_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    require_axes(2, log_probs=log_probs_BT)
    require_same_shape(log_probs=log_probs_BT, old_log_probs=old_log_probs_BT, advantages=advantages_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_finite(mask=kept_BT, log_probs=log_probs_BT.detach(), old_log_probs=old_log_probs_BT, advantages=advantages_BT)
    return kept_BT


def _clipped(advantages_BT: torch.Tensor, ratio_BT: torch.Tensor, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's pessimistic bound `max(-A r, -A clip(r))`, and where the clip is what bounds."""
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    return torch.maximum(plain_BT, clipped_BT), (clipped_BT > plain_BT).detach()


@register_policy_loss("vanilla")
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
    """PPO's clipped loss (arXiv 1707.06347, equation 7), with its own lower and upper bound and the dual clip.

    `max(-A r, -A clip(r, 1 - low, 1 + high))`, and for A < 0 at most `-A c` (dual clip, arXiv 1912.09729, equation 5).

    Args:
        log_probs_BT: With gradient.
        old_log_probs_BT: Without.
        advantages_BT: One number a token.
        mask_BT: 1 at the tokens that count.
        clip_ratio_low: 0.2, PPO's own.
        clip_ratio_high: 0.2, PPO's own; DAPO takes 0.28 (arXiv 2503.14476, section 3.1).
        clip_ratio_c: 3, from the dual clip's paper; None leaves it out.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high, clip_ratio_c=clip_ratio_c)
    kept_BT = _checked_mask(log_probs_BT, old_log_probs_BT, advantages_BT, mask_BT)
    advantages_BT = torch.where(kept_BT, advantages_BT, torch.zeros_like(advantages_BT))
    log_ratio_BT = log_ratio(log_probs_BT=log_probs_BT, old_log_probs_BT=old_log_probs_BT, mask_BT=kept_BT)
    loss_BT, clipped_BT = _clipped(advantages_BT, log_ratio_BT.exp(), clip_ratio_low, clip_ratio_high)
    bounded_BT = torch.zeros_like(clipped_BT)
    if clip_ratio_c is not None:
        ceiling_BT = -advantages_BT * clip_ratio_c
        bounded_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT).detach()
        loss_BT = torch.where(bounded_BT, ceiling_BT, loss_BT)
    return PolicyLoss(
        loss_BT=loss_BT,
        metrics_BT={"pg_clipfrac": clipped_BT.float(), "pg_clipfrac_lower": bounded_BT.float(), "ppo_kl": -log_ratio_BT.detach()},
    )


@register_policy_loss("gspo", aggregation="seq-mean-token-mean")
def gspo_policy_loss(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    clip_ratio_low: float = 3e-4,
    clip_ratio_high: float = 4e-4,
) -> PolicyLoss:
    """GSPO: one ratio a row, `s = exp(mean_t log(pi_t / pi_old_t))`, clipped as a whole (arXiv 2507.18071, equations 5 to 7).

    Written in its token form (equation 14), `s * exp(log pi_t - stop(log pi_t))`, which has the value of the row form and, under its
    own aggregation seq-mean-token-mean and advantages that are equal in a row, the gradient of the row form. The mean is over kept tokens.
    Bounds of 3e-4 and 4e-4 are the paper's (section 5.1): a mean log-ratio is far smaller than a token's.
    """
    check_clip(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    kept_BT = _checked_mask(log_probs_BT, old_log_probs_BT, advantages_BT, mask_BT)
    advantages_BT = torch.where(kept_BT, advantages_BT, torch.zeros_like(advantages_BT))
    log_ratio_BT = log_ratio(log_probs_BT=log_probs_BT, old_log_probs_BT=old_log_probs_BT, mask_BT=kept_BT)
    row_B1 = masked_mean(log_ratio_BT.detach(), kept_BT, -1)[:, None]
    token_BT = torch.where(kept_BT, log_probs_BT - log_probs_BT.detach(), torch.zeros_like(log_probs_BT))  # 0, with gradient
    loss_BT, clipped_BT = _clipped(advantages_BT, (row_B1 + token_BT).exp(), clip_ratio_low, clip_ratio_high)
    return PolicyLoss(
        loss_BT=torch.where(kept_BT, loss_BT, torch.zeros_like(loss_BT)),
        metrics_BT={"pg_clipfrac": clipped_BT.float(), "ppo_kl": -log_ratio_BT.detach()},
    )
