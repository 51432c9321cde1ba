"""Registry of policy losses: functions of `LOSS_ARGUMENTS` that return a `PolicyLoss`.

Arguments are passed by name. Further parameters of a loss have defaults and are its options
(`actor_rollout_ref.actor.loss_options`). A loss that treats tokens chosen among *all* tokens of a
mini-batch differently has a selection: a function of `SELECTION_ARGUMENTS`, called once before the
first micro-batch. The loss receives the selection as `selected_BT`, which is the same for any cut
into micro-batches.
"""

# B row (trajectory), T token

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from siirl.algos.call import (
    check_arguments,
    name_of,
    named_arguments,
    read_parameters,
    same_definition,
)
from siirl.algos.tensor_checks import as_bool_mask, require_finite, require_same_shape
from siirl.errors import ConfigError, TensorError, UnknownNameError


@dataclass(frozen=True)
class PolicyLoss:
    """Result of a policy loss."""

    loss_BT: torch.Tensor
    """Loss per token, with gradient; 0 where the mask is 0."""
    metrics_BT: dict[str, torch.Tensor] = field(default_factory=dict)
    """Numbers per token that are averaged over the kept tokens of all ranks and logged as
    `actor/<name>`.
    """


PolicyLossFunction = Callable[..., PolicyLoss]
Selection = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class LossTraits:
    """Properties of a policy loss that its decorator states."""

    aggregation: str
    own_bounds: bool
    times_advantage: bool
    token_by_token: bool
    own_weights: bool
    selection: Selection | None


POLICY_LOSSES: dict[str, PolicyLossFunction] = {}
LOSS_TRAITS: dict[str, LossTraits] = {}
"""Properties of each loss in `POLICY_LOSSES`."""

_BOTH = {
    "old_log_probs_BT": "log-probs of the policy in the ratio's denominator",
    "advantages_BT": "advantages",
    "mask_BT": "1 at the tokens that the policy chose",
    "clip_ratio_low": "the ratio is clipped at 1 - clip_ratio_low",
    "clip_ratio_high": "the ratio is clipped at 1 + clip_ratio_high",
}

LOSS_ARGUMENTS = {
    **_BOTH,
    "log_probs_BT": "log-probs of the trained policy, with gradient",
    "rollout_log_probs_BT": "log-probs of the policy that acted",
    "importance_weights_BT": "weights that correct for another behaviour policy; a loss without "
    "this argument is multiplied by them",
    "selected_BT": "bool, the tokens that the loss's selection chose over the whole mini-batch",
    "clip_ratio_c": "bound of the dual clip",
    "loss_agg_mode": "name of the aggregation",
    "config": "the actor's whole config, for losses with further keys",
}

SELECTION_ARGUMENTS = {
    **_BOTH,
    "log_probs_BT": "log-probs of the trained policy before the mini-batch's step, without "
    "gradient",
    "place_B": "int64, position of each row among the rows of all ranks, however rows are "
    "distributed",
    "generator": "torch.Generator in the same state on every rank",
    "ranks": "siirl.algos.ranks.Ranks: sums and rows of all ranks",
}


def register_policy_loss(
    name: str,
    *,
    aggregation: str = "token-mean",
    own_bounds: bool = False,
    times_advantage: bool = False,
    token_by_token: bool = False,
    own_weights: bool = False,
    selection: Selection | None = None,
) -> Callable[[PolicyLossFunction], PolicyLossFunction]:
    """Decorator that registers a policy loss.

    Args:
        name: Value of `actor_rollout_ref.actor.loss`.
        aggregation: The aggregation that defines the loss; `loss_agg_mode` overrides it.
        own_bounds: The loss's clip bounds, if it has any, are the defaults of its signature, not
            the actor's clip_ratio.
        times_advantage: A token's loss is its advantage times a finite factor, so the update may
            leave out rows whose advantages are 0.
        token_by_token: A token's loss depends on no other token of its row, so a micro-batch may
            cut rows.
        own_weights: The loss weights tokens by the ratio of old log-probs to those of rollout, so
            both are computed, and `importance.level` is refused.
        selection: Chooses tokens over a whole mini-batch, bool [B, T].

    Raises:
        ConfigError: The name is taken by another function, or a function requires an argument that
            is not provided.
    """

    def decorator(function: PolicyLossFunction) -> PolicyLossFunction:
        if name in POLICY_LOSSES and not same_definition(POLICY_LOSSES[name], function):
            raise ConfigError(
                f"Policy loss {name!r} is already {name_of(POLICY_LOSSES[name])}: choose another "
                "name."
            )
        check_arguments(function, known=LOSS_ARGUMENTS, kind="policy loss")
        if selection is not None:
            check_arguments(selection, known=SELECTION_ARGUMENTS, kind="selection of a policy loss")
        POLICY_LOSSES[name] = function
        LOSS_TRAITS[name] = LossTraits(
            aggregation=aggregation,
            own_bounds=own_bounds,
            times_advantage=times_advantage,
            token_by_token=token_by_token,
            own_weights=own_weights,
            selection=selection,
        )
        return function

    return decorator


