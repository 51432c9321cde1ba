"""The video transformer of V-JEPA 2, from tubelets to one latent per tubelet patch.

One class implements the released sizes (ViT-L/H/g, loaded from the original `.pt` files) and the
tiny encoder of this repository. Parameters have the release's names. Positions are rotary over
time, height and width, so a model accepts any number of frames. Left out: the sine position table
of V-JEPA 1, SwiGLU, stochastic depth, images without time.

Source: Assran et al. 2025, "V-JEPA 2", arXiv 2506.09985; public code facebookresearch/vjepa2 (names
of parameters, order of axes).
"""

# Axes: B clip, T frame, N token, D channel, H head, E channel of one head. Tokens run over time,
# then rows, then columns.

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

ROPE_BASE = 10_000.0  # V-JEPA 2 release
LAYER_NORM_EPS = 1e-6  # V-JEPA 2 release
INIT_STD = 0.02  # V-JEPA 2 release


@dataclass(frozen=True)
class VideoTransformerConfig:
    """Shape of a video transformer; sizes in pixels, frames and channels."""

    image_size: int
    frames_per_clip: int
    patch_size: int
    tubelet_size: int
    width: int
    depth: int
    num_heads: int
    mlp_ratio: float = 4.0

    def __post_init__(self) -> None:
        for whole, part, what in (
            (self.image_size, self.patch_size, "image_size must be a multiple of patch_size"),
            (
                self.frames_per_clip,
                self.tubelet_size,
                "frames_per_clip must be a multiple of tubelet_size",
            ),
            (self.width, self.num_heads, "width must be a multiple of num_heads"),
        ):
            if min(whole, part) < 1 or whole % part:
                raise ValueError(f"{what}, both at least 1; got {whole} and {part}.")
        if self.width // self.num_heads < 6:
            raise ValueError(
                "A head needs at least 6 channels, 2 for each of three axes; got "
                f"{self.width // self.num_heads}."
            )

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tubelets of a clip, rows and columns of patches."""
        side = self.image_size // self.patch_size
        return self.frames_per_clip // self.tubelet_size, side, side

    @property
    def num_tokens(self) -> int:
        return math.prod(self.grid)


def rotary_table(
    *, grid: tuple[int, int, int], head_width: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [N, E] of each token: a third of the head's channels for time, rows and
    columns; the rest is not rotated.

    As in the release, the frequencies of an axis are repeated as a block, although the rotated
    pairs are neighbours.
    """
    axis_width = 2 * (head_width // 3 // 2)
    frequencies = ROPE_BASE ** (
        -torch.arange(axis_width // 2, dtype=torch.float32, device=device) / (axis_width / 2)
    )
    positions = torch.stack(
        torch.meshgrid(*(torch.arange(size, device=device) for size in grid), indexing="ij"),
        dim=-1,
    ).reshape(-1, 3)
    angles = positions[:, :, None] * frequencies  # [N, 3, axis_width / 2]
    angles = torch.cat((angles, angles), dim=-1).flatten(1)
    angles = functional.pad(angles, (0, head_width - 3 * axis_width))
    return angles.cos(), angles.sin()


def rotate(x_BHNE: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair of neighbouring channels by its token's angle; tables are [N, E] or [B, 1,
    N, E].
    """
    even, odd = x_BHNE.unflatten(-1, (-1, 2)).unbind(-1)
    return x_BHNE * cosine + torch.stack((-odd, even), dim=-1).flatten(-2) * sine


class PatchEmbedding(nn.Module):
    """One linear map per tubelet patch."""

    def __init__(self, config: VideoTransformerConfig) -> None:
        super().__init__()
        size = (config.tubelet_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(3, config.width, kernel_size=size, stride=size)

    def forward(self, video_B3THW: Tensor) -> Tensor:
        return self.proj(video_B3THW).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention with rotary positions."""

    def __init__(self, *, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BND: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query, key, value = (
            self.qkv(x_BND).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        )
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cosine, sine), rotate(key, cosine, sine), value
        )
        return self.proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear maps with a GELU in between."""

    def __init__(self, *, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x_BND: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x_BND)))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, *, width: int, num_heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.attn = Attention(width=width, num_heads=num_heads)
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = FeedForward(width=width, hidden=round(width * mlp_ratio))

    def forward(self, x_BND: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x_BND = x_BND + self.attn(self.norm1(x_BND), cosine, sine)
        return x_BND + self.mlp(self.norm2(x_BND))


class VideoTransformer(nn.Module):
    """V-JEPA 2's encoder, from a video [B, 3, T, height, width] to latents [B, N, D]."""

    def __init__(self, config: VideoTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbedding(config)
        self.blocks = nn.ModuleList(
            Block(width=config.width, num_heads=config.num_heads, mlp_ratio=config.mlp_ratio)
            for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width, eps=LAYER_NORM_EPS)
        initialise(self)

    def forward(self, video_B3THW: Tensor, *, keep_BN: Tensor | None = None) -> Tensor:
        """Encode a clip, or only its tokens `keep_BN` (indices), as the context encoder does in
        training.

        Raises:
            ValueError: A video that cannot be divided into whole tubelets and patches.
        """
        grid = self._grid_of(video_B3THW)
        x_BND = self.patch_embed(video_B3THW)
        cosine, sine = (
            table.to(x_BND)
            for table in rotary_table(
                grid=grid,
                head_width=self.config.width // self.config.num_heads,
                device=x_BND.device,
            )
        )
        if keep_BN is not None:
            x_BND = select_tokens(x_BND, keep_BN)
            cosine, sine = cosine[keep_BN].unsqueeze(1), sine[keep_BN].unsqueeze(1)
        for block in self.blocks:
            x_BND = block(x_BND, cosine, sine)
        return self.norm(x_BND)

    def _grid_of(self, video_B3THW: Tensor) -> tuple[int, int, int]:
        sizes = tuple(video_B3THW.shape)
        units = (self.config.tubelet_size, self.config.patch_size, self.config.patch_size)
        if (
            len(sizes) != 5
            or sizes[1] != 3
            or any(size < unit or size % unit for size, unit in zip(sizes[2:], units, strict=False))
        ):
            raise ValueError(
                f"A video is [B, 3, T, height, width] with T, height, width multiples of {units}; "
                f"got {list(sizes)}."
            )
        return sizes[2] // units[0], sizes[3] // units[1], sizes[4] // units[2]


def select_tokens(x_BND: Tensor, index_BN: Tensor) -> Tensor:
    """The tokens `index_BN` of each row."""
    return x_BND.gather(1, index_BN.unsqueeze(-1).expand(-1, -1, x_BND.shape[-1]))


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """The release's initialisation: truncated normal weights, zero biases, residual branches of
    block i divided by sqrt(2 i).
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv3d):
            nn.init.trunc_normal_(part.weight, std=INIT_STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    blocks = [part for part in module.modules() if isinstance(part, Block)]
    for number, block in enumerate(blocks, start=1):
        block.attn.proj.weight.div_(math.sqrt(2.0 * number))
        block.mlp.fc2.weight.div_(math.sqrt(2.0 * number))
