"""Parts of networks in which an action expert attends to keys and values of a vision-language
model.

`siirl.models.smolvla_network` and `siirl.models.pi_network` are built of them.
"""

# N observation, L position of the prefix, S step, K action of a chunk, Q position of the suffix,
# H head, G head of keys and values, D entry of a head, W width

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

ROPE_BASE = 10_000.0
"""LeRobot's value, whatever the vision-language model was trained with."""
Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [N, L, D] of rotary positions."""


@dataclass(frozen=True)
class Prefix:
    """What a network computes once for all steps of a flow."""

    context: torch.Tensor
    """Keys and values [N, layers, 2, G, L, D]."""
    valid_NL: torch.Tensor
    """Positions that are not padding."""
    features_NW: torch.Tensor
    """A hidden state that sees the whole prefix."""


class KeptKeys:
    """Replaces transformers' cache: stores a layer's keys and values, and adds none."""

    keys: torch.Tensor
    values: torch.Tensor

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values unchanged."""
        self.keys, self.values = keys, values
        return keys, values


class ReturnsKeys:
    """Mixed in before a layer of transformers: makes the layer also return its keys and values.

    FSDP2 gathers a block's weights for the backward pass when the gradient of one of its outputs is
    known; keys that left through a cache would find them freed.
    """

    def forward(
        self, hidden_NLW: torch.Tensor, *, mask: torch.Tensor, angles: Angles
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden states [N, L, W], keys and values [N, G, L, D]."""
        kept = KeptKeys()
        layer: Any = super()
        output = layer.forward(
            hidden_NLW, attention_mask=mask, position_embeddings=angles, past_key_values=kept
        )
        return output, kept.keys, kept.values


def through_layers(
    layers: Any, hidden_NLW: torch.Tensor, *, mask: torch.Tensor, angles: Angles
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states after `ReturnsKeys` layers, and all keys and values [N, layers, 2, G, L, D]."""
    pairs = []
    for layer in layers:
        rotated = tuple(part.to(hidden_NLW.dtype) for part in angles)
        hidden_NLW, *pair = layer(hidden_NLW, mask=mask, angles=rotated)
        pairs.append(torch.stack(pair, dim=1))
    return hidden_NLW, torch.stack(pairs, dim=1)


def attend_behind(
    attention: Any,
    inputs_NQW: torch.Tensor,
    *,
    keys_NGLD: torch.Tensor,
    values_NGLD: torch.Tensor,
    mask: torch.Tensor,
    angles: Angles,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of the positions after a prefix to its keys and to their own.

    Args:
        attention: Attention module of Llama or Gemma.
        inputs_NQW: Hidden states after the layer's norm.
        keys_NGLD: Keys of the prefix.
        values_NGLD: Values of the prefix.
        mask: bool [N, 1, Q, L + Q], True where a position attends to a key.
        angles: Rotary angles of the Q positions.

    Returns:
        The output [N, Q, W], and the positions' own keys and values [N, G, Q, D].
    """
    query, key, value = (
        in_heads(project(inputs_NQW), attention.head_dim)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    cosines, sines = (part.to(query.dtype) for part in angles)
    query, key = apply_rotary_pos_emb(query, key, cosines, sines)
    keys = torch.cat([keys_NGLD.to(query.dtype), key], dim=2)
    values = torch.cat([values_NGLD.to(query.dtype), value], dim=2)
    return attend(attention, query, keys, values, mask), key, value


def attend(
    attention: Any,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The output [N, Q, W] of queries [N, H, Q, D] for keys and values of fewer heads."""
    groups = attention.num_key_value_groups
    mixed = functional.scaled_dot_product_attention(
        query,
        keys.repeat_interleave(groups, dim=1),
        values.repeat_interleave(groups, dim=1),
        attn_mask=mask,
    )
    return attention.o_proj(mixed.transpose(1, 2).flatten(2))


def in_heads(numbers: torch.Tensor, size: int) -> torch.Tensor:
    """[N, Q, heads * D] as [N, heads, Q, D]."""
    return numbers.unflatten(-1, (-1, size)).transpose(1, 2)


def embed_timed_actions(
    network: Any,
    actions_NSKA: torch.Tensor,
    time_NS: torch.Tensor,
    *,
    periods: tuple[float, float],
) -> torch.Tensor:
    """Noisy actions and their time, mixed by the MLP of SmolVLA and pi0: [N, S, K, W]."""
    actions_NSKW = network.action_in_proj(actions_NSKA.to(network.action_in_proj.weight.dtype))
    time_NSW = embed_time(time_NS, actions_NSKW.shape[-1], periods=periods)
    time_NSKW = time_NSW.to(actions_NSKW.dtype)[:, :, None].expand_as(actions_NSKW)
    mixed = network.action_time_mlp_in(torch.cat([actions_NSKW, time_NSKW], dim=-1))
    return network.action_time_mlp_out(functional.silu(mixed))


def rotations(position_NL: torch.Tensor, size: int) -> Angles:
    """Cosines and sines [N, L, D] of rotary positions, in the form of transformers' layers."""
    powers = torch.arange(0, size, 2, device=position_NL.device).float() / size
    angles = position_NL[..., None].float() / ROPE_BASE**powers
    twice = torch.cat([angles, angles], dim=-1)
    return twice.cos(), twice.sin()


def embed_time(time: torch.Tensor, size: int, *, periods: tuple[float, float]) -> torch.Tensor:
    """Sines and cosines float64 [..., size] of periods spread evenly in logarithm."""
    least, most = periods
    share = torch.linspace(0.0, 1.0, size // 2, dtype=torch.float64, device=time.device)
    angles = time.double()[..., None] * (2 * math.pi / (least * (most / least) ** share))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def as_pixels(images: torch.Tensor) -> torch.Tensor:
    """All cameras' images [N, C, height, width, 3] as float [N * C, 3, height, width] in [0, 1]."""
    return images.flatten(0, 1).permute(0, 3, 1, 2).float() / 255


def scaled_to_fit(pixels: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Images [N, 3, ., .] at the largest size that fits, with their aspect ratio."""
    ratio = max(pixels.shape[3] / width, pixels.shape[2] / height)
    size = (int(pixels.shape[2] / ratio), int(pixels.shape[3] / ratio))
    return functional.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
