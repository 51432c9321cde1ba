"""The read-out on latents of known geometry: a position on a line, a scene without influence."""

import numpy as np
import pytest
import torch

from vjepa.readout import ReadOut
from vjepa.train_readout import (
    EpisodeIndex,
    ReadOutConfig,
    distance,
    prefix_features,
    readout_loss,
    train_readout,
)
from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig

LENGTHS = np.full(40, 9)
SUCCESS = np.arange(40) % 2 == 0
TASKS = np.full(40, "open")


def line_world(seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Features and steps to go of 40 episodes: successes walk from 8 to 0, failures turn back after
    four steps; each has its own scene.
    """
    rng = np.random.default_rng(seed)
    to_go = np.stack(
        [
            np.arange(8, -1, -1) if success else np.array([8, 7, 6, 5, 4, 5, 6, 7, 8])
            for success in SUCCESS
        ]
    ).astype(float)
    scene = rng.normal(size=(40, 1, 3)) * 8.0
    features = np.concatenate(
        (to_go[..., None], np.broadcast_to(scene, (40, 9, 3))), axis=2
    ).reshape(360, 4)
    return torch.from_numpy(features @ rng.normal(size=(4, 12))).float(), to_go.reshape(-1)


def test_distance_to_success_counts_frames_whatever_the_scene() -> None:
    features, to_go = line_world(0)
    index = EpisodeIndex(lengths=LENGTHS, success=SUCCESS, tasks=TASKS)
    readout = train_readout(
        features_NF=features, index=index, config=ReadOutConfig(steps=300, noise=0.05), seed=0
    )
    embeddings = readout.embed(features)
    goal = embeddings[torch.from_numpy(to_go == 0)].mean(0, keepdim=True)
    assert np.corrcoef(distance(embeddings, goal).numpy(), to_go)[0, 1] > 0.9
    plain = distance(features, features[torch.from_numpy(to_go == 0)].mean(0, keepdim=True)).numpy()
    assert np.corrcoef(plain, to_go)[0, 1] < 0.6


def test_the_same_seed_gives_the_same_readout() -> None:
    features, _ = line_world(0)
    index = EpisodeIndex(lengths=LENGTHS, success=SUCCESS, tasks=TASKS)
    first, second = (
        train_readout(
            features_NF=features, index=index, config=ReadOutConfig(steps=3), seed=1
        ).state_dict()
        for _ in range(2)
    )
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_loss_by_hand() -> None:
    config = ReadOutConfig(
        neighbour_weight=1.0, goal_weight=1.0, goal_radius=1.0, spread_weight=1.0, spread_limit=10.0
    )
    at = lambda *places: torch.tensor([[place] for place in places])  # noqa: E731
    loss = readout_loss(
        now_BE=at(0.0, 0.0), next_BE=at(3.0, 1.0), goal_BE=at(4.0, 99.0), other_goal_BE=at(6.0, 99.0), failed_B=torch.tensor([True, True]),
        config=config,
    )  # fmt: skip
    # neighbours ((3-1)^2 + 0) / 2 = 2, goals ((2-1)^2 + 0) / 2 = 0.5, spread (4 + 10) / 2 = 7
    assert loss.item() == pytest.approx(2.0 + 0.5 - 7.0, abs=1e-3)


def test_pairs_come_from_one_episode_and_goals_from_its_task() -> None:
    tasks = np.where(np.arange(40) < 20, "open", "push")
    draw = EpisodeIndex(lengths=LENGTHS, success=SUCCESS, tasks=tasks).draw(
        200, np.random.default_rng(0)
    )
    assert (draw.now_B // 9 == draw.next_B // 9).all() and (draw.next_B - draw.now_B == 1).all()
    for goals in (draw.goal_B, draw.other_goal_B):
        assert (
            (goals % 9 == 8).all()
            and SUCCESS[goals // 9].all()
            and (tasks[goals // 9] == tasks[draw.now_B // 9]).all()
        )
    assert (draw.failed_B == ~SUCCESS[draw.now_B // 9]).all()


def test_tasks_without_two_successes_are_left_out() -> None:
    tasks = np.array(["open", "open", "push", "push"])
    index = EpisodeIndex(
        lengths=np.full(4, 3), success=np.array([True, True, True, False]), tasks=tasks
    )
    assert set(index.ends_of) == {"open"} and set(index.tasks) == {"open"}
    with pytest.raises(ValueError, match="at least two successful clips"):
        EpisodeIndex(
            lengths=np.full(2, 3), success=np.array([True, False]), tasks=np.array(["open", "push"])
        )


def test_prefix_features_are_those_of_the_clips_themselves() -> None:
    config = VideoTransformerConfig(
        image_size=32,
        frames_per_clip=4,
        patch_size=8,
        tubelet_size=2,
        width=24,
        depth=1,
        num_heads=2,
    )
    torch.manual_seed(0)
    model = VideoTransformer(config).eval()
    frames = np.random.default_rng(0).integers(0, 256, size=(5, 32, 32, 3), dtype=np.uint8)
    rows = prefix_features(model=model, frames_NHW3=frames, lengths=np.array([3, 2]))
    alone = prefix_features(model=model, frames_NHW3=frames[3:], lengths=np.array([2]))
    assert rows.shape == (5, 16 * 24)
    torch.testing.assert_close(rows[3:], alone, atol=1e-5, rtol=1e-5)


def test_normalisation_centres_features_and_keeps_their_proportions() -> None:
    readout = ReadOut(num_features=2)
    readout.fit_normalisation(torch.tensor([[0.0, 10.0], [2.0, 16.0]]))
    assert readout.mean.tolist() == [1.0, 13.0]
    assert readout.scale.item() == pytest.approx((2**0.5 + 18**0.5) / 2)
