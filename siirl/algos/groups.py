"""Statistics of a batch's groups (all samples of one prompt or task), vectorised over samples.

Computed in float64: a group's deviation is a small difference of rewards that may share a large
offset.
"""

# B row (sample), G group

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.algos.tensor_checks import require_axes, require_finite, require_same_shape
from siirl.errors import ConfigError, TensorError

# A sum of up to a few hundred terms is exact to a few units in the last place; values within 16
# units count as equal.
ROUNDING_UNITS = 16


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of each row's group; fields are float64 [B] unless noted otherwise."""

    count_B: torch.Tensor
    """Rows in the row's group, int64."""
    mean_B: torch.Tensor
    std_B: torch.Tensor
    """Deviation with denominator n - 1, as in `torch.std` and common GRPO implementations; 0 for a
    group of one.
    """
    spread_B: torch.Tensor
    """Largest minus smallest value of the group."""
    differs_B: torch.Tensor
    """Bool: the group has at least two rows whose values differ by more than rounding."""

    def differ(self, min_spread: float = 0.0) -> torch.Tensor:
        """Bool [B]: whether the values of the row's group differ by more than rounding and by at
        least `min_spread`.

        Raises:
            ConfigError: A `min_spread` that is negative or NaN.
        """
        if not min_spread >= 0:
            raise ConfigError(f"min_group_spread={min_spread}: a spread cannot be negative.")
        return self.differs_B & (self.spread_B >= min_spread)


def group_ids(index: torch.Tensor | NDArray[np.generic]) -> torch.Tensor:
    """Group ids as int64 [B], from integers or, on one rank, from an array of names.

    Raises:
        TensorError: Fractions, or another shape.
    """
    array = index if isinstance(index, torch.Tensor) else np.asarray(index)
    fractions = (
        array.is_floating_point()
        if isinstance(array, torch.Tensor)
        else np.issubdtype(array.dtype, np.floating)
    )
    if fractions or array.ndim != 1:
        raise TensorError(
            f"index must be integers of shape [B]; got {array.dtype} of shape {list(array.shape)}."
        )
    if isinstance(array, torch.Tensor):
        return array.long()
    if np.issubdtype(array.dtype, np.integer):
        return torch.from_numpy(array.astype(np.int64))
    return torch.from_numpy(np.unique(array.astype(str), return_inverse=True)[1].astype(np.int64))


def group_statistics(
    *, values_B: torch.Tensor, group_B: torch.Tensor, name: str = "values"
) -> GroupStatistics:
    """Statistics of `values_B` within groups.

    Args:
        values_B: Numbers.
        group_B: int64; rows with the same number form a group.
        name: Name of the values in error messages.

    Raises:
        TensorError: Shapes that differ, NaN or infinity, groups that are not integers.
    """
    ids, inverse_B = _groups_of(values_B, group_B, name=name)
    rounding = ROUNDING_UNITS * (
        torch.finfo(values_B.dtype).eps if values_B.is_floating_point() else 0.0
    )
    values = values_B.detach().to(torch.float64)
    zeros_G = torch.zeros(len(ids), dtype=torch.float64, device=values.device)

    count_G = torch.bincount(inverse_B, minlength=len(ids))
    mean_G = zeros_G.index_add(0, inverse_B, values) / count_G
    squares_G = zeros_G.index_add(0, inverse_B, (values - mean_G[inverse_B]) ** 2)
    std_G = (squares_G / (count_G - 1).clamp(min=1)).sqrt()
    largest_G = zeros_G.scatter_reduce(0, inverse_B, values, "amax", include_self=False)
    smallest_G = zeros_G.scatter_reduce(0, inverse_B, values, "amin", include_self=False)
    spread_G = largest_G - smallest_G
    differs_G = spread_G > rounding * torch.maximum(largest_G.abs(), smallest_G.abs())
    return GroupStatistics(
        count_B=count_G[inverse_B],
        mean_B=mean_G[inverse_B],
        std_B=std_G[inverse_B],
        spread_B=spread_G[inverse_B],
        differs_B=differs_G[inverse_B],
    )


def group_sum(*, values_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Sum of the values of the row's group, float64 [B]; errors are those of `group_statistics`."""
    ids, inverse_B = _groups_of(values_B, group_B)
    zeros_G = torch.zeros(len(ids), dtype=torch.float64, device=values_B.device)
    return zeros_G.index_add(0, inverse_B, values_B.detach().to(torch.float64))[inverse_B]


def distinguishable(
    *, values_B: torch.Tensor, group_B: torch.Tensor, min_spread: float = 0.0
) -> torch.Tensor:
    """`GroupStatistics.differ` of the values."""
    return group_statistics(values_B=values_B, group_B=group_B).differ(min_spread)


def _groups_of(
    values_B: torch.Tensor, group_B: torch.Tensor, *, name: str = "values"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct groups, int64 [G], and the position of each row's group in them, int64 [B]."""
    require_axes(1, **{name: values_B})
    require_same_shape(**{name: values_B}, group=group_B)
    require_finite(**{name: values_B})
    ids: torch.Tensor
    ids, inverse_B = torch.unique(group_ids(group_B), return_inverse=True)
    return ids, inverse_B
