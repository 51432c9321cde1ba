"""Functions with the names and arguments of siiRL's and verl's documentation, over `siirl.algos`.

New code uses `siirl.algos` directly. Results differ from the documented listings on purpose:
- a group of one has advantage 0, not its raw score; equal rewards have advantage 0 despite rounding
  (GRPO and its variants);
- a reward at a masked token is an error; the listing drops it (GAE);
- `compute_policy_loss_cpgd` takes the log-ratio instead of the log-prob: it differs by a constant
  and has the same gradient;
- `compute_policy_loss_kl_cov` selects 2e-3 of the tokens by default, the paper's share for 7B
  (siiRL: 2e-4), and its `ppo_kl` is the signed mean (siiRL: the mean size); `pg_clipfrac` of
  `compute_policy_loss_clip_cov` counts the tokens that PPO clips (siiRL: the drawn ones);
- `agg_loss` excludes rows without tokens from the mean, and divides seq-mean-token-sum-norm by rows
  and length;
- NaN, infinity and mismatched shapes are errors; log-ratios are clamped to +-80, so that ratios are
  finite;
- `apply_kl_penalty` returns a copy with the column `token_level_rewards` and does not change its
  input.
"""

# B row, T token

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.advantages import ADVANTAGES, Estimator, register_adv_est
from siirl.algos.aggregation import aggregate_loss, aggregation_weight
from siirl.algos.call import name_of
from siirl.algos.kl import AdaptiveKLController, FixedKLController, kl_estimate
from siirl.algos.log_probs import token_scores
from siirl.algos.masked import masked_mean, masked_sum, masked_var, masked_whiten
from siirl.algos.policy_losses import (
    LOSS_TRAITS,
    POLICY_LOSSES,
    PolicyLoss,
    gspo_policy_loss,
    policy_loss,
    select_tokens,
    vanilla_policy_loss,
)
from siirl.algos.policy_losses.loss_registry import check_loss_options, loss_options
from siirl.algos.ranks import ALONE
from siirl.algos.tensor_checks import as_bool_mask, require_same_shape
from siirl.algos.value_loss import clipped_value_loss
from siirl.compat.loss_registration import (
    POLICY_LOSS_REGISTRY,
    SCALARS,
    PolicyLossFn,
    register_policy_loss,
)
from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.scheduler.enums import AdvantageEstimator

__all__ = [
    "ADV_ESTIMATOR_REGISTRY",
    "POLICY_LOSS_REGISTRY",
    "AdaptiveKLController",
    "AdvantageEstimator",
    "FixedKLController",
    "PolicyLossFn",
    "agg_loss",
    "apply_kl_penalty",
    "compute_entropy_loss",
    "compute_log_prob_from_logits",
    "compute_policy_loss",
    "compute_policy_loss_cispo",
    "compute_policy_loss_clip_cov",
    "compute_policy_loss_cpgd",
    "compute_policy_loss_geo_mean",
    "compute_policy_loss_gpg",
    "compute_policy_loss_gspo",
    "compute_policy_loss_kl_cov",
    "compute_policy_loss_sapo",
    "compute_policy_loss_vanilla",
    "compute_value_loss",
    "kl_penalty",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "register_adv_est",
    "register_policy_loss",
]

ADV_ESTIMATOR_REGISTRY = ADVANTAGES
LOSS_MODE = "loss_mode"  # verl's `policy_loss` also holds the loss's name, and Hydra's `_target_`


def __getattr__(name: str) -> Estimator:
    """Look up an estimator by its documented name, which is the name of its function."""
    for estimator in ADVANTAGES.values():
        if name_of(estimator) == name:
            return estimator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def agg_loss(loss_mat: torch.Tensor, loss_mask: torch.Tensor, loss_agg_mode: str) -> torch.Tensor:
    """Aggregate a loss [B, T] over these rows; `siirl.algos.aggregate_loss` takes parts."""
    weight = aggregation_weight(mask_BT=loss_mask, mode=loss_agg_mode).clamp(min=1)
    return aggregate_loss(
        loss_BT=loss_mat,
        mask_BT=loss_mask,
        mode=loss_agg_mode,
        denominator=weight,
        horizon=loss_mask.shape[-1],
    )


