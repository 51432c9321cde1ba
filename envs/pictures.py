"""Converts pictures to the contract's form, uint8 [height, width, 3], with NumPy only."""

import numpy as np
from numpy.typing import NDArray


def as_rgb(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy of a grey [H, W], [H, W, 1] or coloured [H, W, 3] picture as [H, W, 3].

    Raises:
        ValueError: Another shape or dtype.
    """
    picture = np.asarray(picture)
    if picture.dtype != np.uint8:
        raise ValueError(f"A picture must be uint8, got {picture.dtype}.")
    if picture.ndim == 2:
        picture = picture[..., np.newaxis]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3):
        raise ValueError(
            f"A picture must have shape [H, W], [H, W, 1] or [H, W, 3], got {picture.shape}."
        )
    return np.array(np.broadcast_to(picture, (*picture.shape[:2], 3)))


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
