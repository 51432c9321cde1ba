"""Masks of context and target tokens, modelled on V-JEPA 2's multi-block masks.

There are two kinds of targets: a few spatial blocks through the whole clip, as in V-JEPA 2, and the
end of the clip. Predicting the end makes latents encode motion. All rows of a batch have the same
counts, so they stack without padding. Left out: aspect-ratio schedules and masks over several clip
lengths.
"""

# Axes: B clip, N token (over time, then rows, then columns), C context token, M target token.

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockMask:
    """`num_blocks` rectangles, each `scale` of the image's area with an aspect ratio in `aspect`,
    over all time.
    """

    num_blocks: int
    scale: float
    aspect: tuple[float, float] = (0.75, 1.5)  # V-JEPA 2


@dataclass(frozen=True)
class FutureMask:
    """All patches of the last `tubelets` tubelets."""

    tubelets: int


MULTI_BLOCK = (
    BlockMask(num_blocks=8, scale=0.15),
    BlockMask(num_blocks=2, scale=0.7),
)  # V-JEPA 2's short- and long-range masks


def sample_masks(
    mask: BlockMask | FutureMask,
    *,
    batch_size: int,
    grid: tuple[int, int, int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Indices of context tokens [B, C] and target tokens [B, M] in a token grid (tubelets, rows,
    columns).
    """
    if isinstance(mask, FutureMask):
        hidden_BN = _future(mask, grid=grid).expand(batch_size, -1)
    else:
        hidden_BN = _blocks(mask, batch_size=batch_size, grid=grid, generator=generator)
    num_context = int((~hidden_BN).sum(1).min())
    num_target = int(hidden_BN.sum(1).min())
    # a random subset where a row has more than the others
    order_BN = torch.rand(hidden_BN.shape, generator=generator)
    context_BC = (order_BN + hidden_BN).argsort(1)[:, :num_context]
    target_BM = (order_BN + ~hidden_BN).argsort(1)[:, :num_target]
    return context_BC.sort(1).values, target_BM.sort(1).values


def _future(mask: FutureMask, *, grid: tuple[int, int, int]) -> Tensor:
    time, rows, columns = grid
    if not 0 < mask.tubelets < time:
        raise ValueError(
            f"A future mask hides between 1 and {time - 1} of {time} tubelets; got {mask.tubelets}."
        )
    return (torch.arange(time) >= time - mask.tubelets).repeat_interleave(rows * columns)


def _blocks(
    mask: BlockMask, *, batch_size: int, grid: tuple[int, int, int], generator: torch.Generator
) -> Tensor:
    time, rows, columns = grid
    low, high = mask.aspect
    aspect = low + (high - low) * torch.rand((), generator=generator).item()
    area = mask.scale * rows * columns
    height = min(rows, round(math.sqrt(area * aspect)))
    width = min(columns, round(math.sqrt(area / aspect)))
    hidden_BYX = torch.zeros(batch_size, rows, columns, dtype=torch.bool)
    for row in range(batch_size):
        while not hidden_BYX[row].any() or hidden_BYX[row].all():
            # blocks that hide everything leave no context, so draw again
            hidden_BYX[row] = _draw(
                mask.num_blocks, size=(height, width), image=(rows, columns), generator=generator
            )
    return hidden_BYX.flatten(1).repeat(1, time)


def _draw(
    num_blocks: int, *, size: tuple[int, int], image: tuple[int, int], generator: torch.Generator
) -> Tensor:
    hidden = torch.zeros(image, dtype=torch.bool)
    for _ in range(num_blocks):
        top, left = (
            int(torch.randint(whole - part + 1, (), generator=generator))
            for whole, part in zip(image, size, strict=True)
        )
        hidden[top : top + size[0], left : left + size[1]] = True
    return hidden
