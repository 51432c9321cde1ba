"""Networks of pi0 and pi0.5: an action expert that attends to PaliGemma's keys and values.

Papers: https://arxiv.org/abs/2410.24164 and https://arxiv.org/abs/2504.16054. Names and results are
those of the lerobot package (src/lerobot/policies/pi0/modeling_pi0.py and pi05/modeling_pi05.py,
Apache-2.0), so that its checkpoints fit.

The *prefix* consists of images and instruction, which all attend to each other. The *suffix* has
one token for each action of a chunk; it attends to the prefix and to itself. pi0 has the state in a
token between them that does not attend to actions, so it is computed once. pi0.5 has the state
among the words, and feeds the time to the norms of the expert (adaptive RMSNorm) instead of to the
actions.

Left out: predictions of the language heads, real-time chunking.
"""

# N observation, C camera, L position of the prefix, S step of denoising, K action of the network's
# chunk, Q = S*K position of the suffix, G head of keys and values, D entry of a head, W width

from __future__ import annotations

import abc
import math

import torch
from torch import nn
from torch.nn import functional

from siirl.models.pi_parts import (
    AdaptiveNorm,
    NetworkShape,
    PaliGemmaWithExpert,
    PlainNorm,
    scaled_and_centred,
)
from siirl.models.prefix_layers import (
    Prefix,
    as_pixels,
    embed_time,
    embed_timed_actions,
    rotations,
    through_layers,
)


