"""Checks of a formula's input tensors: equal shapes, finite numbers, masks of 0 and 1.

A silent broadcast of [B, 1] against [B, T], or a NaN in a mean, would corrupt a loss without a
symptom. Both are errors that name the tensor and the row. Masked entries may hold any value.
"""

# B row (trajectory), T token

import math

import torch

from siirl.errors import TensorError


def require_same_shape(**tensors: torch.Tensor) -> None:
    """Raise TensorError unless all tensors have the shape of the first; nothing is broadcast."""
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != reference.shape:
            raise TensorError(
                f"{name} has shape {list(tensor.shape)} and {first} has shape "
                f"{list(reference.shape)}: they must be equal, nothing is broadcast. Expand the "
                "smaller one where it is made."
            )


def require_axes(axes: int, **tensors: torch.Tensor) -> None:
    """Raise TensorError unless all tensors have `axes` axes."""
    for name, tensor in tensors.items():
        if tensor.ndim != axes:
            raise TensorError(f"{name} has shape {list(tensor.shape)}; {axes} axes are expected.")


def require_finite(*, mask: torch.Tensor | None = None, **tensors: torch.Tensor) -> None:
    """Raise TensorError if a tensor holds NaN or infinity where `mask` (bool, same shape) is on.

    The message names tensor, row and position.
    """
    if mask is not None:
        require_same_shape(mask=mask, **tensors)
    for name, tensor in tensors.items():
        if math.isfinite(tensor.detach().sum()):  # then every entry is finite; one operation
            continue
        bad = ~torch.isfinite(tensor)
        if mask is not None:
            bad &= mask
        if not bool(bad.any()):
            continue
        place = tuple(bad.nonzero()[0].tolist())
        where = f"row {place[0]}" if place else "its only entry"
        if len(place) > 1:
            where += f", place {list(place[1:])}"
        rows = int(bad.reshape(bad.shape[0], -1).any(-1).sum()) if place else 1
        raise TensorError(
            f"{name} is {float(tensor[place])} in {where} ({rows} such rows of "
            f"{len(tensor) if place else 1})."
        )


def require_counts(**tensors: torch.Tensor) -> None:
    """Raise TensorError if a tensor [B] holds NaN, infinity or a negative number."""
    require_axes(1, **tensors)
    require_finite(**tensors)
    for name, tensor in tensors.items():
        if bool((tensor < 0).any()):
            row = int((tensor < 0).nonzero()[0])
            raise TensorError(
                f"{name} is {float(tensor[row])} in row {row}: a number of tokens cannot be "
                "negative."
            )


def as_bool_mask(mask: torch.Tensor, *, name: str = "response_mask") -> torch.Tensor:
    """`mask` as booleans; raises TensorError if it holds values other than 0 and 1."""
    if mask.dtype == torch.bool:
        return mask
    strange = (mask != 0) & (mask != 1)
    if bool(strange.any()):
        place = tuple(strange.nonzero()[0].tolist())
        raise TensorError(
            f"{name} is {float(mask[place])} at {list(place)}; a mask holds only 0 and 1."
        )
    return mask.bool()
