"""Aggregates a loss per token to a scalar whose gradient does not depend on the cut into
micro-batches.

A mode has a numerator, summed over micro-batches and ranks, and a weight, counted over the *whole*
batch before the first backward pass. `aggregate_loss` divides the numerator by the weight, so the
parts of a batch add up to the batch exactly. A mean per micro-batch, as in several systems, would
weight a token by the size of its micro-batch.

A row without kept tokens has neither numerator nor weight: it does not affect the loss.
"""

# B row (trajectory), T token

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from siirl.algos.masked import masked_mean
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import ConfigError, TensorError, UnknownNameError


@dataclass(frozen=True)
class Aggregation:
    """How tokens are weighted."""

    rows_B: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(loss [B, T], bool mask [B, T]) -> numerator of each row [B]."""
    per_token: bool
    """Whether the weight of a batch is its number of kept tokens; otherwise its number of rows with
    a kept token.
    """
    sums_tokens: bool = False
    """Whether the numerator is a sum of terms of single tokens, so that micro-batches may cut
    rows.
    """
    needs_horizon: bool = False
    """Whether the numerator is divided by a fixed length."""


def _row_sums(loss_BT: torch.Tensor, kept_BT: torch.Tensor) -> torch.Tensor:
    # `aggregate_loss` has checked both
    row_sums_B: torch.Tensor = torch.where(kept_BT, loss_BT, 0.0).sum(-1)
    return row_sums_B


_row_means = functools.partial(masked_mean, axis=-1)

AGGREGATIONS: dict[str, Aggregation] = {
    # Every token counts the same, so long rows count more (DAPO, arXiv 2503.14476, section 3.3).
    "token-mean": Aggregation(rows_B=_row_sums, per_token=True, sums_tokens=True),
    "seq-mean-token-sum": Aggregation(rows_B=_row_sums, per_token=False, sums_tokens=True),
    # Every row counts the same (GRPO, arXiv 2402.03300, equation 3; GSPO, arXiv 2507.18071,
    # equation 5).
    "seq-mean-token-mean": Aggregation(rows_B=_row_means, per_token=False),
    # A fixed length instead of the row's own, and the number of rows (Dr. GRPO, arXiv 2503.20783,
    # section 3.2 and listing 1).
    "seq-mean-token-sum-norm": Aggregation(
        rows_B=_row_sums, per_token=False, sums_tokens=True, needs_horizon=True
    ),
}


def register_aggregation(name: str) -> Callable[[Aggregation], Aggregation]:
    """Registers an aggregation: `register_aggregation("mine")(Aggregation(...))`.

    Raises:
        ConfigError: The name is taken, or it is not an `Aggregation`.
    """

    def register(aggregation: Aggregation) -> Aggregation:
        if not isinstance(aggregation, Aggregation):
            raise ConfigError(
                f"{aggregation!r:.80} is of type {type(aggregation).__name__}; an aggregation is a "
                "siirl.algos.aggregation.Aggregation."
            )
        if AGGREGATIONS.setdefault(name, aggregation) != aggregation:
            raise ConfigError(f"Aggregation {name!r} is already registered: choose another name.")
        return aggregation

    return register


def _aggregation(mode: str) -> Aggregation:
    if mode not in AGGREGATIONS:
        raise UnknownNameError.of(kind="loss_agg_mode", name=mode, known=AGGREGATIONS)
    return AGGREGATIONS[mode]


def aggregation_weight(*, mask_BT: torch.Tensor, mode: str) -> torch.Tensor:
    """Contribution of these rows to the denominator of `mode`, a scalar to sum over micro-batches
    and ranks.
    """
    require_axes(2, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    return kept_BT.sum() if _aggregation(mode).per_token else kept_BT.any(-1).sum()


def aggregate_loss(
    *,
    loss_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    mode: str,
    denominator: torch.Tensor | float,
    horizon: int | None = None,
) -> torch.Tensor:
    """Contribution of these rows to the loss of the whole batch.

    Args:
        loss_BT: Loss per token.
        mask_BT: 1 at the tokens that count.
        mode: A name in `AGGREGATIONS`.
        denominator: `aggregation_weight` of the *whole* batch: all micro-batches of all ranks. The
            parts add up to the loss.
        horizon: Length that seq-mean-token-sum-norm divides by: the longest possible response, a
            constant of the job. The padded length depends on the cut.

    Raises:
        UnknownNameError: No such mode.
        ConfigError: A mode that needs `horizon` without one.
        TensorError: Shapes that differ, a loss that is not finite where the mask is on, or a
            denominator that is not positive (a batch without kept tokens has no mean).
    """
    require_axes(2, loss=loss_BT)
    require_same_shape(loss=loss_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_finite(mask=kept_BT, loss=loss_BT.detach())
    if not 0 < float(denominator) < float("inf"):
        raise TensorError(
            f"denominator is {float(denominator)}: it is the weight of the whole batch and must be "
            "positive."
        )
    aggregation = _aggregation(mode)
    total = aggregation.rows_B(loss_BT, kept_BT).sum()
    if aggregation.needs_horizon:
        if horizon is None or horizon < 1:
            raise ConfigError(
                f"loss_agg_mode={mode} divides by the longest possible response: horizon must be "
                f"positive, not {horizon}."
            )
        total = total / horizon
    return total / denominator
