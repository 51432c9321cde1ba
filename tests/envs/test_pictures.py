"""Scaling by hand-checkable numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.gymnasium import fitted
from envs.gymnasium_pictures import as_rgb


def test_shrinking_averages_the_pixels_that_fall_together():
    picture = np.array([[0, 2], [4, 6]], np.uint8)[..., np.newaxis].repeat(3, axis=2)
    assert fitted(picture, 1).tolist() == [[[3, 3, 3]]]


def test_growing_repeats_pixels():
    picture = np.array([[1, 2], [3, 4]], np.uint8)[..., np.newaxis].repeat(3, axis=2)
    assert fitted(picture, 4)[..., 0].tolist() == [
        [1, 1, 2, 2],
        [1, 1, 2, 2],
        [3, 3, 4, 4],
        [3, 3, 4, 4],
    ]


def test_aspect_ratio_is_kept_with_black_bars():
    assert fitted(np.full((2, 4, 3), 9, np.uint8), 4)[..., 0].tolist() == [
        [0] * 4,
        [9] * 4,
        [9] * 4,
        [0] * 4,
    ]


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    size=st.integers(1, 50),
    value=st.integers(0, 255),
)
def test_one_colour_stays_one_colour(height, width, size, value):
    image = fitted(np.full((height, width, 3), value, np.uint8), size)
    assert image.shape == (size, size, 3)
    assert set(np.unique(image)) <= {0, value}
    assert value in image


def test_grey_becomes_colour():
    assert as_rgb(np.array([[7]], np.uint8)).tolist() == [[[7, 7, 7]]]


@pytest.mark.parametrize(
    "picture",
    [np.zeros((2, 2, 4), np.uint8), np.zeros(3, np.uint8), np.zeros((2, 2, 3), np.float32)],
)
def test_other_pictures_are_refused(picture):
    with pytest.raises(ValueError, match="A picture must"):
        as_rgb(picture)
