"""Forms of pictures in the observations of Gymnasium environments and wrappers.

A uint8 `Box` is one picture or a stack of frames:

    [H, W], [H, W, 1], [H, W, 3]       one picture
    [C, H, W]                          the same with channels first
    [H, W, K], [K, H, W]               K grey frames, K / 3 coloured ones if 3 divides K
    [K, H, W, C], [K, C, H, W]         K frames of C = 1 or 3 channels (FrameStackObservation)

The channel axis is shorter than both sides. Except for the first line, the Box must range from 0 to
255 and have sides of at least 8 pixels; other boxes are read as numbers.
"""

# K frame, H row, W column, C channel

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

CHANNELS = (1, 3)
SMALLEST_SIDE = 8
LARGE_TABLE = 16  # side length from which a table may be meant as a picture


@dataclass(frozen=True)
class PictureForm:
    """How a leaf of an observation is read as pictures."""

    shape: tuple[int, ...]
    """Shape of the leaf."""
    channel_axis: int | None
    """Axis of its channels; None: it has none."""

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        height, width = (
            side
            for axis, side in enumerate(self.shape)
            if axis != self.channel_axis and not (axis == 0 and len(self.shape) == 4)
        )
        return height, width

    @property
    def count(self) -> int:
        """Number of pictures."""
        if len(self.shape) == 4:
            return self.shape[0]
        if self.channel_axis is None:
            return 1
        channels = self.shape[self.channel_axis]
        return channels // _channels_each(channels)

    def read(self, picture: Any) -> NDArray[np.uint8]:
        """Copies of the pictures, uint8 [K, H, W, 3].

        Raises:
            ValueError: Another shape or dtype.
        """
        array = np.asarray(picture)
        if array.dtype != np.uint8:
            raise ValueError(f"A picture must be uint8, got {array.dtype}.")
        if array.shape != self.shape:
            raise ValueError(f"A picture must have shape {self.shape}, got {array.shape}.")
        axis = self.channel_axis
        array = array[..., np.newaxis] if axis is None else np.moveaxis(array, axis, -1)
        if array.ndim == 3:
            each = _channels_each(array.shape[2])
            array = np.moveaxis(array.reshape(*array.shape[:2], -1, each), 2, 0)
        return np.array(np.broadcast_to(array, (*array.shape[:3], 3)))


def picture_form(space: spaces.Space[Any]) -> PictureForm | None:
    """The form of a leaf; None: it is not a picture."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return None
    shape = space.shape
    if len(shape) == 2:
        return PictureForm(shape, None)
    if len(shape) == 3 and shape[2] in CHANNELS:
        return PictureForm(shape, 2)
    if not ((space.low == 0).all() and (space.high == 255).all()):
        return None
    axis = _channel_axis(shape)
    return None if axis is None else PictureForm(shape, axis)


def may_be_meant_as_picture(space: spaces.Space[Any]) -> bool:
    """Whether a leaf that is read as numbers looks like a picture to a reader of its space."""
    if not isinstance(space, spaces.Box):
        return False
    return len(space.shape) > 2 or (len(space.shape) == 2 and min(space.shape) >= LARGE_TABLE)


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    if len(shape) not in (3, 4):
        return None
    frames = len(shape) - 3  # axes before the last three
    for axis in (frames + 2, frames):
        channels = shape[axis]
        side = min(shape[other] for other in range(frames, len(shape)) if other != axis)
        if channels < side >= SMALLEST_SIDE and (frames == 0 or channels in CHANNELS):
            return axis
    return None


def _channels_each(channels: int) -> int:
    """Channels of each picture of a stack."""
    return 3 if channels % 3 == 0 else 1


def as_rgb(picture: Any) -> NDArray[np.uint8]:
    """Return a copy of a grey [H, W], [H, W, 1] or coloured [H, W, 3] picture as [H, W, 3].

    Raises:
        ValueError: Another shape or dtype.
    """
    array = np.asarray(picture)
    has_channels = array.ndim == 3 and array.shape[2] in CHANNELS
    if (array.ndim != 2 and not has_channels) or array.size == 0:
        raise ValueError(
            f"A picture must have shape [H, W], [H, W, 1] or [H, W, 3], got {array.shape}."
        )
    return PictureForm(array.shape, None if array.ndim == 2 else 2).read(array)[0]


def fitted(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Scale `picture` [H, W, 3] into a square of `size` pixels, keeping its aspect ratio.

    The margins are black. Shrinking averages pixels, growing repeats them.
    """
    height, width = picture.shape[:2]
    scale = size / max(height, width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    scaled = _scaled(_scaled(picture.astype(np.float32), rows, axis=0), columns, axis=1)
    square = np.zeros((size, size, 3), np.uint8)
    top, left = (size - rows) // 2, (size - columns) // 2
    square[top : top + rows, left : left + columns] = np.rint(scaled)
    return square


def _scaled(values: NDArray[np.float32], length: int, *, axis: int) -> NDArray[np.float32]:
    old = values.shape[axis]
    if length >= old:
        return np.take(values, np.arange(length) * old // length, axis=axis)
    starts = np.arange(length) * old // length
    counts = np.diff(np.append(starts, old)).reshape(
        [-1 if other == axis else 1 for other in range(values.ndim)]
    )
    return (np.add.reduceat(values, starts, axis=axis) / counts).astype(np.float32)