def _scalars(
    result: PolicyLoss, mask: torch.Tensor, mode: str, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    loss_BT = result.loss_BT if weights is None else result.loss_BT * weights
    zero = torch.zeros((), device=mask.device)
    shares = [
        masked_mean(result.metrics_BT[name], mask) if name in result.metrics_BT else zero
        for name in SCALARS
    ]
    return agg_loss(loss_BT, mask, mode), shares[0], shares[1], shares[2]


def compute_policy_loss_vanilla(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """PPO's loss with dual clip: (pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower).

    `config` has the clip_ratio keys of the actor.
    """
    if config is None:
        raise ConfigError(
            "compute_policy_loss_vanilla reads clip_ratio, clip_ratio_low, clip_ratio_high and "
            "clip_ratio_c from config."
        )
    result = vanilla_policy_loss(
        log_probs_BT=log_prob,
        old_log_probs_BT=old_log_prob,
        advantages_BT=advantages,
        mask_BT=response_mask,
        **_bounds(config, own=False),
        clip_ratio_c=config.clip_ratio_c,
    )
    return _scalars(result, response_mask, loss_agg_mode, rollout_is_weights)


def compute_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange: float,
    loss_agg_mode: str = "token-mean",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """PPO's loss with one clip range, and dual clip at 3, as in siiRL's documented actor."""
    result = vanilla_policy_loss(
        log_probs_BT=log_prob,
        old_log_probs_BT=old_log_prob,
        advantages_BT=advantages,
        mask_BT=response_mask,
        clip_ratio_low=cliprange,
        clip_ratio_high=cliprange,
    )
    return _scalars(result, response_mask, loss_agg_mode, None)


def compute_policy_loss_gspo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """GSPO's loss: (pg_loss, pg_clipfrac, ppo_kl, 0), without dual clip.

    `config` has the clip_ratio keys of the actor.
    """
    if config is None:
        raise ConfigError(
            "compute_policy_loss_gspo reads clip_ratio, clip_ratio_low and clip_ratio_high from "
            "config."
        )
    result = gspo_policy_loss(
        log_probs_BT=log_prob,
        old_log_probs_BT=old_log_prob,
        advantages_BT=advantages,
        mask_BT=response_mask,
        **_bounds(config, own=False),
    )
    return _scalars(result, response_mask, loss_agg_mode, rollout_is_weights)


def _bounds(config: Any, *, own: bool) -> dict[str, Any]:
    """Clip bounds from `config`; none without `config`.

    A bound of None is left out if the loss uses its own then (`own`), else it is `clip_ratio`.
    """
    if config is None:
        return {}
    set_bounds = {
        "clip_ratio_low": config.clip_ratio_low,
        "clip_ratio_high": config.clip_ratio_high,
    }
    fallback = {} if own else dict.fromkeys(set_bounds, config.clip_ratio)
    return {**fallback, **{key: value for key, value in set_bounds.items() if value is not None}}


def _options(name: str, config: Any) -> dict[str, Any]:
    """Options of the loss from `config.policy_loss` (object or mapping); None: the loss's default.

    One `policy_loss` serves several losses, so keys of other losses are ignored.

    Raises:
        UnknownNameError: No policy loss has such an option.
        ConfigError: The loss does not accept the value.
    """
    given = getattr(config, "policy_loss", None)  # only losses with options ask for it
    if given is None:
        return {}
    values = (
        dict(given)
        if isinstance(given, Mapping)
        else {key: getattr(given, key) for key in dir(given)}
    )
    values = {key: value for key, value in values.items() if not key.startswith("_")}
    known = {option for loss in POLICY_LOSSES for option in loss_options(loss)}
    for option, value in values.items():
        if option not in known | {LOSS_MODE} and not callable(value):
            # methods of the object are no options
            raise UnknownNameError.of(kind="key of config.policy_loss", name=option, known=known)
    options = {
        option: values[option] for option in loss_options(name) if values.get(option) is not None
    }
    check_loss_options(name, options)
    return options


def _of_the_documents(name: str) -> PolicyLossFn:
    """Policy loss `name` of `siirl.algos` in verl's form; the rows are a whole batch."""

    def compute_policy_loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = LOSS_TRAITS[name].aggregation,
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        available = {
            "log_probs_BT": log_prob,
            "old_log_probs_BT": old_log_prob,
            "advantages_BT": advantages,
            "mask_BT": response_mask,
            **_bounds(config, own=LOSS_TRAITS[name].own_bounds),
            **_options(name, config),
        }
        if LOSS_TRAITS[name].selection is not None:
            alone = {
                "place_B": torch.arange(len(log_prob)),
                "generator": torch.Generator(),
                "ranks": ALONE,
            }
            available["selected_BT"] = select_tokens(
                name=name, available={**available, "log_probs_BT": log_prob.detach(), **alone}
            )
        return _scalars(
            policy_loss(name=name, available=available),
            response_mask,
            loss_agg_mode,
            rollout_is_weights,
        )

    options = ", ".join(f"{option}={value}" for option, value in loss_options(name).items())
    compute_policy_loss.__doc__ = (
        f"The loss {name!r} of siirl.algos: (pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower). "
        "`config` has the clip_ratio keys of the "
        f"actor; `config.policy_loss` sets its options ({options or 'none'})."
    )
    return compute_policy_loss


compute_policy_loss_cispo = _of_the_documents("cispo")
compute_policy_loss_clip_cov = _of_the_documents("clip_cov")
compute_policy_loss_cpgd = _of_the_documents("cpgd")
compute_policy_loss_geo_mean = _of_the_documents("gmpo")
compute_policy_loss_gpg = _of_the_documents("gpg")
compute_policy_loss_kl_cov = _of_the_documents("kl_cov")
compute_policy_loss_sapo = _of_the_documents("sapo")


def compute_value_loss(
    vpreds: torch.Tensor,
    returns: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The critic's clipped loss and the share of clipped tokens."""
    loss_BT, clipped_BT = clipped_value_loss(
        values_BT=vpreds,
        old_values_BT=values,
        returns_BT=returns,
        mask_BT=response_mask,
        clip_range=cliprange_value,
    )
    return agg_loss(loss_BT, response_mask, loss_agg_mode), masked_mean(clipped_BT, response_mask)


def compute_log_prob_from_logits(
    logits: torch.Tensor, responses: torch.Tensor, response_mask: torch.Tensor
) -> torch.Tensor:
    """Log-probs [B, T] of response tokens from logits [B, T, V] that predict them; 0 if masked."""
    log_probs_BT, _ = _kept_scores(logits, responses, response_mask)
    return log_probs_BT


def compute_entropy_loss(logits: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Mean entropy over unmasked tokens, from logits [B, T, V]; siiRL's actor subtracts it."""
    _, entropy_BT = _kept_scores(logits, logits.argmax(-1), response_mask)
    return masked_mean(entropy_BT, response_mask)


def _kept_scores(
    logits: torch.Tensor, responses: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropy; 0 where the mask is 0, for any logits."""
    require_same_shape(responses=responses, response_mask=mask, places_of_logits=logits[..., 0])
    kept_BT = as_bool_mask(mask)
    scores = token_scores(
        logits=torch.where(kept_BT[..., None], logits, torch.zeros_like(logits)), tokens=responses
    )
    zeros_BT = torch.zeros_like(scores.log_probs_BT)
    return torch.where(kept_BT, scores.log_probs_BT, zeros_BT), torch.where(
        kept_BT, scores.entropy_BT, zeros_BT
    )


def kl_penalty(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str) -> torch.Tensor:
    """KL estimate per token by the name `kl_penalty` (`siirl.algos.kl.KL_NAMES`), all finite."""
    every_token = torch.ones_like(logprob, dtype=torch.bool)
    return kl_estimate(
        log_probs_BT=logprob, ref_log_probs_BT=ref_logprob, mask_BT=every_token, name=kl_penalty
    )


def apply_kl_penalty(
    data: TensorDict, kl_ctrl: FixedKLController, kl_penalty: str = "kl"
) -> tuple[TensorDict, dict[str, float]]:
    """Subtract `kl_ctrl.value * KL` from `token_level_scores`, and update the controller.

    Returns:
        A shallow copy with `token_level_rewards`, and the metrics `actor/reward_kl_penalty` and
        `actor/kl_coef`.
    """
    mask_BT = data["response_mask"]
    kl_BT = kl_estimate(
        log_probs_BT=data["old_log_probs"],
        ref_log_probs_BT=data["ref_log_prob"],
        mask_BT=mask_BT,
        name=kl_penalty,
    )
    coefficient = kl_ctrl.value
    current_kl = float(masked_mean(kl_BT, mask_BT))
    kl_ctrl.update(current_kl=current_kl, n_steps=len(data))
    rewarded = data.copy()
    rewarded["token_level_rewards"] = data["token_level_scores"] - coefficient * kl_BT
    return rewarded, {"actor/reward_kl_penalty": current_kl, "actor/kl_coef": coefficient}


POLICY_LOSS_REGISTRY |= {
    "vanilla": compute_policy_loss_vanilla,
    "gspo": compute_policy_loss_gspo,
    "cispo": compute_policy_loss_cispo,
    "clip_cov": compute_policy_loss_clip_cov,
    "cpgd": compute_policy_loss_cpgd,
    "geo_mean": compute_policy_loss_geo_mean,
    "gpg": compute_policy_loss_gpg,
    "kl_cov": compute_policy_loss_kl_cov,
    "sapo": compute_policy_loss_sapo,
}