class PiNetwork(nn.Module, abc.ABC):
    """Common base of both networks: LeRobot's `PaliGemmaWithExpertModel` and projections.

    Args:
        shape: Sizes of its parts.
    """

    expert_norm: type[PlainNorm | AdaptiveNorm]

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.paligemma_with_expert = PaliGemmaWithExpert(shape, norm=self.expert_norm)
        width = shape.expert.width
        self.action_in_proj = nn.Linear(shape.max_action_dim, width)
        self.action_out_proj = nn.Linear(width, shape.max_action_dim)

    @abc.abstractmethod
    def _suffix(
        self, actions_NSKA: torch.Tensor, time_NS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens of noisy actions [N, S, K, W], and the condition [N, S, W] of the norms."""

    @abc.abstractmethod
    def prefix(
        self, images: torch.Tensor, words_NL: torch.Tensor, state_NP: torch.Tensor
    ) -> Prefix:
        """See `siirl.models.flow_vla.PrefixNetwork`."""

    def velocity(
        self,
        context: torch.Tensor,
        valid_NL: torch.Tensor,
        actions_NSKA: torch.Tensor,
        time_NS: torch.Tensor,
    ) -> torch.Tensor:
        """See `siirl.models.flow_vla.PrefixNetwork`."""
        steps, length = actions_NSKA.shape[1:3]
        hidden_NSKW, condition_NSW = self._suffix(actions_NSKA, time_NS)
        # the steps are independent chunks in one sequence, so prefix keys are not repeated
        step_Q = torch.arange(steps, device=context.device).repeat_interleave(length)
        hidden_NSKW, _ = self._expert(
            hidden_NSKW,
            context,
            valid_NL,
            mask_QQ=step_Q[:, None] == step_Q,
            condition_NSW=condition_NSW,
        )
        return self.action_out_proj(hidden_NSKW.to(self.action_out_proj.weight.dtype)).float()

    def _expert(
        self,
        hidden_NSKW: torch.Tensor,
        context: torch.Tensor,
        valid_NL: torch.Tensor,
        *,
        mask_QQ: torch.Tensor,
        condition_NSW: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states after the expert, and its own keys and values [N, layers, 2, G, Q, D]."""
        expert = self.paligemma_with_expert.gemma_expert.model
        steps, length = hidden_NSKW.shape[1:3]
        position_Q = torch.arange(length, device=context.device).repeat(steps)
        behind_NQ = valid_NL.sum(1, keepdim=True) + position_Q
        prefix_NQL = valid_NL[:, None].expand(-1, len(position_Q), -1)
        mask_N1QX = torch.cat([prefix_NQL, mask_QQ.expand(len(valid_NL), -1, -1)], -1)[:, None]
        angles = rotations(behind_NQ, self.shape.expert.head_size)
        pairs = []
        for number, layer in enumerate(expert.layers):
            hidden_NSKW, *pair = layer(
                hidden_NSKW,
                keys_NGLD=context[:, number, 0],
                values_NGLD=context[:, number, 1],
                mask=mask_N1QX,
                angles=angles,
                condition_NSW=condition_NSW,
            )
            pairs.append(torch.stack(pair, dim=1))
        return expert.norm(hidden_NSKW, condition_NSW)[0], torch.stack(pairs, dim=1)

    def _seen_and_read(
        self, images: torch.Tensor, words_NL: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden states [N, L, W], keys and values of images and words, valid positions."""
        paligemma = self.paligemma_with_expert.paligemma
        language = self.shape.language
        seen_NLW = self._images(images)
        words_NLW = functional.embedding(words_NL.clamp(min=0), paligemma.lm_head.weight)
        words_NLW = words_NLW * math.sqrt(language.width)
        tokens_NLW = torch.cat([seen_NLW.to(words_NLW.dtype), words_NLW], dim=1)
        valid_NL = functional.pad(words_NL >= 0, (seen_NLW.shape[1], 0), value=True)
        length = valid_NL.shape[1]
        hidden_NLW, context = through_layers(
            paligemma.model.language_model.layers,
            tokens_NLW,
            mask=valid_NL[:, None, None].expand(-1, 1, length, -1),
            angles=rotations(valid_NL.cumsum(1) - 1, language.head_size),
        )
        return hidden_NLW, context, valid_NL

    def _images(self, images: torch.Tensor) -> torch.Tensor:
        """Features of all cameras, side by side, [N, C * tokens, W]."""
        model = self.paligemma_with_expert.paligemma.model
        encoder = model.vision_tower.vision_model
        pixels = scaled_and_centred(as_pixels(images), self.shape.vision.image_size)
        dtype = encoder.embeddings.patch_embedding.weight.dtype
        patches = encoder(pixel_values=(pixels * 2 - 1).to(dtype)).last_hidden_state
        seen = model.multi_modal_projector.linear(patches)
        return seen.unflatten(0, images.shape[:2]).flatten(1, 2)


class Pi0Network(PiNetwork):
    """LeRobot's `PI0Pytorch`; the features are the expert's hidden state at the state token."""

    expert_norm = PlainNorm

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__(shape)
        width = shape.expert.width
        self.state_proj = nn.Linear(shape.max_state_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def prefix(
        self, images: torch.Tensor, words_NL: torch.Tensor, state_NP: torch.Tensor
    ) -> Prefix:
        """Images and words, followed by the state."""
        _, context, valid_NL = self._seen_and_read(images, words_NL)
        padded_NP = functional.pad(state_NP, (0, self.shape.max_state_dim - state_NP.shape[1]))
        state_NW = self.state_proj(padded_NP.to(self.state_proj.weight.dtype))
        hidden_N11W, of_state = self._expert(
            state_NW[:, None, None].to(context.dtype),
            context,
            valid_NL,
            mask_QQ=torch.ones((1, 1), dtype=torch.bool, device=context.device),
            condition_NSW=None,
        )
        return Prefix(
            torch.cat([context, of_state.to(context.dtype)], dim=-2),
            functional.pad(valid_NL, (0, 1), value=True),
            hidden_N11W[:, 0, 0],
        )

    def _suffix(
        self, actions_NSKA: torch.Tensor, time_NS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return embed_timed_actions(self, actions_NSKA, time_NS, periods=self.shape.periods), None


class Pi05Network(PiNetwork):
    """LeRobot's `PI05Pytorch`; the features are the language model's hidden state at the last word.

    The words contain the state.
    """

    expert_norm = AdaptiveNorm

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__(shape)
        width = shape.expert.width
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def prefix(
        self, images: torch.Tensor, words_NL: torch.Tensor, state_NP: torch.Tensor
    ) -> Prefix:
        """Images and words."""
        hidden_NLW, context, valid_NL = self._seen_and_read(images, words_NL)
        last_N = valid_NL.cumsum(1).argmax(1)  # of the valid positions
        rows = torch.arange(len(last_N), device=last_N.device)
        norm = self.paligemma_with_expert.paligemma.model.language_model.norm
        return Prefix(context, valid_NL, norm(hidden_NLW[rows, last_N]))

    def _suffix(
        self, actions_NSKA: torch.Tensor, time_NS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        dtype = self.action_in_proj.weight.dtype
        time_NSW = embed_time(time_NS, self.shape.expert.width, periods=self.shape.periods)
        mixed_NSW = functional.silu(self.time_mlp_in(time_NSW.to(dtype)))
        condition_NSW = functional.silu(self.time_mlp_out(mixed_NSW))
        return self.action_in_proj(actions_NSKA.to(dtype)), condition_NSW


def freeze(network: PiNetwork, *, expert_only: bool, vision: bool) -> None:
    """Freeze the weights that LeRobot freezes, and those that no action depends on.

    Args:
        network: Changed in place.
        expert_only: `train_expert_only` of config.json.
        vision: `freeze_vision_encoder`.
    """
    paligemma = network.paligemma_with_expert.paligemma
    if expert_only:
        paligemma.requires_grad_(False)
    if vision:
        paligemma.model.vision_tower.requires_grad_(False)
    # the expert sees only the last layer's keys and values
    language = paligemma.model.language_model
    last = language.layers[-1]
    unread = (last.self_attn.q_proj, last.self_attn.o_proj, last.mlp, last.post_attention_layernorm)
    for part in (network.paligemma_with_expert.gemma_expert.lm_head, language.norm, *unread):
        part.requires_grad_(False)
