"""Registers a user's policy loss of verl's form."""

# B row, T token

from collections.abc import Callable
from typing import Any

import torch

from siirl.algos.aggregation import AGGREGATIONS, aggregation_weight
from siirl.algos.call import check_arguments, definition, name_of, named_arguments, same_definition
from siirl.algos.policy_losses import PolicyLoss
from siirl.algos.policy_losses import register_policy_loss as register_token_loss
from siirl.algos.tensor_checks import as_bool_mask
from siirl.errors import ConfigError

PolicyLossFn = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]
POLICY_LOSS_REGISTRY: dict[str, PolicyLossFn] = {}
_LOSS_ARGUMENTS = (
    "old_log_prob",
    "log_prob",
    "advantages",
    "response_mask",
    "loss_agg_mode",
    "config",
    "rollout_is_weights",
)
SCALARS = ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")  # in their documented order


def register_policy_loss(name: str) -> Callable[[PolicyLossFn], PolicyLossFn]:
    """Register a policy loss of verl's form for `actor_rollout_ref.actor.loss=name`.

    The function takes `(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config,
    rollout_is_weights)` and returns `(pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower)`. If it
    aggregates with `agg_loss` and the given mode, its gradient does not depend on the
    micro-batches: the mean over a micro-batch is converted back to a sum and divided by the whole
    batch.
    """

    def decorator(function: PolicyLossFn) -> PolicyLossFn:
        if name in POLICY_LOSS_REGISTRY and not same_definition(
            POLICY_LOSS_REGISTRY[name], function
        ):
            raise ConfigError(
                f"Policy loss {name!r} is already {name_of(POLICY_LOSS_REGISTRY[name])}: choose "
                "another name."
            )
        check_arguments(function, known=_LOSS_ARGUMENTS, kind="policy loss")
        register_token_loss(name)(_per_token(function))
        POLICY_LOSS_REGISTRY[name] = function
        return function

    return decorator


def _per_token(function: PolicyLossFn) -> Callable[..., PolicyLoss]:
    """A loss of verl's form as a loss per token: equal shares that add up to the scalar."""

    def loss(
        *,
        log_probs_BT: torch.Tensor,
        old_log_probs_BT: torch.Tensor,
        advantages_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        loss_agg_mode: str,
        config: Any,
        importance_weights_BT: torch.Tensor | None = None,
    ) -> PolicyLoss:
        kept_BT = as_bool_mask(mask_BT)
        shares_BT = kept_BT.to(log_probs_BT.dtype)
        available = {
            "old_log_prob": old_log_probs_BT,
            "log_prob": log_probs_BT,
            "advantages": advantages_BT,
            "response_mask": shares_BT,
            "loss_agg_mode": loss_agg_mode,
            "config": config,
            "rollout_is_weights": importance_weights_BT,
        }
        returned: Any = function(**named_arguments(function, available, kind="Policy loss"))
        if not isinstance(returned, tuple | list) or len(returned) != 1 + len(SCALARS):
            raise ConfigError(
                f"Policy loss {name_of(function)} must return (pg_loss, {', '.join(SCALARS)}), "
                f"and returned a {type(returned).__name__}."
            )
        scalar, *shares = returned
        aggregation = AGGREGATIONS[loss_agg_mode]
        total = aggregation.rows_B(shares_BT, kept_BT).sum()
        weight = aggregation_weight(mask_BT=mask_BT, mode=loss_agg_mode)
        shares_BT = shares_BT * torch.where(total > 0, weight / total, total)
        if aggregation.needs_horizon:
            shares_BT = shares_BT * kept_BT.shape[-1]  # divisor of agg_loss
        metrics = dict(zip(SCALARS, shares, strict=True))
        return PolicyLoss(
            loss_BT=shares_BT * scalar,
            metrics_BT=metrics,
        )

    loss.__module__, loss.__qualname__ = definition(function)
    return loss