def policy_loss(*, name: str, available: Mapping[str, Any]) -> PolicyLoss:
    """The loss `name`, times importance weights if available.

    Args:
        name: A registered loss.
        available: Values of `LOSS_ARGUMENTS` (some may be missing) and of the loss's options.

    Raises:
        UnknownNameError: No such loss.
        ConfigError: The loss needs a value that is not available, or returns no `PolicyLoss`.
        TensorError: Inputs or a loss of different shapes, or not finite where the mask is on; a
            loss without a gradient. Metrics are never refused.
    """
    function = _function(name)
    returned = function(**named_arguments(function, available, kind="Policy loss"))
    _check_returned(returned, name=name, available=available)
    mask_BT = available["mask_BT"]
    metrics_BT = {
        metric: _at_each_token(value, mask_BT=mask_BT)
        for metric, value in returned.metrics_BT.items()
    }
    result = PolicyLoss(loss_BT=returned.loss_BT, metrics_BT=metrics_BT)
    weights_BT = available.get("importance_weights_BT")
    if weights_BT is None or "importance_weights_BT" in read_parameters(function):
        return result
    require_same_shape(loss=result.loss_BT, importance_weights=weights_BT)
    return PolicyLoss(loss_BT=result.loss_BT * weights_BT, metrics_BT=result.metrics_BT)


def _check_returned(returned: Any, *, name: str, available: Mapping[str, Any]) -> None:
    """Refuse anything but a finite loss per token, with a gradient if the log-probs have one."""
    found = returned.loss_BT if isinstance(returned, PolicyLoss) else None
    if not isinstance(found, torch.Tensor):
        holder = "PolicyLoss of a " if isinstance(returned, PolicyLoss) else ""
        kind = type(found if holder else returned).__name__
        raise ConfigError(
            f"Policy loss {name!r} must return PolicyLoss(loss_BT=...) with a tensor [B, T], and "
            f"returned a {holder}{kind}."
        )
    mask_BT, log_probs_BT = available["mask_BT"], available.get("log_probs_BT")
    require_same_shape(response_mask=mask_BT, loss=found)
    require_finite(mask=as_bool_mask(mask_BT), **{f"policy loss {name!r}": found.detach()})
    trains = log_probs_BT is not None and log_probs_BT.requires_grad and torch.is_grad_enabled()
    if trains and not found.requires_grad:
        raise TensorError(
            f"Policy loss {name!r} has no gradient, so nothing would be learnt: compute it from "
            "log_probs_BT, without detach() or no_grad()."
        )


def _at_each_token(value: Any, *, mask_BT: torch.Tensor) -> torch.Tensor:
    """A metric of a loss as [B, T]; values of another shape are averaged, non-numbers are NaN."""
    try:
        value_BT = torch.as_tensor(value, device=mask_BT.device).detach()
    except (RuntimeError, TypeError, ValueError):
        value_BT = torch.tensor(torch.nan, device=mask_BT.device)
    return (
        value_BT
        if value_BT.shape == mask_BT.shape
        else value_BT.float().mean().expand(mask_BT.shape)
    )


def select_tokens(*, name: str, available: Mapping[str, Any]) -> torch.Tensor:
    """The tokens that the selection of the loss `name` chooses, bool [B, T]; every rank calls it.

    Args:
        name: A loss with a selection.
        available: Values of `SELECTION_ARGUMENTS` and of the loss's options.
    """
    selection = LOSS_TRAITS[name].selection
    assert selection is not None
    selected_BT = selection(**named_arguments(selection, available, kind="Selection"))
    require_same_shape(response_mask=available["mask_BT"], selected=selected_BT)
    return selected_BT


def loss_options(name: str) -> dict[str, Any]:
    """The options of a loss and of its selection, with their defaults."""
    functions = [
        (_function(name), LOSS_ARGUMENTS),
        (LOSS_TRAITS[name].selection, SELECTION_ARGUMENTS),
    ]
    options: dict[str, Any] = {}
    for function, given in functions:
        if function is None:
            continue
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in given and parameter.default is not inspect.Parameter.empty:
                options[parameter.name] = parameter.default
    return options


def check_loss_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse unknown options and invalid values; the loss is tried on one token.

    Raises:
        UnknownNameError: No such loss, or no such option.
        ConfigError: A value that the loss refuses.
    """
    known = loss_options(name)
    for option, value in options.items():
        if option not in known:
            raise UnknownNameError.of(
                kind=f"option of the policy loss {name} (loss_options)", name=option, known=known
            )
        numeric = isinstance(known[option], int | float) and not isinstance(known[option], bool)
        if numeric and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(
                f"loss_options.{option}={value!r} of the policy loss {name} must be a number, such "
                f"as {known[option]}."
            )
    if not options:
        return
    zero_11 = torch.zeros(1, 1)
    columns = ("log_probs_BT", "old_log_probs_BT", "rollout_log_probs_BT", "advantages_BT")
    one_token = dict.fromkeys(columns, zero_11) | {
        "mask_BT": zero_11 == 0,
        "selected_BT": zero_11 == 0,
    }
    if LOSS_TRAITS[name].selection is not None:
        alone = {"place_B": torch.zeros(1, dtype=torch.int64), "generator": torch.Generator()}
        select_tokens(name=name, available={**one_token, **alone, **options})
    policy_loss(
        name=name,
        available={
            **one_token,
            "loss_agg_mode": LOSS_TRAITS[name].aggregation,
            "config": None,
            **options,
        },
    )


def _function(name: str) -> PolicyLossFunction:
    if name not in POLICY_LOSSES:
        raise UnknownNameError.of(kind="policy loss", name=name, known=POLICY_LOSSES)
    return POLICY_LOSSES[name]
