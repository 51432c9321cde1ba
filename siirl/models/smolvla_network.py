"""SmolVLA's network: an action expert that attends to a vision-language model's keys and values.

Paper: https://arxiv.org/abs/2506.01844. The parts are transformers' own (SmolVLM, and the layers of
Llama); names and results are those of the lerobot package (src/lerobot/policies/smolvla/
modeling_smolvla.py and smolvlm_with_expert.py, Apache-2.0), so that its checkpoints fit.

The *prefix* consists of images, instruction and state. Its keys and values do not depend on the
actions, and are computed once for all steps of the flow. The *suffix* has one token for each action
of a chunk and moves from noise to actions. Even layers of the expert attend to the prefix's keys
and to the suffix up to their own position; odd layers attend only to projections of the prefix's
keys.

Left out: training of the language head, camera markers (`add_image_special_tokens`), experts with
fewer layers than the language model (LeRobot's own code fails on them at its default
`self_attn_every_n_layers`), real-time chunking.
"""

# N observation, C camera, L position of the prefix, S step of denoising, K action of the network's
# chunk, Q = S*K position of the suffix, H head, G head of keys and values, D entry of a head, W
# width

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

from siirl.models.prefix_layers import (
    Angles,
    Prefix,
    ReturnsKeys,
    as_pixels,
    attend,
    attend_behind,
    embed_timed_actions,
    in_heads,
    rotations,
    scaled_to_fit,
    through_layers,
)

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
    """Width and height that images are scaled and padded to; None: unscaled."""

    def attends_to_suffix(self, layer: int) -> bool:
        """Whether a layer of the expert attends to the suffix as well as to the prefix."""
        every = self.self_attn_every_n_layers
        return "cross" not in self.attention_mode or (every > 0 and layer % every == 0)


class SmolVLANetwork(nn.Module):
    """The modules of LeRobot's `VLAFlowMatching`, with its names.

    Args:
        vlm: Configuration of the vision-language model.
        shape: Shape of the rest of the network.
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
    ) -> Prefix:
        """The prefix through the language model; its features are the hidden state at the state
        token.
        """
        vlm = self.vlm_with_expert.vlm.model
        width = vlm.text_model.config.hidden_size
        padded_NP = functional.pad(state_NP, (0, self.shape.max_state_dim - state_NP.shape[1]))
        state_NW = self.state_proj(padded_NP.to(self.state_proj.weight.dtype))
        seen_NLW = self._images(images)
        words_NLW = vlm.text_model.embed_tokens(words_NL.clamp(min=0)) * math.sqrt(width)
        tokens_NLW = torch.cat(
            [seen_NLW.to(words_NLW.dtype), words_NLW, state_NW[:, None].to(words_NLW.dtype)], dim=1
        )
        valid_NL = self._valid(words_NL, images=images.shape[1])

        # images and words attend to each other, and only the state attends to the state
        length = valid_NL.shape[1]
        is_state_L = torch.arange(length, device=valid_NL.device) == length - 1
        allowed_LL = ~is_state_L | is_state_L[:, None]
        mask_N1LL = valid_NL[:, None, None] & allowed_LL
        angles = rotations(valid_NL.cumsum(1) - 1, self.vlm_with_expert.head_size)
        hidden_NLW, context = through_layers(
            vlm.text_model.layers, tokens_NLW, mask=mask_N1LL, angles=angles
        )
        return Prefix(context, valid_NL, vlm.text_model.norm(hidden_NLW[:, -1]))

    def velocity(
        self,
        context: torch.Tensor,
        valid_NL: torch.Tensor,
        actions_NSKA: torch.Tensor,
        time_NS: torch.Tensor,
    ) -> torch.Tensor:
        """See `siirl.models.flow_vla.PrefixNetwork`."""
        steps, length = actions_NSKA.shape[1:3]
        expert = self.vlm_with_expert.lm_expert
        periods = (self.shape.min_period, self.shape.max_period)
        hidden_NSKW = embed_timed_actions(self, actions_NSKA, time_NS, periods=periods)
        hidden_NQW = hidden_NSKW.flatten(1, 2)

        # the steps are independent chunks in one sequence, so prefix keys are not repeated
        position_Q = torch.arange(length, device=context.device).repeat(steps)
        step_Q = torch.arange(steps, device=context.device).repeat_interleave(length)
        suffix_QQ = (step_Q[:, None] == step_Q) & (position_Q[:, None] >= position_Q)
        prefix_NQL = valid_NL[:, None].expand(-1, len(position_Q), -1)
        whole_N1QX = torch.cat([prefix_NQL, suffix_QQ.expand(len(valid_NL), -1, -1)], -1)[:, None]
        behind_NQ = valid_NL.sum(1, keepdim=True) + position_Q
        behind = rotations(behind_NQ, self.vlm_with_expert.head_size)
        from_0 = rotations(position_Q.expand_as(behind_NQ), self.vlm_with_expert.head_size)
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

    def _valid(self, words_NL: torch.Tensor, *, images: int) -> torch.Tensor:
        """Positions of the prefix that are not padding, [N, L]."""
        size = images * self.vlm_with_expert.tokens_per_image
        return functional.pad(
            functional.pad(words_NL >= 0, (size, 0), value=True), (0, 1), value=True
        )

    def _images(self, images: torch.Tensor) -> torch.Tensor:
        """Features of all cameras, side by side, [N, C * tokens, W]."""
        vlm = self.vlm_with_expert.vlm.model
        pixels = as_pixels(images)
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
        self.tokens_per_image = patches // config.scale_factor**2


class PrefixLayer(ReturnsKeys, LlamaDecoderLayer):  # type: ignore[misc]
    """A layer of the language model that also returns its keys and values."""


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
        config: Configuration of the expert.
        joint: The layer also has keys and values of the suffix; otherwise it projects those of the
            prefix.
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
        angles: Angles,
    ) -> torch.Tensor:
        """The layer's output [N, Q, W]; `mask` is True where a position attends to a key."""
        attention = self.self_attn
        inputs = self.input_layernorm(hidden_NQW)
        if self.joint:
            mixed, _, _ = attend_behind(
                attention,
                inputs,
                keys_NGLD=keys_NGLD,
                values_NGLD=values_NGLD,
                mask=mask,
                angles=angles,
            )
        else:
            mixed = self._cross(inputs, keys_NGLD, values_NGLD, mask=mask, angles=angles)
        hidden_NQW = hidden_NQW + mixed
        return hidden_NQW + self.mlp(self.post_attention_layernorm(hidden_NQW))

    def _cross(
        self,
        inputs_NQW: torch.Tensor,
        keys_NGLD: torch.Tensor,
        values_NGLD: torch.Tensor,
        *,
        mask: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """Attention to projections of the prefix's keys and values."""
        attention = self.self_attn
        query = in_heads(attention.q_proj(inputs_NQW), attention.head_dim)
        cosines, sines = (part.to(query.dtype) for part in angles)
        query, _ = apply_rotary_pos_emb(query, query, cosines, sines)
        keys, values = (
            in_heads(
                project(numbers.to(query.dtype).transpose(1, 2).flatten(2)), attention.head_dim
            )
            for project, numbers in ((attention.k_proj, keys_NGLD), (attention.v_proj, values_NGLD))
        )
        return attend(attention, query, keys, values, mask)


def scaled_and_padded(pixels: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Images [N, 3, ., .] in [0, 1] scaled to fit, with black at the left and the top."""
    scaled = scaled_to_fit(pixels, width, height)
    return functional.pad(scaled, (width - scaled.shape[3], 0, height - scaled.shape[2], 0))


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
