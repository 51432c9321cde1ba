"""Whitening of advantages over the kept tokens of all ranks."""

# B sample, T token

import torch

from siirl.algos.masked import masked_moments, masked_whiten
from siirl.algos.ranks import ALONE, Ranks
from siirl.algos.tensor_checks import as_bool_mask, require_finite, require_same_shape
from siirl.errors import UnknownNameError

WHITENINGS = ("unbiased", "biased", "mean", "none")


def whiten_advantages(
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    how: str = "unbiased",
    ranks: Ranks = ALONE,
) -> torch.Tensor:
    """Standardise advantages over the kept tokens of all ranks; 0 where the mask is 0.

    Args:
        advantages_BT: One number per token.
        mask_BT: 1 at the tokens that count.
        how: `unbiased`: variance with n - 1 (verl); `biased`: with n (OpenRLHF); `mean`: subtract
            the mean only; `none`.
        ranks: The ranks over which mean and variance are taken.

    Raises:
        UnknownNameError: Another `how`.
        TensorError: Shapes that differ, or advantages of any rank that are not finite.
    """
    if how not in WHITENINGS:
        raise UnknownNameError.of(kind="adv_whitening", name=how, known=WHITENINGS)
    require_same_shape(advantages=advantages_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    if how == "none":
        require_finite(mask=kept_BT, advantages=advantages_BT)
        return torch.where(kept_BT, advantages_BT, torch.zeros_like(advantages_BT))
    if how == "mean":
        mean, _, _ = masked_moments(advantages_BT, kept_BT, ranks=ranks, name="advantages")
        return torch.where(
            kept_BT, advantages_BT - mean.to(advantages_BT.dtype), torch.zeros_like(advantages_BT)
        )
    return masked_whiten(
        advantages_BT, kept_BT, unbiased=how == "unbiased", ranks=ranks, name="advantages"
    )
