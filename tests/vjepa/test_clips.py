"""Frame sampling, size and normalisation of clips."""

import numpy as np
import pytest
import torch
from PIL import Image

from vjepa.clips import frame_indices, prepare, resize


def test_frames_are_spread_evenly_from_the_first_to_the_last() -> None:
    assert frame_indices(num_frames=15, frames_per_clip=8).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_short_episodes_repeat_frames_in_order() -> None:
    assert frame_indices(num_frames=2, frames_per_clip=8).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert frame_indices(num_frames=1, frames_per_clip=4).tolist() == [0, 0, 0, 0]


def test_an_episode_without_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        frame_indices(num_frames=0, frames_per_clip=8)


def test_resizing_equals_pillow() -> None:
    image = np.random.default_rng(0).integers(0, 256, size=(90, 90, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BILINEAR))
    found = (
        resize(torch.from_numpy(image).permute(2, 0, 1)[None].float(), size=64, crop=False)[0]
        .permute(1, 2, 0)
        .numpy()
    )
    assert np.abs(found - expected).max() <= 1.0  # Pillow rounds to whole levels


def test_the_releases_crop_scales_the_shortest_edge_and_keeps_the_centre() -> None:
    # 224 * 256 / 224 = 256: nothing is scaled, the centre 224 of 256 x 300 is kept
    image = torch.arange(256.0)[:, None] + torch.arange(300.0)[None, :]
    found = resize(image.expand(1, 3, -1, -1), size=224, crop=True)
    assert found.shape == (1, 3, 224, 224)
    assert found[0, 0, 0, 0] == 16 + 38 and found[0, 0, -1, -1] == 239 + 261


def test_pixels_are_normalised_by_imagenet() -> None:
    white = np.full((2, 8, 8, 3), 255, np.uint8)
    video = prepare([white], frames_per_clip=2, image_size=8, crop=False)
    torch.testing.assert_close(
        video[0, :, 0, 0, 0],
        (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225]),
    )


def test_clips_of_different_lengths_and_sizes_stack() -> None:
    clips = [
        np.zeros((length, size, size, 3), np.uint8)
        for length, size in ((2, 64), (20, 32), (1, 100))
    ]
    assert prepare(clips, frames_per_clip=8, image_size=64, crop=False).shape == (3, 3, 8, 64, 64)


@pytest.mark.parametrize(
    "clip",
    [np.zeros((2, 8, 8, 3)), np.zeros((8, 8, 3), np.uint8), np.zeros((2, 8, 8, 4), np.uint8)],
)
def test_an_invalid_clip_is_named_by_its_row(clip: np.ndarray) -> None:
    good = np.zeros((2, 8, 8, 3), np.uint8)
    with pytest.raises(ValueError, match="Clip 1 must be uint8"):
        prepare([good, clip], frames_per_clip=2, image_size=8, crop=False)
