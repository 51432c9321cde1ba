"""SmolVLA's network: a vision-language model whose keys and values an action expert attends to.

Paper: https://arxiv.org/abs/2506.01844. The parts are transformers' own (SmolVLM, and the layers of
Llama); names and numbers are those of the lerobot package (src/lerobot/policies/smolvla/
modeling_smolvla.py and smolvlm_with_expert.py, Apache-2.0), so that its checkpoints fit.

The *prefix* is images, instruction and state. Its keys and values do not depend on the actions, and
are computed once for all steps of the flow. The *suffix* is one place for each action of a chunk,
which moves from noise to actions: even layers of the expert attend to the prefix's keys and to the
suffix up to their own place, odd ones only to projections of the prefix's keys.

Left out: training of the language head, camera markers (`add_image_special_tokens`), experts with
fewer layers than the language model (LeRobot's own code fails on them at its default
`self_attn_every_n_layers`), real-time chunking.
"""

# N observation, C camera, L place of the prefix, S step of denoising, K action of the network's
# chunk, Q = S*K place of the suffix, H head, G head of keys and values, D entry of a head, W width

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
)

ROPE_BASE = 10_000.0
"""LeRobot's, whatever the vision-language model was trained with (`apply_rope`)."""
MLP_MULTIPLE = 256  # LeRobot's `get_intermediate_size`


@dataclass(frozen=True)
class NetworkShape:
    """The network's shape in LeRobot's config.json."""

    vlm_layers: int
    """Layers of the language model that are kept; 0 or less: all."""
    attention_mode: str
    self_attn_every_n_layers: int
    expert_width_multiplier: float
    max_state_dim: int
    max_action_dim: int
    min_period: float
    max_period: float
    image_size: tuple[int, int] | None
    """Width and height that images are scaled and padded to; None: as they come."""

    def attends_to_suffix(self, layer: int) -> bool:
        """Whether a layer of the expert attends to the suffix beside the prefix."""
        every = self.self_attn_every_n_layers
        return "cross" not in self.attention_mode or (every > 0 and layer % every == 0)


