"""Kullback-Leibler divergence from sampled tokens: estimators per token, and coefficients.

With x drawn from pi and `r = log pi(x) - log ref(x)` (J. Schulman, "Approximating KL divergence",
2020):
    k1 = r                    unbiased value; as a loss, its gradient is noise of mean zero
    k2 = r^2 / 2              biased value; its gradient is that of the KL divergence
    k3 = exp(-r) - 1 + r      unbiased, never negative; gradient of the forward divergence
    abs = |r|
A name with '+' (k1+, k3+, abs+) has its own value and k2's gradient (straight-through), as a loss
needs it. The names kl, mse and low_var_kl of verl are k1, k2 and k3. Other systems clamp r to
+-20 and k3 to +-10; here r is only kept from overflowing.
"""

# B row (trajectory), T token

import math
from collections.abc import Callable
from typing import Any

import torch

from siirl.algos.call import named_arguments, register_in
from siirl.algos.ratios import log_ratio
from siirl.algos.tensor_checks import as_bool_mask, require_finite, require_same_shape
from siirl.errors import ConfigError, TensorError, UnknownNameError


def _k1(log_ratio_BT: torch.Tensor) -> torch.Tensor:
    return log_ratio_BT


def _k2(log_ratio_BT: torch.Tensor) -> torch.Tensor:
    return 0.5 * log_ratio_BT.square()


def _k3(log_ratio_BT: torch.Tensor) -> torch.Tensor:
    return torch.expm1(-log_ratio_BT) + log_ratio_BT


def _abs(log_ratio_BT: torch.Tensor) -> torch.Tensor:
    return log_ratio_BT.abs()


KL_ESTIMATORS: dict[str, Callable[..., torch.Tensor]] = {
    "k1": _k1,
    "kl": _k1,
    "abs": _abs,
    "k2": _k2,
    "mse": _k2,
    "k3": _k3,
    "low_var_kl": _k3,
}

KL_NAMES = tuple(KL_ESTIMATORS) + tuple(f"{name}+" for name in KL_ESTIMATORS)

KL_ARGUMENTS = {
    "log_ratio_BT": "r, kept from overflowing; 0 where the mask is 0",
    "log_probs_BT": "log-probs of the policy that chose the tokens",
    "ref_log_probs_BT": "log-probs of the reference policy",
}


def register_kl_estimator(
    name: str,
) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Decorator that registers an estimator of the KL of each token.

    Its arguments are named as in `KL_ARGUMENTS`.

    Raises:
        ConfigError: The name is taken by another function, or the function requires an argument
            that is not provided.
    """
    return register_in(KL_ESTIMATORS, name, kind="KL estimator", known=KL_ARGUMENTS)


def is_kl_estimator(name: str) -> bool:
    """Whether an estimator has this name, with or without a straight-through gradient."""
    return name.removesuffix("+") in KL_ESTIMATORS


def kl_estimate(
    *, log_probs_BT: torch.Tensor, ref_log_probs_BT: torch.Tensor, mask_BT: torch.Tensor, name: str
) -> torch.Tensor:
    """Estimate per token of KL(pi || ref), 0 where the mask is 0.

    Args:
        log_probs_BT: Log-probs under the policy that chose the tokens.
        ref_log_probs_BT: Log-probs under the reference policy, at the same temperature.
        mask_BT: 1 at the tokens that count.
        name: One of `KL_NAMES`, or a registered one, with or without '+'.

    Raises:
        UnknownNameError: No such estimator.
        TensorError: Shapes that differ, or numbers that are not finite where the mask is on.
    """
    if not is_kl_estimator(name):
        raise UnknownNameError.of(kind="KL estimator", name=name, known=KL_ESTIMATORS)
    require_same_shape(log_probs=log_probs_BT, ref_log_prob=ref_log_probs_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_finite(mask=kept_BT, log_probs=log_probs_BT.detach(), ref_log_prob=ref_log_probs_BT)
    r_BT = log_ratio(log_probs_BT=log_probs_BT, old_log_probs_BT=ref_log_probs_BT, mask_BT=kept_BT)
    available = {
        "log_ratio_BT": r_BT,
        "log_probs_BT": log_probs_BT,
        "ref_log_probs_BT": ref_log_probs_BT,
    }
    estimator = KL_ESTIMATORS[name.removesuffix("+")]
    value_BT = estimator(**named_arguments(estimator, available, kind="KL estimator"))
    require_same_shape(response_mask=mask_BT, **{f"KL estimate {name!r}": value_BT})
    value_BT = torch.where(kept_BT, value_BT, torch.zeros_like(value_BT))
    require_finite(**{f"KL estimate {name!r}": value_BT.detach()})
    if not name.endswith("+"):
        return value_BT
    gradient_BT = _k2(r_BT)
    return value_BT.detach() + gradient_BT - gradient_BT.detach()


class FixedKLController:
    """A constant coefficient."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """The coefficient."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the coefficient of a checkpoint."""
        self.value = float(state["value"])


class AdaptiveKLController(FixedKLController):
    """A coefficient that grows while the KL is above its target and shrinks while it is below.

    Source: arXiv 1909.08593, section 2.2.

    Args:
        init_kl_coef: Initial value.
        target_kl: Target of the KL.
        horizon: Number of samples over which the coefficient can change by a factor of about e^0.2.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        super().__init__(init_kl_coef)
        if not (target_kl > 0 and horizon > 0):
            raise ConfigError(
                f"kl_ctrl: target_kl={target_kl} and horizon={horizon} must both be positive."
            )
        self.target = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Update the coefficient after `n_steps` samples with mean divergence `current_kl`."""
        if not math.isfinite(current_kl):
            raise TensorError(
                f"current_kl is {current_kl}: the KL coefficient would be meaningless from here on."
            )
        proportional_error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        self.value *= 1.0 + proportional_error * n_steps / self.horizon
