"""Video encoders behind their protocol: ours, the baselines, V-JEPA 2 in both formats."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import VJEPA2Config, VJEPA2Model

from vjepa.clips import prepare
from vjepa.encoders import VideoEncoder, load_tiny, load_video_encoder
from vjepa.latent_encoder import EncoderPlacement, LatentEncoder
from vjepa.pooling import MOMENTS, over_time
from vjepa.readout import ReadOut
from vjepa.train_tiny import save_encoder
from vjepa.transformers_encoder import load_transformers
from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig

Clips = Sequence[NDArray[np.uint8]]
SMALL = VideoTransformerConfig(
    image_size=32, frames_per_clip=4, patch_size=16, tubelet_size=2, width=24, depth=1, num_heads=2
)


@pytest.fixture
def clips() -> Clips:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 256, size=(length, 64, 64, 3), dtype=np.uint8) for length in (2, 16, 9, 20)
    ]


@pytest.fixture
def transformers_folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = VJEPA2Config(
        patch_size=16, crop_size=32, frames_per_clip=4, hidden_size=24, num_attention_heads=2, num_hidden_layers=1,
        pred_hidden_size=24, pred_num_attention_heads=2, pred_num_hidden_layers=1,
    )  # fmt: skip
    VJEPA2Model(config).save_pretrained(tmp_path / "vjepa2")
    return tmp_path / "vjepa2"


@pytest.mark.parametrize("pooling", [None, "over_time"])
@pytest.mark.parametrize("name", ["tiny", "random", "pixels"])
def test_shipped_encoders_keep_the_protocol(name: str, pooling: str | None, clips: Clips) -> None:
    encoder: VideoEncoder = load_video_encoder(name, pooling=pooling)
    embeddings = encoder.encode(clips)
    assert embeddings.shape == (4, encoder.embedding_size) and embeddings.dtype == np.float32
    assert np.isfinite(embeddings).all() and encoder.encode([]).shape == (0, encoder.embedding_size)


@pytest.mark.parametrize("name", ["tiny", "pixels"])
def test_an_embedding_over_time_continues_moment_by_moment(name: str, clips: Clips) -> None:
    encoder = load_video_encoder(name, pooling="over_time")
    still = [clips[1][:1].repeat(16, axis=0), clips[1][:1].repeat(8, axis=0)]
    changed = np.concatenate((still[1], clips[1][8:]))
    before, after = encoder.encode([still[0], changed]).reshape(2, MOMENTS, -1)
    moved_M = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
    assert moved_M[MOMENTS // 2 :].min() > 2 * moved_M[: MOMENTS // 2].max()


def test_pixels_over_time_end_with_the_last_frame(clips: Clips) -> None:
    over_time = load_video_encoder("pixels", pooling="over_time").encode(clips)
    ends = load_video_encoder("pixels").encode(clips)
    size = ends.shape[1] // 2
    assert np.array_equal(over_time[:, -size:], ends[:, :size])


def test_a_long_clip_is_averaged_to_as_many_moments() -> None:
    latents_BTYXD = torch.arange(16.0)[None, :, None, None, None].expand(1, 16, 4, 4, 1)
    moments = over_time(latents_BTYXD).reshape(MOMENTS, -1)
    assert moments[:, 0].tolist() == [0.5 + 2 * moment for moment in range(MOMENTS)]


@pytest.mark.parametrize("name", ["tiny", "random", "pixels"])
def test_a_clip_has_the_same_embedding_alone_and_in_a_batch(name: str, clips: Clips) -> None:
    encoder = load_video_encoder(name)
    np.testing.assert_allclose(
        encoder.encode(clips)[2], encoder.encode(clips[2:3])[0], atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("name", ["tiny", "pixels"])
def test_an_embedding_depends_on_the_order_of_frames(name: str, clips: Clips) -> None:
    encoder = load_video_encoder(name)
    forward, backward = encoder.encode([clips[1], clips[1][::-1]])
    assert np.linalg.norm(forward - backward) > 0.05 * np.linalg.norm(forward)


def test_shipped_weights_are_small() -> None:
    folder = Path(__file__).parents[2] / "assets" / "vjepa_tiny"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'tyni'\. Known: pixels, random, tiny"):
        load_video_encoder("tyni")
    with pytest.raises(ValueError, match=r"'median'\. Known: .*last"):
        load_video_encoder("tiny", pooling="median")


def test_a_clip_of_floats_is_refused_by_its_row(clips: Clips) -> None:
    with pytest.raises(ValueError, match="Clip 4 must be uint8"):
        load_video_encoder("tiny").encode([*clips, np.zeros((2, 64, 64, 3))])


def test_a_trained_encoder_is_loaded(tmp_path: Path, clips: Clips) -> None:
    model = VideoTransformer(SMALL).eval()
    save_encoder(tmp_path, model=model, pooling="last", training={})
    embeddings = load_video_encoder(str(tmp_path)).encode(clips)
    with torch.inference_mode():
        latents = model(prepare(clips, frames_per_clip=4, image_size=32, crop=False))
    np.testing.assert_allclose(embeddings, latents[:, 4:].mean(1).numpy(), atol=1e-5)


def test_a_readout_is_saved_and_loaded_with_its_encoder(tmp_path: Path, clips: Clips) -> None:
    torch.manual_seed(0)
    model, readout = VideoTransformer(SMALL).eval(), ReadOut(num_features=16 * 24)
    save_encoder(tmp_path, model=model, pooling="readout", readout=readout, training={})
    encoder = load_video_encoder(str(tmp_path))
    with torch.inference_mode():
        latents = model(prepare(clips, frames_per_clip=4, image_size=32, crop=False)).unflatten(
            1, SMALL.grid
        )
        np.testing.assert_allclose(encoder.encode(clips), readout(latents).numpy(), atol=1e-5)
    assert (
        encoder.embedding_size == 32
        and load_video_encoder(str(tmp_path), pooling="last").embedding_size == 24
    )


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, model=VideoTransformer(SMALL), pooling="last", training={})
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated"):
        load_tiny(tmp_path)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, model=VideoTransformer(SMALL), pooling="last", training={})
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="does not belong"):
        load_tiny(tmp_path)


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no video encoder"):
        load_tiny(tmp_path)


def test_transformers_latents_are_pooled(transformers_folder: Path, clips: Clips) -> None:
    encoder = load_video_encoder(str(transformers_folder), pooling="last")
    model = VJEPA2Model.from_pretrained(transformers_folder).eval()
    video = prepare(clips, frames_per_clip=4, image_size=32, crop=True)
    with torch.inference_mode():
        latents = model(
            pixel_values_videos=video.transpose(1, 2), skip_predictor=True
        ).last_hidden_state
    np.testing.assert_allclose(encoder.encode(clips), latents[:, 4:].mean(1).numpy(), atol=1e-5)
    assert (encoder.name, encoder.frames_per_clip, encoder.image_size, encoder.embedding_size) == (
        "vjepa2",
        4,
        32,
        24,
    )


def test_fewer_frames_may_be_sampled(transformers_folder: Path, clips: Clips) -> None:
    encoder = load_video_encoder(str(transformers_folder), frames_per_clip=2)
    assert encoder.frames_per_clip == 2 and np.isfinite(encoder.encode(clips)).all()


def test_a_transformers_model_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ValueError, match="type 'vit'"):
        load_video_encoder(str(tmp_path))


def test_truncated_transformers_weights_are_refused(transformers_folder: Path) -> None:
    weights = transformers_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read"):
        load_transformers(str(transformers_folder), pooling="last")


def test_a_hub_model_that_cannot_be_reached_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="No V-JEPA 2 model 'nobody/no-such-model'"):
        load_transformers("nobody/no-such-model", pooling="last")


def test_an_original_file_encodes_clips(tmp_path: Path, clips: Clips) -> None:
    config = VideoTransformerConfig(
        image_size=32,
        frames_per_clip=4,
        patch_size=16,
        tubelet_size=2,
        width=24,
        depth=1,
        num_heads=2,
    )
    model = VideoTransformer(config)
    torch.save(
        {
            "encoder": {
                f"module.backbone.{name}": value for name, value in model.state_dict().items()
            }
        },
        tmp_path / "own.pt",
    )
    with pytest.raises(ValueError, match="'own'"):
        load_video_encoder(str(tmp_path / "own.pt"))
    encoder = load_video_encoder(str(tmp_path / "own.pt"), architecture=config, pooling="last")
    assert encoder.encode(clips).shape == (4, 24)


class WhereItComputes(nn.Module):
    """A network that notes the device and type of its weights, and gives zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.seen: list[tuple[str, torch.dtype, int]] = []

    def forward(self, video_B3THW: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        self.seen.append((weight.device.type, weight.dtype, len(video_B3THW)))
        return torch.zeros(len(video_B3THW), 8, 4)


def encoder_of(network: nn.Module, **placement: Any) -> LatentEncoder:
    return LatentEncoder(
        name="fake", network=network, grid=(2, 2, 2), width=4, frames_per_clip=4, image_size=32,
        pooling="last", crop=False, placement=EncoderPlacement(**placement),
    )  # fmt: skip


def test_an_offloaded_encoder_is_on_its_device_only_while_it_encodes(clips: Clips) -> None:
    network = WhereItComputes()
    encoder = encoder_of(network, device="meta", offload=True, batch_size=3)
    in_host_memory = network.weight.data_ptr()
    encoder.encode(clips)
    assert network.seen == [("meta", torch.float32, 3), ("meta", torch.float32, 1)]
    assert network.weight.device.type == "cpu" and network.weight.data_ptr() == in_host_memory


def test_by_default_a_pass_has_8192_tokens(clips: Clips) -> None:
    assert encoder_of(WhereItComputes()).batch_size == 1024
    assert load_video_encoder("tiny").batch_size == 32  # clips of 4 x 8 x 8 tokens


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_the_batch_moves_an_embedding_by_rounding_only(
    dtype: torch.dtype, bound: float, clips: Clips
) -> None:
    alone, together = (
        load_video_encoder(
            "random", placement=EncoderPlacement(dtype=dtype, batch_size=rows)
        ).encode(clips)
        for rows in (1, 4)
    )
    difference = np.linalg.norm(alone - together, axis=1) / np.linalg.norm(alone, axis=1)
    assert difference.max() < bound


def test_bfloat16_moves_an_embedding_by_one_percent(clips: Clips) -> None:
    exact, rounded = (
        load_video_encoder("random", placement=EncoderPlacement(dtype=dtype)).encode(clips)
        for dtype in (torch.float32, torch.bfloat16)
    )
    difference = np.linalg.norm(exact - rounded, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0 < difference.max() < 3e-2
