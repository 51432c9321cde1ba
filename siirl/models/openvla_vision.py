"""OpenVLA's vision: concatenates the patch features of DINOv2 and SigLIP.

The checkpoints were trained with timm's vision transformers. The modules here have the same weights
under the same names and compute the same numbers (tests/models/test_openvla_vision.py), without
timm: timm needs torchvision, whose builds must match torch's, and its versions after 0.9 use other
names. Only the used part of an encoder is built: OpenVLA reads the output of the second-to-last
block, before the final norm (github.com/openvla/openvla, prismatic/extern/hf/modeling_prismatic.py,
MIT).
"""

# N image, P patch, S = registers + P token, D feature, H head

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from siirl.errors import UnknownNameError

NORM_EPSILON = 1e-6  # timm's


@dataclass(frozen=True)
class EncoderShape:
    """Shape of a vision transformer."""

    width: int
    blocks: int
    """Blocks of the whole encoder; the last one is not run."""
    heads: int
    hidden: int
    """Hidden width of a block's MLP."""
    patch: int = 14
    registers: int = 0
    """Register tokens, preceded by a class token."""
    scaled: bool = False
    """Whether the branches of a block are scaled per feature (LayerScale)."""


ENCODERS = {
    "vit_large_patch14_reg4_dinov2.lvd142m": EncoderShape(
        width=1024, blocks=24, heads=16, hidden=4096, registers=4, scaled=True
    ),
    "vit_so400m_patch14_siglip_224": EncoderShape(width=1152, blocks=27, heads=16, hidden=4304),
}
"""Encoders by timm's names (timm/models/vision_transformer.py, Apache 2.0)."""


def encoder_shape(name: str, *, known: Mapping[str, EncoderShape] = ENCODERS) -> EncoderShape:
    """The shape of a named encoder; raises UnknownNameError with the known ones."""
    if name not in known:
        raise UnknownNameError.of(
            kind="image encoder (timm_model_ids in config.json)", name=name, known=known
        )
    return known[name]


class VisionBackbone(nn.Module):
    """One or two encoders on the same image.

    Args:
        shapes: Shapes of the encoders.
        means, stds: Normalisation of colours in [0, 1], for each encoder.
        image_size: Height and width in pixels.
        recompute: Keep only the input of each block for the backward pass, and recompute the rest.
        encoders: Encoders of these shapes, built elsewhere (`siirl.models.timm_vision`); None: our
            own.
    """

    means: torch.Tensor
    stds: torch.Tensor

    def __init__(
        self,
        shapes: Sequence[EncoderShape],
        *,
        means: Sequence[Sequence[float]],
        stds: Sequence[Sequence[float]],
        image_size: int,
        recompute: bool,
        encoders: "Sequence[VisionEncoder] | None" = None,
    ) -> None:
        super().__init__()
        if encoders is None:
            encoders = [
                VisionEncoder(shape, image_size=image_size, recompute=recompute) for shape in shapes
            ]
        self.featurizer = encoders[0]
        self.fused_featurizer = encoders[1] if len(encoders) > 1 else None
        self.shapes = tuple(shapes)
        self.width = sum(shape.width for shape in shapes)
        self.patches = self.featurizer.patches
        self.register_buffer("means", torch.tensor(means).view(-1, 3, 1, 1), persistent=False)
        self.register_buffer("stds", torch.tensor(stds).view(-1, 3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Patches [N, P, D] of images uint8 [N, height, width, 3].

        D is the sum of the encoders' widths.
        """
        colours = images.permute(0, 3, 1, 2) / 255
        encoders = [
            encoder for encoder in (self.featurizer, self.fused_featurizer) if encoder is not None
        ]
        features = [
            encoder(((colours - mean) / std).to(encoder.pos_embed.dtype))
            for encoder, mean, std in zip(encoders, self.means, self.stds, strict=True)
        ]
        return torch.cat(features, dim=-1)


class VisionEncoder(nn.Module):
    """A vision transformer up to its second-to-last block."""

    def __init__(self, shape: EncoderShape, *, image_size: int, recompute: bool) -> None:
        super().__init__()
        self.patches = (image_size // shape.patch) ** 2
        self.registers = shape.registers
        self.recompute = recompute
        self.patch_embed: nn.Module = nn.ModuleDict(
            {"proj": nn.Conv2d(3, shape.width, kernel_size=shape.patch, stride=shape.patch)}
        )
        self.pos_embed = nn.Parameter(torch.zeros(1, self.patches, shape.width))
        if shape.registers:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
            self.reg_token = nn.Parameter(torch.zeros(1, shape.registers, shape.width))
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.blocks - 1)])

    def forward(self, colours: torch.Tensor) -> torch.Tensor:
        """Patches [N, P, D] of normalised colours [N, 3, height, width]."""
        tokens = self.embed(colours) + self.pos_embed
        if self.registers:
            first = torch.cat([self.cls_token, self.reg_token], dim=1)
            tokens = torch.cat([first.expand(len(tokens), -1, -1), tokens], dim=1)
        for block in self.blocks:
            tokens = recomputed(block, tokens) if self.recompute else block(tokens)
        return tokens[:, -self.patches :]

    def embed(self, colours: torch.Tensor) -> torch.Tensor:
        """Embedded patches [N, P, D], without positions."""
        projection = self.patch_embed.get_submodule("proj")
        patches: torch.Tensor = projection(colours).flatten(2).transpose(1, 2)
        return patches


def recomputed(part: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """`part(value)`, with only `value` kept for the backward pass."""
    if not torch.is_grad_enabled():
        return part(value)
    output: torch.Tensor = checkpoint(part, value, use_reentrant=False)
    return output


class Block(nn.Module):
    """Attention and an MLP, each after a norm and with a residual connection."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.attn = Attention(shape.width, heads=shape.heads)
        self.ls1 = LayerScale(shape.width) if shape.scaled else nn.Identity()
        self.norm2 = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.mlp = MLP((shape.width, shape.hidden, shape.width))
        self.ls2 = LayerScale(shape.width) if shape.scaled else nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N, S, D] to [N, S, D]."""
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        return tokens + self.ls2(self.mlp(self.norm2(tokens)))


class Attention(nn.Module):
    """Attention of every token to every token."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N, S, D] to [N, S, D]."""
        queries, keys, values = (
            self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        seen = functional.scaled_dot_product_attention(queries, keys, values)
        return self.proj(seen.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Linear layers `fc1`, `fc2`, … of the given widths, with a GELU between each two."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), start=1):
            self.add_module(f"fc{number}", nn.Linear(inputs, outputs))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.parameters()).dtype

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., first width] to [..., last width]."""
        first, *others = self.children()
        values = first(values)
        for layer in others:
            values = layer(functional.gelu(values))
        return values


class LayerScale(nn.Module):
    """One factor per feature; `scale_factor` in OpenVLA's checkpoints, `gamma` in timm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        return tokens * self.scale_factor
