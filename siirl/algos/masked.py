"""Sum, mean, variance and whitening over the entries that a mask keeps.

Masked entries are replaced before the sum, not multiplied by zero: 0 * NaN is NaN. The mean and
variance of no entries are 0, so a fully masked row produces no NaN; a NaN among the kept entries is
an error. Means weight all kept entries equally; `siirl.algos.aggregation` defines the weights of
rows in a loss.
"""

import torch

from siirl.algos.ranks import ALONE, Ranks
from siirl.algos.tensor_checks import as_bool_mask, require_finite, require_same_shape
from siirl.errors import TensorError

Axis = int | tuple[int, ...] | None


def masked_sum(values: torch.Tensor, mask: torch.Tensor, axis: Axis = None) -> torch.Tensor:
    """Sum of the entries of `values` that `mask` (same shape) keeps, over `axis` or all axes.

    Differentiable.

    Raises:
        TensorError: Shapes that differ, or a kept entry that is not finite.
    """
    require_finite(mask=_kept(values, mask), values=values.detach())
    return _sum(values, mask, axis)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: Axis = None) -> torch.Tensor:
    """Mean of the entries that `mask` keeps, 0 if it keeps none; differentiable.

    Raises the errors of `masked_sum`.
    """
    total = masked_sum(values, mask, axis)
    kept = as_bool_mask(mask, name="mask")
    count = kept.sum() if axis is None else kept.sum(axis)
    return total / count.clamp(min=1).to(total.dtype)


def masked_var(values: torch.Tensor, mask: torch.Tensor, unbiased: bool = True) -> torch.Tensor:
    """Variance over all kept entries, divided by n - 1 (`unbiased`, as `torch.var`) or by n; 0 for
    fewer than two entries.

    A float64 scalar without gradient. Raises the errors of `masked_moments`.
    """
    _, variance, _ = masked_moments(values, mask, unbiased=unbiased)
    return variance


def masked_moments(
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    unbiased: bool = True,
    ranks: Ranks = ALONE,
    name: str = "values",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, variance and count of all ranks' kept entries, float64 scalars without gradient.

    Two passes (the mean first), because the one-pass formula E[x^2] - E[x]^2 loses all digits when
    the mean is large. `name` names the values in errors.

    Raises:
        TensorError: Shapes that differ; or a kept entry of any rank that is not finite, which
            raises on all ranks.
    """
    kept = _kept(values, mask)
    exact = values.detach().to(torch.float64)
    first = ranks.sum(torch.stack([kept.sum().to(torch.float64), _sum(exact, kept)]))
    if not bool(torch.isfinite(first[1])):
        require_finite(mask=kept, **{name: exact})
        raise TensorError(f"{name} of another rank are not finite; its own message names the row.")
    count, mean = first[0], first[1] / first[0].clamp(min=1)
    squares = ranks.sum(_sum((exact - mean) ** 2, kept))
    return mean, squares / (count - float(unbiased)).clamp(min=1), count


def masked_whiten(
    values: torch.Tensor,
    mask: torch.Tensor,
    shift_mean: bool = True,
    *,
    epsilon: float = 1e-8,
    unbiased: bool = True,
    ranks: Ranks = ALONE,
    name: str = "values",
) -> torch.Tensor:
    """`(values - mean) / sqrt(variance + epsilon)` over the kept entries of all ranks, 0 elsewhere.

    Mean and variance have no gradient. Raises the errors of `masked_moments`.

    Args:
        values: Any shape.
        mask: True or 1 at the kept entries; same shape as `values`.
        shift_mean: False adds the mean back, so that only the scale changes.
        epsilon: 1e-8, as in verl's masked_whiten; equal entries become 0 instead of NaN.
        unbiased: Variance with n - 1, as `torch.var`; False: with n.
        ranks: The ranks over which mean and variance are taken.
        name: Name of the values in errors.
    """
    mean, variance, _ = masked_moments(values, mask, unbiased=unbiased, ranks=ranks, name=name)
    white = (values - mean.to(values.dtype)) * torch.rsqrt(variance + epsilon).to(values.dtype)
    if not shift_mean:
        white = white + mean.to(values.dtype)
    return torch.where(as_bool_mask(mask, name="mask"), white, torch.zeros_like(white))


def _kept(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`mask` as booleans, of the shape of `values`."""
    require_same_shape(values=values, mask=mask)
    return as_bool_mask(mask, name="mask")


def _sum(values: torch.Tensor, mask: torch.Tensor, axis: Axis = None) -> torch.Tensor:
    kept = torch.where(
        as_bool_mask(mask, name="mask"),
        values,
        torch.zeros((), dtype=values.dtype, device=values.device),
    )
    return kept.sum() if axis is None else kept.sum(axis)
