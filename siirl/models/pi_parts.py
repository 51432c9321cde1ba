"""Parts of the networks of pi0 and pi0.5, with their sizes: PaliGemma and the action expert.

The layers are transformers' own (SigLIP, Gemma); names and results are those of the lerobot package
(src/lerobot/policies/pi_gemma.py and pi0/modeling_pi0.py, Apache-2.0). The word embedding is stored
under the name of the language head, to which it is tied, as in the published checkpoints.
"""

# N observation, L position of the prefix, S step of denoising, K action of a chunk, Q = S*K
# position of the suffix, G head of keys and values, D entry of a head, W width

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import GemmaConfig, SiglipVisionConfig, SiglipVisionModel
from transformers.models.gemma.modeling_gemma import (
    GemmaAttention,
    GemmaDecoderLayer,
    GemmaMLP,
    GemmaRMSNorm,
)

from siirl.models.prefix_layers import Angles, ReturnsKeys, attend_behind, scaled_to_fit


@dataclass(frozen=True)
class GemmaShape:
    """Sizes of one of the two transformers; each has one head of keys and values."""

    width: int
    hidden: int
    layers: int
    heads: int
    head_size: int
    vocabulary: int

    def config(self) -> GemmaConfig:
        """The configuration in transformers' form."""
        attention: Any = {"attn_implementation": "sdpa"}
        return GemmaConfig(
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=1,
            head_dim=self.head_size,
            vocab_size=self.vocabulary,
            **attention,
        )


@dataclass(frozen=True)
class VisionShape:
    """Sizes of the image encoder."""

    width: int
    hidden: int
    layers: int
    patch: int
    image_size: int
    """Side length in pixels to which images are scaled and padded."""
    heads: int = 16  # of SigLIP So400m, PaliGemma's encoder


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of all parts."""

    vision: VisionShape
    language: GemmaShape
    expert: GemmaShape
    max_state_dim: int
    max_action_dim: int
    periods: tuple[float, float]
    """Shortest and longest period of the time embedding."""


class PlainNorm(GemmaRMSNorm):
    """Gemma's norm, with the interface of `AdaptiveNorm`."""

    def forward(  # type: ignore[override]
        self, hidden_NSKW: torch.Tensor, condition_NSW: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Normalised tokens, without a gate."""
        return super().forward(hidden_NSKW), None


class AdaptiveNorm(nn.Module):
    """RMSNorm whose scale, shift and gate come from a condition (LeRobot's `PiGemmaRMSNorm`)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:  # Gemma's epsilon
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(width, 3 * width)

    def forward(
        self, hidden_NSKW: torch.Tensor, condition_NSW: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised tokens, and the gate [N, S, 1, W] of the residual branch."""
        single = hidden_NSKW.float()
        normed = single * torch.rsqrt(single.square().mean(-1, keepdim=True) + self.eps)
        modulation = self.dense(condition_NSW.to(self.dense.weight.dtype))[:, :, None]
        scale, shift, gate = modulation.chunk(3, dim=-1)
        scaled = normed * (1 + scale.float()) + shift.float()
        return scaled.to(hidden_NSKW.dtype), gate.to(hidden_NSKW.dtype)


class PrefixLayer(ReturnsKeys, GemmaDecoderLayer):  # type: ignore[misc]
    """A layer of the language model that also returns its keys and values."""


class ExpertLayer(nn.Module):
    """A layer of Gemma that also attends to a prefix.

    Args:
        config: Configuration of the expert.
        norm: Class of the layer's norms.
    """

    def __init__(self, config: GemmaConfig, norm: type[PlainNorm | AdaptiveNorm]) -> None:
        super().__init__()
        self.self_attn = GemmaAttention(config, layer_idx=0)
        self.mlp = GemmaMLP(config)
        self.input_layernorm = norm(config.hidden_size)
        self.post_attention_layernorm = norm(config.hidden_size)

    def forward(
        self,
        hidden_NSKW: torch.Tensor,
        *,
        keys_NGLD: torch.Tensor,
        values_NGLD: torch.Tensor,
        mask: torch.Tensor,
        angles: Angles,
        condition_NSW: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The layer's output [N, S, K, W], and its own keys and values; see `attend_behind`."""
        inputs, gate = self.input_layernorm(hidden_NSKW, condition_NSW)
        mixed_NQW, keys, values = attend_behind(
            self.self_attn,
            inputs.flatten(1, 2),
            keys_NGLD=keys_NGLD,
            values_NGLD=values_NGLD,
            mask=mask,
            angles=angles,
        )
        hidden_NSKW = _added(hidden_NSKW, mixed_NQW.view_as(hidden_NSKW), gate)
        inputs, gate = self.post_attention_layernorm(hidden_NSKW, condition_NSW)
        return _added(hidden_NSKW, self.mlp(inputs), gate), keys, values


def _added(sum_: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    return sum_ + (branch if gate is None else branch * gate)


class PaliGemmaWithExpert(nn.Module):
    """The two transformers, with LeRobot's names."""

    def __init__(self, shape: NetworkShape, *, norm: type[PlainNorm | AdaptiveNorm]) -> None:
        super().__init__()
        self.paligemma = PaliGemma(shape)
        self.gemma_expert = ActionExpert(shape.expert, norm)


class PaliGemma(nn.Module):
    """Image encoder, projector and language model."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        vision, language = shape.vision, shape.language
        no_head: Any = {"vision_use_head": False}
        encoder = SiglipVisionConfig(
            hidden_size=vision.width,
            intermediate_size=vision.hidden,
            num_hidden_layers=vision.layers,
            num_attention_heads=vision.heads,
            image_size=vision.image_size,
            patch_size=vision.patch,
            **no_head,
        )
        config = language.config()
        self.model = _parts(
            vision_tower=_parts(
                vision_model=SiglipVisionModel._from_config(
                    encoder, attn_implementation="sdpa", dtype=torch.float32
                )
            ),
            multi_modal_projector=_parts(linear=nn.Linear(vision.width, language.width)),
            language_model=_parts(
                layers=nn.ModuleList(
                    PrefixLayer(config, number) for number in range(language.layers)
                ),
                norm=GemmaRMSNorm(language.width),
            ),
        )
        self.lm_head = nn.Embedding(language.vocabulary, language.width)


class ActionExpert(nn.Module):
    """The transformer of the suffix; its language head is stored but never used."""

    def __init__(self, shape: GemmaShape, norm: type[PlainNorm | AdaptiveNorm]) -> None:
        super().__init__()
        config = shape.config()
        self.model = _parts(
            layers=nn.ModuleList(ExpertLayer(config, norm) for _ in range(shape.layers)),
            norm=norm(shape.width),
        )
        self.lm_head = nn.Embedding(shape.vocabulary, shape.width)


def _parts(**modules: nn.Module) -> Any:
    """A module that only groups others under a name."""
    named = nn.Module()
    for name, module in modules.items():
        named.add_module(name, module)
    return named


def scaled_and_centred(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Images [N, 3, ., .] in [0, 1] scaled to fit a square, with black on both sides."""
    if pixels.shape[2:] != (side, side):
        pixels = scaled_to_fit(pixels, side, side)
    above, before = (side - pixels.shape[2]) // 2, (side - pixels.shape[3]) // 2
    below, behind = side - pixels.shape[2] - above, side - pixels.shape[3] - before
    return functional.pad(pixels, (before, behind, above, below))
