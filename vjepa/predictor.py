"""The narrow transformer that predicts hidden tokens' latents from visible ones, only for training.

As in V-JEPA 2, context latents are projected to the predictor's width, each hidden position gets a
learnt mask token, and the predictions are projected back. Left out: several mask tokens, action
conditioning.
"""

# Axes: B clip, C context token, M target token, D encoder channel.

import torch
from torch import Tensor, nn

from vjepa.vision_transformer import LAYER_NORM_EPS, Block, initialise, rotary_table


class Predictor(nn.Module):
    """Latents [B, M, D] at the target positions, from context latents [B, C, D]."""

    cosine: Tensor
    sine: Tensor

    def __init__(
        self,
        *,
        encoder_width: int,
        width: int,
        depth: int,
        num_heads: int,
        grid: tuple[int, int, int],
    ) -> None:
        super().__init__()
        self.predictor_embed = nn.Linear(encoder_width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(
            Block(width=width, num_heads=num_heads, mlp_ratio=4.0) for _ in range(depth)
        )
        self.predictor_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.predictor_proj = nn.Linear(width, encoder_width)
        cosine, sine = rotary_table(grid=grid, head_width=width // num_heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        initialise(self)

    def forward(self, context_BCD: Tensor, *, context_BC: Tensor, target_BM: Tensor) -> Tensor:
        hidden = self.mask_token.expand(*target_BM.shape, -1)
        x = torch.cat((self.predictor_embed(context_BCD), hidden), dim=1)
        positions = torch.cat((context_BC, target_BM), dim=1)
        cosine = self.cosine[positions].unsqueeze(1)
        sine = self.sine[positions].unsqueeze(1)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.predictor_proj(self.predictor_norm(x[:, context_BC.shape[1] :]))
