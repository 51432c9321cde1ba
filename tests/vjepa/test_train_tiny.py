"""Masks and the joint-embedding training of a very small encoder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vjepa.masking import MULTI_BLOCK, BlockMask, FutureMask, sample_masks
from vjepa.predictor import Predictor
from vjepa.train_tiny import (
    ClipSampler,
    TrainingConfig,
    learning_rate,
    load_clips,
    predictive_loss,
    train,
    update_average,
)
from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig

SMALL = VideoTransformerConfig(
    image_size=32, frames_per_clip=4, patch_size=8, tubelet_size=2, width=24, depth=1, num_heads=2
)
QUICK = TrainingConfig(
    steps=30, batch_size=8, warmup_steps=5, predictor_width=24, predictor_depth=1
)


def moving_square(*, episodes: int = 6, length: int = 9) -> np.ndarray:
    """Episodes of a white square that walks over a grey image: uint8 [episodes * length, 32, 32,
    3].
    """
    frames = np.full((episodes, length, 32, 32, 3), 90, np.uint8)
    for episode in range(episodes):
        for step in range(length):
            frames[episode, step, 4 * episode : 4 * episode + 8, 2 * step : 2 * step + 8] = 255
    return frames.reshape(-1, 32, 32, 3)


def sampler(seed: int = 0) -> ClipSampler:
    return ClipSampler(
        frames_NHW3=moving_square(), lengths=np.full(6, 9), frames_per_clip=4, seed=seed
    )


@pytest.mark.parametrize(
    "mask", [*MULTI_BLOCK, FutureMask(tubelets=2), BlockMask(num_blocks=1, scale=0.3)]
)
def test_context_and_target_share_no_token(mask: BlockMask | FutureMask) -> None:
    context, target = sample_masks(
        mask, batch_size=5, grid=(4, 8, 8), generator=torch.Generator().manual_seed(0)
    )
    for row in range(5):
        both = torch.cat((context[row], target[row])).tolist()
        assert len(set(both)) == len(both) and min(both) >= 0 and max(both) < 256
    assert context.shape[1] > 0 and target.shape[1] > 0


def test_a_future_mask_hides_the_last_tubelets() -> None:
    context, target = sample_masks(
        FutureMask(tubelets=1), batch_size=2, grid=(3, 2, 2), generator=torch.Generator()
    )
    assert context.tolist() == [list(range(8))] * 2 and target.tolist() == [[8, 9, 10, 11]] * 2


def test_a_future_mask_needs_a_past() -> None:
    with pytest.raises(ValueError, match="between 1 and 1 of 2 tubelets; got 2"):
        sample_masks(
            FutureMask(tubelets=2), batch_size=1, grid=(2, 2, 2), generator=torch.Generator()
        )


def test_blocks_hide_the_same_patches_at_all_times() -> None:
    _, target = sample_masks(
        BlockMask(num_blocks=1, scale=0.25),
        batch_size=1,
        grid=(2, 4, 4),
        generator=torch.Generator().manual_seed(1),
    )
    early, late = (
        set((target[0][(target[0] >= 16) == side] % 16).tolist()) for side in (False, True)
    )
    assert early == late and len(early) > 0


def test_training_lowers_the_loss() -> None:
    _, losses = train(sampler=sampler(), model_config=SMALL, config=QUICK)
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_the_same_seed_gives_the_same_weights() -> None:
    config = TrainingConfig(**{**vars(QUICK), "steps": 3})
    first, second = (
        train(sampler=sampler(), model_config=SMALL, config=config)[0].state_dict()
        for _ in range(2)
    )
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_no_gradient_reaches_the_target_encoder() -> None:
    encoder, target = VideoTransformer(SMALL), VideoTransformer(SMALL)
    predictor = Predictor(encoder_width=24, width=24, depth=1, num_heads=2, grid=SMALL.grid)
    predictive_loss(
        encoder=encoder, target=target, predictor=predictor, video=sampler().draw(2), mask=MULTI_BLOCK[0],
        generator=torch.Generator().manual_seed(0),
    ).backward()  # fmt: skip
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(
        parameter.grad is not None for parameter in [*encoder.parameters(), *predictor.parameters()]
    )


def test_the_average_moves_by_the_rest_of_the_momentum() -> None:
    target, encoder = VideoTransformer(SMALL), VideoTransformer(SMALL)
    torch.nn.init.constant_(target.norm.weight, 1.0)
    torch.nn.init.constant_(encoder.norm.weight, 2.0)
    update_average(target, encoder, momentum=0.75)
    assert target.norm.weight.tolist() == [1.25] * 24


def test_the_learning_rate_warms_up_and_falls() -> None:
    config = TrainingConfig(steps=100, warmup_steps=10, learning_rate=1.0)
    assert learning_rate(step=0, config=config) == pytest.approx(0.1)
    assert learning_rate(step=10, config=config) == pytest.approx(1.0)
    assert learning_rate(step=55, config=config) == pytest.approx(0.01 + 0.99 / 2)


def test_sampled_clips_are_stretches_of_one_episode_in_order() -> None:
    frames = (
        np.arange(12, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3)
    )
    drawn = ClipSampler(
        frames_NHW3=frames, lengths=np.array([5, 7]), frames_per_clip=4, seed=0
    ).draw(64)
    values = (drawn[:, 0, :, 0, 0] * 0.229 + 0.485) * 255
    assert (values.diff(dim=1) >= -1e-3).all()
    assert ((values < 4.5).all(1) | (values > 4.5).all(1)).all()


def test_lengths_must_fit_the_frames() -> None:
    with pytest.raises(ValueError, match="sum to 11, but there are 12 frames"):
        ClipSampler(
            frames_NHW3=np.zeros((12, 8, 8, 3), np.uint8),
            lengths=np.array([5, 6]),
            frames_per_clip=4,
            seed=0,
        )


def write_clips(file: Path, *, length: int) -> None:
    np.savez(
        file,
        frames=np.zeros((length, 8, 8, 3), np.uint8),
        lengths=np.array([length]),
        success=np.array([True]),
        tasks=np.array(["open"]),
    )


def test_clips_of_a_folder_are_joined(tmp_path: Path) -> None:
    for name, length in (("b", 2), ("a", 3)):
        write_clips(tmp_path / f"{name}.npz", length=length)
    clips = load_clips(tmp_path)
    assert (
        len(clips.frames_NHW3) == 5
        and clips.lengths.tolist() == [3, 2]
        and clips.tasks.tolist() == ["open", "open"]
    )


def test_missing_or_foreign_clips_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="collect_clips"):
        load_clips(tmp_path)
    np.savez(tmp_path / "demos.npz", actions=np.zeros(3))
    with pytest.raises(ValueError, match="no array 'frames'; it has actions"):
        load_clips(tmp_path / "demos.npz")
