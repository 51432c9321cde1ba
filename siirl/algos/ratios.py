"""Shared by policy losses: the log-ratio of two policies, its bounds, and column checks."""

# B row (trajectory), T token

import torch

from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import ConfigError

# exp(80) fits float32. A larger log-ratio is clamped: an infinite ratio times 0 would be NaN.
LOG_RATIO_LIMIT = 80.0


def check_clip(
    *, clip_ratio_low: float, clip_ratio_high: float, clip_ratio_c: float | None = None
) -> None:
    """Raise ConfigError for invalid bounds."""
    if not 0.0 <= clip_ratio_low <= 1.0:
        raise ConfigError(
            f"clip_ratio_low={clip_ratio_low}: the ratio is clipped at 1 - clip_ratio_low, so it "
            "must lie in [0, 1]."
        )
    if not clip_ratio_high >= 0.0:
        raise ConfigError(
            f"clip_ratio_high={clip_ratio_high}: the ratio is clipped at 1 + clip_ratio_high, so "
            "it must not be negative."
        )
    if clip_ratio_c is not None and not clip_ratio_c > 1.0:
        raise ConfigError(
            f"clip_ratio_c={clip_ratio_c}: the dual clip bounds the ratio from above and must be "
            "larger than 1."
        )


def log_ratio(
    *, log_probs_BT: torch.Tensor, old_log_probs_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """`log pi - log pi_old`, 0 where the mask is 0, clamped to +-`LOG_RATIO_LIMIT`.

    Masked before exponentiation: masked tokens may hold any value, and 0 * inf is NaN.

    Raises:
        TensorError: Shapes that differ, or log-probs that are not finite where the mask is on.
            User-defined losses call this too, so shapes are checked here: nothing is broadcast.
    """
    require_same_shape(
        log_probs=log_probs_BT, old_log_probs=old_log_probs_BT, response_mask=mask_BT
    )
    kept_BT = as_bool_mask(mask_BT)
    require_finite(
        mask=kept_BT, log_probs=log_probs_BT.detach(), old_log_probs=old_log_probs_BT.detach()
    )
    difference_BT = torch.where(
        kept_BT, log_probs_BT - old_log_probs_BT, torch.zeros_like(log_probs_BT)
    )
    return difference_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def checked_columns(
    *,
    mask_BT: torch.Tensor,
    log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    **others_BT: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask as booleans, and the advantages with 0 where it is off.

    Raises:
        TensorError: Columns of different shapes, or not finite where the mask is on.
    """
    columns = {"log_probs": log_probs_BT, "advantages": advantages_BT} | {
        key.removesuffix("_BT"): x for key, x in others_BT.items()
    }
    require_axes(2, log_probs=log_probs_BT)
    require_same_shape(**columns, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_finite(mask=kept_BT, **{name: column.detach() for name, column in columns.items()})
    return kept_BT, torch.where(kept_BT, advantages_BT, torch.zeros_like(advantages_BT))


def checked_ratio(
    *,
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mask and advantages as `checked_columns` returns them, and the `log_ratio`.

    Raises:
        TensorError: Columns of different shapes, or not finite where the mask is on.
    """
    kept_BT, advantages_BT = checked_columns(
        mask_BT=mask_BT,
        log_probs_BT=log_probs_BT,
        advantages_BT=advantages_BT,
        old_log_probs_BT=old_log_probs_BT,
    )
    log_ratio_BT = log_ratio(
        log_probs_BT=log_probs_BT, old_log_probs_BT=old_log_probs_BT, mask_BT=kept_BT
    )
    return kept_BT, advantages_BT, log_ratio_BT
