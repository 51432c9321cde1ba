"""Prepares an episode's frames for a video encoder: frame sampling, size, normalisation.

Frames are uint8 [T, height, width, 3] with T of at least 1. Left out: decoding of video files and
augmentation.
"""

# Axes: T frame of the episode, F frame of the encoder's clip, H height, W width.

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # V-JEPA 2's training values
IMAGENET_STD = (0.229, 0.224, 0.225)
# V-JEPA 2's preprocessor: shortest edge to int(crop * 256 / 224), then a centre crop
RELEASE_RESIZE = 256 / 224


def frame_indices(*, num_frames: int, frames_per_clip: int) -> NDArray[np.int64]:
    """Evenly spaced frames, always including the first and last; short episodes repeat frames in
    order.
    """
    if num_frames < 1:
        raise ValueError("A clip needs at least one frame; got none. Was the episode recorded?")
    return np.linspace(0, num_frames - 1, frames_per_clip).round().astype(np.int64)


def check_clip(clip: NDArray[np.uint8], *, row: int) -> None:
    """Refuse anything that is not a clip; the message names its row in the batch."""
    if clip.dtype != np.uint8 or clip.ndim != 4 or clip.shape[-1] != 3 or 0 in clip.shape:
        raise ValueError(
            f"Clip {row} must be uint8 [T >= 1, height, width, 3]; got {clip.dtype} "
            f"{list(clip.shape)}."
        )


def resize(frames_F3HW: Tensor, *, size: int, crop: bool) -> Tensor:
    """Bilinear resize with anti-aliasing. With `crop` as in the release (shortest edge a little
    larger, then centre crop); else the whole image.
    """
    height, width = frames_F3HW.shape[-2:]
    if crop:
        edge = int(size * RELEASE_RESIZE)
        scale = edge / min(height, width)
        target = (edge, int(width * scale)) if height <= width else (int(height * scale), edge)
    else:
        target = (size, size)
    if target != (height, width):
        frames_F3HW = functional.interpolate(
            frames_F3HW, size=target, mode="bilinear", antialias=True, align_corners=False
        )
    top, left = (target[0] - size) // 2, (target[1] - size) // 2
    return frames_F3HW[..., top : top + size, left : left + size]


def normalise(video_B3FHW: Tensor) -> Tensor:
    """Scale pixels from 0..255 to mean 0 and deviation 1 on ImageNet."""
    mean, std = (
        torch.tensor(values, device=video_B3FHW.device).view(3, 1, 1, 1)
        for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return (video_B3FHW / 255.0 - mean) / std


def prepare(
    clips: Sequence[NDArray[np.uint8]],
    *,
    frames_per_clip: int,
    image_size: int,
    crop: bool,
    first_row: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Convert clips of any length and size to one float tensor [B, 3, F, image_size, image_size] on
    `device`. Pixels are transferred as bytes; errors count rows from `first_row`.

    Raises:
        ValueError: A clip of the wrong shape or type, or without frames; the message names its row.
    """
    prepared = []
    for row, clip in enumerate(clips, start=first_row):
        check_clip(clip, row=row)
        frames = clip[frame_indices(num_frames=len(clip), frames_per_clip=frames_per_clip)]
        pixels_FHW3 = torch.from_numpy(np.ascontiguousarray(frames)).to(device)
        frames_F3HW = pixels_FHW3.permute(0, 3, 1, 2).float()
        prepared.append(resize(frames_F3HW, size=image_size, crop=crop).transpose(0, 1))
    return normalise(torch.stack(prepared))
