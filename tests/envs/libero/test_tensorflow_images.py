"""Images as TensorFlow prepares them, beside its own of one picture (tensorflow_reference.py)."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.libero.tensorflow_images import cropped_image, resized_image, stored_image


@pytest.fixture(scope="module")
def made():
    with np.load(Path(__file__).with_name("tensorflow_images.npz")) as arrays:
        return dict(arrays)


def levels(ours, theirs):
    """Mean and largest difference, in grey levels."""
    away = np.abs(ours.astype(int) - theirs.astype(int))
    return away.mean(), away.max()


def test_jpeg_is_decoded_as_tensorflow_decodes_it(made):
    assert np.array_equal(stored_image(made["picture"]), made["stored"])


def test_resized_image_is_tensorflows_up_to_rounding(made):
    mean, largest = levels(resized_image(made["stored"], 32), made["resized"])
    assert mean < 0.002  # 6 of the 3072 values
    assert largest <= 1


def test_cropped_image_is_tensorflows_up_to_rounding(made):
    mean, largest = levels(cropped_image(made["resized"]), made["cropped"])
    assert mean < 0.002
    assert largest <= 1


def test_the_whole_path_is_tensorflows_up_to_rounding(made):
    ours = cropped_image(resized_image(stored_image(made["picture"]), 32))
    mean, largest = levels(ours, made["cropped"])
    assert mean < 0.004
    assert largest <= 1


def test_image_of_the_wanted_size_stays_as_it_is(made):
    assert np.array_equal(resized_image(made["picture"], 45), made["picture"])


@settings(derandomize=True, deadline=None, max_examples=30)
@given(level=st.integers(0, 255), height=st.integers(1, 40), width=st.integers(1, 40))
def test_grey_image_of_any_size_comes_back_from_its_jpeg(level, height, width):
    image = np.full((height, width, 3), level, np.uint8)
    assert levels(stored_image(image), image)[1] <= 1


def test_crop_keeps_the_middle_and_drops_the_border():
    image = np.zeros((224, 224, 3), np.uint8)
    # The crop takes 5.7 pixels off each side.
    image[:5], image[-5:], image[:, :5], image[:, -5:] = 255, 255, 255, 255
    assert cropped_image(image).max() == 0


def test_crop_is_centred():
    image = np.zeros((224, 224, 3), np.uint8)
    image[111:113, 111:113] = 255
    seen = cropped_image(image)
    assert np.array_equal(seen, seen[::-1, ::-1])
    assert seen[111:113, 111:113].min() > 200


def test_levels_of_the_crop_are_cut_off_and_not_rounded():
    image = np.zeros((224, 224, 3), np.uint8)
    image[:, 112:] = 1
    # Column 112 of the crop lies half a crop's pixel, 0.949 / 2, right of the middle at 111.5:
    # 0.97 of the way to the level 1.
    assert cropped_image(image)[0, 110:115, 0].tolist() == [0, 0, 0, 1, 1]
