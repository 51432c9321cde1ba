"""The video transformer against transformers' VJEPA2Model, an independent implementation, at tiny
size.
"""

import math

import pytest
import torch
from torch import Tensor
from transformers import VJEPA2Config, VJEPA2Model

from vjepa.vision_transformer import VideoTransformer, VideoTransformerConfig, rotary_table, rotate

CONFIG = VideoTransformerConfig(
    image_size=32,
    frames_per_clip=4,
    patch_size=8,
    tubelet_size=2,
    width=44,
    depth=2,
    num_heads=2,
    mlp_ratio=48 / 11,
)


def transformers_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The release's names and fused query, key, value as transformers has them."""
    renamed = {}
    for name, value in tensors.items():
        name = (
            name.replace("patch_embed.", "embeddings.patch_embeddings.")
            .replace("blocks.", "layer.")
            .replace("attn.", "attention.")
        )
        name = "encoder." + (
            "layernorm." + name.removeprefix("norm.") if name.startswith("norm.") else name
        )
        if "qkv" in name:
            for part, chunk in zip(("query", "key", "value"), value.chunk(3), strict=True):
                renamed[name.replace("qkv", part)] = chunk
        else:
            renamed[name] = value
    return renamed


def transformers_model(model: VideoTransformer) -> VJEPA2Model:
    config = VJEPA2Config(
        patch_size=CONFIG.patch_size, crop_size=CONFIG.image_size, frames_per_clip=CONFIG.frames_per_clip, hidden_size=CONFIG.width,
        num_attention_heads=CONFIG.num_heads, num_hidden_layers=CONFIG.depth, mlp_ratio=CONFIG.mlp_ratio,
        pred_hidden_size=24, pred_num_attention_heads=2, pred_num_hidden_layers=1,
    )  # fmt: skip
    other = VJEPA2Model(config).eval()
    missing, unexpected = other.load_state_dict(
        transformers_names(model.state_dict()), strict=False
    )
    assert not unexpected and all(name.startswith("predictor.") for name in missing)
    return other


def perturbed_model() -> VideoTransformer:
    """Weights large enough that attention is not flat and no norm is the identity."""
    torch.manual_seed(0)
    model = VideoTransformer(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_latents_equal_those_of_transformers() -> None:
    model = perturbed_model()
    video = torch.randn(2, 3, 4, 32, 32)
    with torch.inference_mode():
        expected = transformers_model(model)(
            pixel_values_videos=video.transpose(1, 2), skip_predictor=True
        ).last_hidden_state
        torch.testing.assert_close(model(video), expected, atol=1e-5, rtol=1e-5)


def test_more_frames_than_configured_are_encoded_as_transformers_does() -> None:
    model = perturbed_model()
    video = torch.randn(1, 3, 10, 32, 32)
    with torch.inference_mode():
        expected = transformers_model(model)(
            pixel_values_videos=video.transpose(1, 2), skip_predictor=True
        ).last_hidden_state
        torch.testing.assert_close(model(video), expected, atol=1e-5, rtol=1e-5)


def test_a_context_of_all_tokens_is_the_whole_clip() -> None:
    model = perturbed_model()
    video = torch.randn(2, 3, 4, 32, 32)
    everything = torch.arange(CONFIG.num_tokens).expand(2, -1)
    torch.testing.assert_close(model(video, keep_BN=everything), model(video))


def test_hidden_tokens_do_not_reach_the_context() -> None:
    model = perturbed_model()
    video, other = torch.randn(1, 3, 4, 32, 32), torch.randn(1, 3, 4, 32, 32)
    other[:, :, :2] = video[:, :, :2]  # the first tubelet is the same
    first_tubelet = torch.arange(16).unsqueeze(0)
    torch.testing.assert_close(
        model(video, keep_BN=first_tubelet), model(other, keep_BN=first_tubelet)
    )


def test_rotation_turns_the_channels_of_time_by_the_tubelet() -> None:
    cosine, sine = rotary_table(grid=(2, 1, 1), head_width=6)
    turned = rotate(
        torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0, 0.0]]).expand(1, 1, 2, 6), cosine, sine
    )[0, 0]
    torch.testing.assert_close(turned[0], torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]))
    torch.testing.assert_close(
        turned[1], torch.tensor([math.cos(1), math.sin(1), 1.0, 0.0, 1.0, 0.0])
    )


@pytest.mark.parametrize(
    "shape", [(1, 3, 3, 32, 32), (1, 3, 4, 30, 32), (1, 1, 4, 32, 32), (3, 4, 32, 32)]
)
def test_a_video_that_does_not_cut_into_tubelets_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiples of"):
        VideoTransformer(CONFIG)(torch.zeros(shape))


@pytest.mark.parametrize(
    "change", [{"image_size": 30}, {"frames_per_clip": 3}, {"num_heads": 3}, {"num_heads": 22}]
)
def test_an_impossible_shape_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"multiple of|at least 6"):
        VideoTransformerConfig(**{**vars(CONFIG), **change})