class SmolVLANetwork(nn.Module):
    """The modules of LeRobot's `VLAFlowMatching`, with its names.

    Args:
        vlm: Configuration of the vision-language model.
        shape: Of the rest.
    """

    def __init__(self, vlm: SmolVLMConfig, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.vlm_with_expert = VLMWithExpert(vlm, shape)
        text: Any = vlm.text_config
        width = text.hidden_size
        expert = self.vlm_with_expert.lm_expert.width
        self.state_proj = nn.Linear(shape.max_state_dim, width)
        self.action_in_proj = nn.Linear(shape.max_action_dim, expert)
        self.action_out_proj = nn.Linear(expert, shape.max_action_dim)
        self.action_time_mlp_in = nn.Linear(2 * expert, expert)
        self.action_time_mlp_out = nn.Linear(expert, expert)

    def prefix(
        self, images: torch.Tensor, words_NL: torch.Tensor, state_NP: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The prefix through the language model.

        Args:
            images: uint8 [N, C, height, width, 3].
            words_NL: Token ids; negative ones are padding.
            state_NP: Normalised, of at most `max_state_dim` numbers.

        Returns:
            Keys and values [N, layers, 2, G, L, D], and the last hidden state at the state's place,
                which sees the whole prefix, [N, W].
        """
        vlm = self.vlm_with_expert.vlm.model
        width = vlm.text_model.config.hidden_size
        padded_NP = functional.pad(state_NP, (0, self.shape.max_state_dim - state_NP.shape[1]))
        state_NW = self.state_proj(padded_NP.to(self.state_proj.weight.dtype))
        seen_NLW = self._images(images)
        words_NLW = vlm.text_model.embed_tokens(words_NL.clamp(min=0)) * math.sqrt(width)
        places_NLW = torch.cat(
            [seen_NLW.to(words_NLW.dtype), words_NLW, state_NW[:, None].to(words_NLW.dtype)], dim=1
        )
        valid_NL = self.valid(words_NL, images=images.shape[1])

        # images and words attend to each other, and only the state attends to the state
        places = valid_NL.shape[1]
        is_state_L = torch.arange(places, device=valid_NL.device) == places - 1
        allowed_LL = ~is_state_L | is_state_L[:, None]
        mask_N1LL = valid_NL[:, None, None] & allowed_LL
        angles = rotations(valid_NL.cumsum(1) - 1, self.vlm_with_expert.head_size)
        pairs = []
        hidden_NLW = places_NLW
        for layer in vlm.text_model.layers:
            rotated = tuple(part.to(hidden_NLW.dtype) for part in angles)
            hidden_NLW, *pair = layer(hidden_NLW, mask=mask_N1LL, angles=rotated)
            pairs.append(torch.stack(pair, dim=1))
        return torch.stack(pairs, dim=1), vlm.text_model.norm(hidden_NLW[:, -1])

    def valid(self, words_NL: torch.Tensor, *, images: int) -> torch.Tensor:
        """Places of the prefix that are not padding, [N, L]."""
        size = images * self.vlm_with_expert.places_per_image
        return functional.pad(
            functional.pad(words_NL >= 0, (size, 0), value=True), (0, 1), value=True
        )

    def velocity(
        self,
        context: torch.Tensor,
        valid_NL: torch.Tensor,
        actions_NSKA: torch.Tensor,
        time_NS: torch.Tensor,
    ) -> torch.Tensor:
        """LeRobot's velocity (from actions to noise) float32 [N, S, K, A] at S places of the flow.

        Args:
            context: Of `prefix`.
            valid_NL: Of `valid`.
            actions_NSKA: Noisy actions, of `max_action_dim` numbers.
            time_NS: LeRobot's time: 1 for noise, 0 for actions.
        """
        steps, length = actions_NSKA.shape[1:3]
        dtype = self.action_in_proj.weight.dtype
        expert = self.vlm_with_expert.lm_expert
        actions_NSKW = self.action_in_proj(actions_NSKA.to(dtype))
        time_NSW = embed_time(
            time_NS, expert.width, periods=(self.shape.min_period, self.shape.max_period)
        )
        time_NSKW = time_NSW.to(actions_NSKW.dtype)[:, :, None].expand_as(actions_NSKW)
        mixed = self.action_time_mlp_in(torch.cat([actions_NSKW, time_NSKW], dim=-1))
        hidden_NQW = self.action_time_mlp_out(functional.silu(mixed)).flatten(1, 2)

        # the steps are independent chunks, side by side in one sequence: prefix keys stay single
        place_Q = torch.arange(length, device=context.device).repeat(steps)
        step_Q = torch.arange(steps, device=context.device).repeat_interleave(length)
        suffix_QQ = (step_Q[:, None] == step_Q) & (place_Q[:, None] >= place_Q)
        prefix_NQL = valid_NL[:, None].expand(-1, len(place_Q), -1)
        whole_N1QX = torch.cat([prefix_NQL, suffix_QQ.expand(len(valid_NL), -1, -1)], -1)[:, None]
        behind_NQ = valid_NL.sum(1, keepdim=True) + place_Q
        behind = rotations(behind_NQ, self.vlm_with_expert.head_size)
        from_0 = rotations(place_Q.expand_as(behind_NQ), self.vlm_with_expert.head_size)
        for number, layer in enumerate(expert.layers):
            joint = self.shape.attends_to_suffix(number)
            hidden_NQW = layer(
                hidden_NQW,
                keys_NGLD=context[:, number, 0],
                values_NGLD=context[:, number, 1],
                mask=whole_N1QX if joint else prefix_NQL[:, None],
                angles=behind if joint else from_0,
            )
        hidden_NSKW = expert.norm(hidden_NQW).unflatten(1, (steps, length))
        return self.action_out_proj(hidden_NSKW.to(self.action_out_proj.weight.dtype)).float()

    def _images(self, images: torch.Tensor) -> torch.Tensor:
        """Features of all cameras, side by side, [N, C * places, W]."""
        vlm = self.vlm_with_expert.vlm.model
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
        if self.shape.image_size is not None:
            pixels = scaled_and_padded(pixels, *self.shape.image_size)
        dtype = vlm.vision_model.embeddings.patch_embedding.weight.dtype
        patches = vlm.vision_model(pixel_values=(pixels * 2 - 1).to(dtype)).last_hidden_state
        seen = vlm.connector(patches)
        seen_NLW = seen.unflatten(0, images.shape[:2]).flatten(1, 2)
        return seen_NLW * math.sqrt(seen_NLW.shape[-1])


class VLMWithExpert(nn.Module):
    """The two transformers, with LeRobot's names."""

    def __init__(self, config: SmolVLMConfig, shape: NetworkShape) -> None:
        super().__init__()
        text: Any = config.text_config
        vision: Any = config.vision_config
        self.vlm: Any = SmolVLMForConditionalGeneration._from_config(
            config, attn_implementation="sdpa", dtype=torch.float32
        )
        language: Any = self.vlm.model.text_model
        layers = list(language.layers)[: shape.vlm_layers if shape.vlm_layers > 0 else None]
        language.layers = nn.ModuleList(
            PrefixLayer(language.config, number) for number in range(len(layers))
        )
        self.lm_expert = ActionExpert(text, shape, layers=len(self.vlm.model.text_model.layers))
        self.head_size = int(text.head_dim)
        patches = (vision.image_size // vision.patch_size) ** 2
        self.places_per_image = patches // config.scale_factor**2


class PrefixLayer(LlamaDecoderLayer):
    """A layer of the language model that returns its keys and values too.

    FSDP2 gathers a block's weights for the backward pass when the gradient of one of its outputs is
    known; keys that left through a cache would find them freed.
    """

    def forward(  # type: ignore[override]
        self,
        hidden_NLW: torch.Tensor,
        *,
        mask: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden states [N, L, W], keys and values [N, G, L, D]."""
        kept = KeptKeys()
        named: Any = {"past_key_values": kept}
        output = super().forward(
            hidden_NLW, attention_mask=mask, position_embeddings=angles, **named
        )
        return output, kept.keys, kept.values


class KeptKeys:
    """Replaces transformers' cache: stores a layer's keys and values, and adds none."""

    keys: torch.Tensor
    values: torch.Tensor

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as they came."""
        self.keys, self.values = keys, values
        return keys, values


class ActionExpert(nn.Module):
    """The transformer of the suffix: as deep as the language model, and narrower."""

    def __init__(self, text: Any, shape: NetworkShape, *, layers: int) -> None:
        super().__init__()
        config = copy.deepcopy(text)
        config.hidden_size = self.width = int(text.hidden_size * shape.expert_width_multiplier)
        hidden = 4 * int(2 * config.hidden_size / 3)
        config.intermediate_size = MLP_MULTIPLE * -(-hidden // MLP_MULTIPLE)
        self.layers = nn.ModuleList(
            ExpertLayer(config, joint=shape.attends_to_suffix(layer)) for layer in range(layers)
        )
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class ExpertLayer(nn.Module):
    """A layer of Llama whose keys and values come from the prefix.

    Args:
        config: Of the expert.
        joint: It has keys and values of the suffix too; else it projects those of the prefix.
    """

    def __init__(self, config: Any, *, joint: bool) -> None:
        super().__init__()
        self.joint = joint
        self.self_attn = LlamaAttention(config, layer_idx=0)
        if not joint:
            size = config.num_key_value_heads * config.head_dim
            bias = config.attention_bias
            self.self_attn.k_proj = nn.Linear(size, size, bias=bias)
            self.self_attn.v_proj = nn.Linear(size, size, bias=bias)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_NQW: torch.Tensor,
        *,
        keys_NGLD: torch.Tensor,
        values_NGLD: torch.Tensor,
        mask: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """The layer's output [N, Q, W]; `mask` is True where a place attends to a key."""
        attention = self.self_attn
        inputs = self.input_layernorm(hidden_NQW)
        query = self._heads(attention.q_proj(inputs))
        cosines, sines = (part.to(query.dtype) for part in angles)
        keys, values = keys_NGLD.to(query.dtype), values_NGLD.to(query.dtype)
        if self.joint:
            own = self._heads(attention.k_proj(inputs))
            query, own = apply_rotary_pos_emb(query, own, cosines, sines)
            keys = torch.cat([keys, own], dim=2)
            values = torch.cat([values, self._heads(attention.v_proj(inputs))], dim=2)
        else:
            query, _ = apply_rotary_pos_emb(query, query, cosines, sines)
            keys = self._heads(attention.k_proj(keys.transpose(1, 2).flatten(2)))
            values = self._heads(attention.v_proj(values.transpose(1, 2).flatten(2)))
        groups = attention.num_key_value_groups
        mixed = functional.scaled_dot_product_attention(
            query,
            keys.repeat_interleave(groups, dim=1),
            values.repeat_interleave(groups, dim=1),
            attn_mask=mask,
        )
        hidden_NQW = hidden_NQW + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return hidden_NQW + self.mlp(self.post_attention_layernorm(hidden_NQW))

    def _heads(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.unflatten(-1, (-1, self.self_attn.head_dim)).transpose(1, 2)


def rotations(position_NL: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [N, L, D] of rotary positions, as transformers' Llama takes them."""
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


def scaled_and_padded(pixels: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Images [N, 3, ., .] in [0, 1] scaled to fit, with black at the left and the top."""
    ratio = max(pixels.shape[3] / width, pixels.shape[2] / height)
    size = (int(pixels.shape[2] / ratio), int(pixels.shape[3] / ratio))
    scaled = functional.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
    return functional.pad(scaled, (width - size[1], 0, height - size[0], 0))


def freeze(network: SmolVLANetwork, trained: Mapping[str, bool]) -> None:
    """Freeze what LeRobot freezes.

    Args:
        network: Changed in place.
        trained: `train_expert_only`, `freeze_vision_encoder` and `train_state_proj` of config.json.
    """
    vlm = network.vlm_with_expert.vlm
    text = vlm.model.text_model
    if trained["train_expert_only"]:
        vlm.requires_grad_(False)
    if trained["freeze_vision_encoder"]:
        vlm.model.vision_model.requires_grad_(False)
    network.state_proj.requires_grad_(trained["train_state_proj"])
    # no action depends on these: the expert sees only the last layer's keys and values
    last = text.layers[-1]
    unread = (last.self_attn.q_proj, last.self_attn.o_proj, last.mlp, last.post_attention_layernorm)
    for part in (vlm.lm_head, text.norm, *unread):
        part.requires_grad_(False)
