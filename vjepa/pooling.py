"""Pools the latents of a clip, over parts of time and space, into one embedding.

An episode's progress is visible at its end, and a mean over time gives a clip and its reverse the
same embedding. So every pooling except `mean` and `over_time` reads the end of the clip.
benchmarks/reward_progress.py measures which pooling ranks failures best.
"""

# Axes: B clip, T tubelet, Y row, X column, D channel.

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Pooling = Callable[[Tensor], Tensor]
"""Maps latents [B, T, Y, X, D] to embeddings [B, E]."""
OVER_TIME = "over_time"
MOMENTS = 8  # of a clip in an embedding over time; the tubelets of the shipped encoder's clip


def mean(latents_BTYXD: Tensor) -> Tensor:
    """Mean over time and space, as in most uses of V-JEPA; ignores order, so it is a control
    here.
    """
    return latents_BTYXD.mean(dim=(1, 2, 3))


def last(latents_BTYXD: Tensor) -> Tensor:
    """The last tubelet's mean over space."""
    return latents_BTYXD[:, -1].mean(dim=(1, 2))


def last_change(latents_BTYXD: Tensor) -> Tensor:
    """The last tubelet and its difference from the first, which cancels features of the scene."""
    first, final = latents_BTYXD[:, 0].mean(dim=(1, 2)), last(latents_BTYXD)
    return torch.cat((final, final - first), dim=-1)


def _grid(latents_BYXD: Tensor, *, side: int) -> Tensor:
    return functional.adaptive_avg_pool2d(latents_BYXD.permute(0, 3, 1, 2), side).flatten(1)


def last_grid(latents_BTYXD: Tensor) -> Tensor:
    """The last tubelet averaged over a 4 x 4 grid, which keeps positions."""
    return _grid(latents_BTYXD[:, -1], side=4)


def change_grid(latents_BTYXD: Tensor) -> Tensor:
    """Last minus first tubelet over a 4 x 4 grid."""
    return _grid(latents_BTYXD[:, -1] - latents_BTYXD[:, 0], side=4)


def over_time(latents_BTYXD: Tensor) -> Tensor:
    """`MOMENTS` parts of the clip, concatenated, each averaged over a 4 x 4 grid."""
    batch, _, rows, columns, channels = latents_BTYXD.shape
    latents_BYXDT = latents_BTYXD.permute(0, 2, 3, 4, 1).reshape(batch, -1, latents_BTYXD.shape[1])
    moments_BM = functional.adaptive_avg_pool1d(latents_BYXDT, MOMENTS).transpose(1, 2)
    moments_BMYXD = moments_BM.reshape(batch * MOMENTS, rows, columns, channels)
    return _grid(moments_BMYXD, side=4).reshape(batch, -1)


POOLINGS: dict[str, Pooling] = {
    "mean": mean,
    "last": last,
    "last_change": last_change,
    "last_grid": last_grid,
    "change_grid": change_grid,
    OVER_TIME: over_time,
}


def pooling_of(name: str) -> Pooling:
    """The pooling called `name`; the error for an unknown name lists the known ones."""
    if name not in POOLINGS:
        raise ValueError(f"Unknown pooling {name!r}. Known: {', '.join(POOLINGS)}.")
    return POOLINGS[name]
