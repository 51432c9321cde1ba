"""Reproduces TensorFlow's image preparation for a checkpoint (JPEG, Lanczos filter, crop) without
TensorFlow.

TensorFlow decodes JPEG with the fast inverse cosine transform. It differs from the accurate one,
Pillow's default, by 0.8 to 1.05 grey levels in the mean and 17 at most (six images of 256 pixels,
TensorFlow 2.21). Pillow uses the fast transform in its draft mode, which leaves out the smooth
enlargement of colours; that step and the conversion from YCbCr to RGB follow libjpeg's formulas
(jdsample.c, h2v2_fancy_upsample; jdcolor.c, ycc_rgb_convert). On those images the decoded JPEG
equals TensorFlow's to the last bit. After filter and crop one value in a thousand differs, by one
level, because TensorFlow sums in float32. Left out: grey images, and JPEG with subsampling other
than 4:2:0.
"""

import functools
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CROP_AREA = 0.9
# tf.image.convert_image_dtype multiplies [0, 1] by 255.5 and truncates.
BACK_TO_LEVELS = 255.5 / 255
JPEG_QUALITY = 95  # TensorFlow's default
LOBES = 3  # as in `lanczos3`
FULL_SCALE, DRAFT = 1, 1  # Pillow's configuration of its JPEG decoder
FIXED_POINT = 16  # bits after the point in libjpeg's colours


def stored_image(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image [height, width, 3] through `tf.image.encode_jpeg` and `tf.io.decode_image`."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
    with Image.open(file) as stored:
        stored.draft("YCbCr", None)
        stored.decoderconfig = (FULL_SCALE, DRAFT)
        planes = np.asarray(stored).astype(np.int32)
    brightness = planes[..., 0]
    bluish, reddish = (_enlarged(planes[::2, ::2, k], brightness.shape) - 128 for k in (1, 2))
    half = 1 << (FIXED_POINT - 1)
    red = brightness + ((half + _fixed(1.402) * reddish) >> FIXED_POINT)
    less_green = _fixed(0.34414) * bluish + _fixed(0.71414) * reddish
    green = brightness + ((half - less_green) >> FIXED_POINT)
    blue = brightness + ((half + _fixed(1.772) * bluish) >> FIXED_POINT)
    return np.clip(np.stack([red, green, blue], axis=-1), 0, 255).astype(np.uint8)


def resized_image(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """A square image by TensorFlow's `lanczos3` with antialias, rounded: [size, size, 3]."""
    weights = _lanczos(image.shape[0], size)
    rows = np.tensordot(weights, image.astype(np.float64), axes=1)
    both = np.tensordot(weights, rows.swapaxes(0, 1), axes=1).swapaxes(0, 1)
    return np.clip(np.rint(both), 0, 255).astype(np.uint8)


def cropped_image(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The middle `CROP_AREA` of a square image at the image's size; their corners coincide."""
    size = image.shape[0]
    share = np.sqrt(CROP_AREA)
    places = ((1 - share) / 2 + share * np.linspace(0.0, 1.0, size)) * (size - 1)
    low = np.minimum(places.astype(int), size - 2)
    weight = (places - low)[:, None]
    values = image.astype(np.float64)
    rows = values[low] * (1 - weight[..., None]) + values[low + 1] * weight[..., None]
    middle = rows[:, low] * (1 - weight) + rows[:, low + 1] * weight
    return np.asarray(middle * BACK_TO_LEVELS, np.uint8)


def _fixed(value: float) -> int:
    return int(value * (1 << FIXED_POINT) + 0.5)


def _enlarged(plane: NDArray[np.int32], shape: tuple[int, ...]) -> NDArray[np.int32]:
    """A colour at twice its size, cut to `shape`.

    In both directions a new value is three quarters of the nearest old value and one quarter of the
    next.
    """
    both = _between(_between(plane).T).T
    both[:, 0::2] = (both[:, 0::2] + 8) >> 4
    both[:, 1::2] = (both[:, 1::2] + 7) >> 4
    return both[: shape[0], : shape[1]]


def _between(plane: NDArray[np.int32]) -> NDArray[np.int32]:
    """Four times the values at twice as many rows."""
    framed = np.pad(plane, ((1, 1), (0, 0)), mode="edge")
    pairs = np.stack([3 * plane + framed[:-2], 3 * plane + framed[2:]], axis=1)
    return pairs.reshape(-1, plane.shape[1])


@functools.cache
def _lanczos(old: int, new: int) -> NDArray[np.float64]:
    """Weights [new, old] of old pixels in each new one; the filter widens as an image shrinks."""
    scale = old / new
    away = (np.arange(old) + 0.5 - (np.arange(new)[:, None] + 0.5) * scale) / max(scale, 1.0)
    weights = np.where(np.abs(away) < LOBES, np.sinc(away) * np.sinc(away / LOBES), 0.0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
