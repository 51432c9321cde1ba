"""OpenVLA-OFT: a 7B VLA policy that decodes a chunk of actions in one pass.

Paper: https://arxiv.org/abs/2502.19645. Its actions are tokens, or numbers of a regression head;
here these numbers have a learnt deviation.

Input of the language model: <s>, image patches, proprioception, the question, one empty embedding
for each token of the chunk, </s>. Attention is not causal. A token's hidden state is at the
position before it (github.com/moojink/openvla-oft, prismatic/extern/hf/modeling_prismatic.py and
prismatic/models/action_heads.py, MIT, and its fork of transformers). Left out: the diffusion head,
and FiLM.
"""

# N observation, V token of vision (and proprioception), L token of the question, T = K*A token of a
# chunk (K actions of A numbers), S = V+L+T+1 token, D feature

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from envs.libero.openvla_conventions import CHUNK_LENGTH, Quantiles
from siirl.algos.distributions import Categorical, Gaussian
from siirl.models.flops import linear_flops
from siirl.models.openvla_policy import (
    OpenVLANumbers,
    OpenVLAPolicy,
    OpenVLATokenizer,
    Parts,
    bin_flops,
)

STOP = 2  # Llama's </s>
HEAD_BLOCKS = 2  # as in `L1RegressionActionHead`
DEVIATION = "log_std"
"""Name of the learnt deviation, which the published layout lacks."""
BIDIRECTIONAL = "siirl_bidirectional"
"""Name of `attend_bidirectionally` among the attention functions of transformers."""


def attend_bidirectionally(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of every token to every other, or to the tokens of a mask; never causal.

    The signature is that of transformers. Without a mask transformers' own function is causal.
    """
    named["is_causal"] = False
    return sdpa_attention_forward(module, query, key, value, attention_mask, **named)


AttentionInterface.register(BIDIRECTIONAL, attend_bidirectionally)


class ParallelPolicy(OpenVLAPolicy):
    """Common base of both heads: computes the hidden state of each token of a chunk.

    Args:
        parts: Parts of the checkpoint.
        proprioception: Quantiles of proprioception, for a checkpoint that reads it.
        images: Number of the environment's images that are read, from the first on.
    """

    chunk_length = CHUNK_LENGTH

    def __init__(self, parts: Parts, *, proprioception: Quantiles | None, images: int) -> None:
        super().__init__(
            parts, attention=BIDIRECTIONAL, proprioception=proprioception, images=images
        )

    @property
    def places_beside(self) -> int:
        """The tokens of a chunk, and </s>."""
        return self.tokens_per_chunk + 1

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The last hidden state before the chunk's first token, [N, D]; see `Policy.features`."""
        return self.hidden(pixel_values, proprioception, instruction_ids)[:, 0]

    def hidden(
        self,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The language model's last hidden states [N, T, D], each one position before its token."""
        assert pixel_values is not None, "checked when the policy was made"
        ids_NL = self.question(instruction_ids)
        words_NLD = self.language_model.get_input_embeddings()(ids_NL)
        seen_NVD = self.seen(pixel_values, proprioception).to(words_NLD.dtype)
        tokens = self.tokens_per_chunk
        empty_NTD = words_NLD.new_zeros(len(ids_NL), tokens, words_NLD.shape[-1])
        stop_N1D = self.language_model.get_input_embeddings()(torch.full_like(ids_NL[:, :1], STOP))
        embeddings_NSD = torch.cat(
            [words_NLD[:, :1], seen_NVD, words_NLD[:, 1:], empty_NTD, stop_N1D], dim=1
        )

        # A short question is padded before the chunk; padding is masked and takes no positions.
        there_NL = ids_NL != self.padding
        before = seen_NVD.shape[1] + 1
        after = tokens + 1
        there_NS = functional.pad(
            functional.pad(there_NL[:, 1:], (before, 0), value=True), (0, after), value=True
        )
        mask_N1SS = there_NS[:, None, None].expand(-1, 1, there_NS.shape[1], -1)
        output = self.language_model.model(
            inputs_embeds=embeddings_NSD,
            # without a mask torch uses its fastest kernel
            attention_mask=None if bool(there_NL.all()) else mask_N1SS,
            position_ids=there_NS.cumsum(1) - 1,
            use_cache=False,
        ).last_hidden_state
        last_word_N = seen_NVD.shape[1] + there_NL.sum(1) - 1
        first_N1D = output[torch.arange(len(output), device=output.device), last_word_N][:, None]
        return torch.cat([first_N1D, output[:, -after:-2]], dim=1)


class OpenVLAOFT(ParallelPolicy):
    """The policy of action tokens; see `Policy` for the contract.

    Args:
        parts: Parts of the checkpoint.
        action_tokenizer: Coding of the actions.
        proprioception: Quantiles of proprioception, for a checkpoint that reads it.
        images: Number of the environment's images that are read, from the first on.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        action_tokenizer: OpenVLATokenizer,
        proprioception: Quantiles | None,
        images: int,
    ) -> None:
        super().__init__(parts, proprioception=proprioception, images=images)
        self.action_tokenizer: OpenVLATokenizer = action_tokenizer

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Categorical:
        """Action tokens of 256 bins [N, T]; see `Policy.forward`."""
        hidden_NTD = self.hidden(pixel_values, proprioception, instruction_ids)
        return Categorical(self.bin_logits(hidden_NTD, self.action_tokenizer))

    def head_flops(self) -> int:
        """See `OpenVLAPolicy.head_flops`."""
        return bin_flops(self)


class OpenVLARegression(ParallelPolicy):
    """The policy of a regression head; see `Policy` for the contract.

    The head gives the mean of a Gaussian; the published policy acts with the mean. The
    log-deviation of each dimension of an action is a separate weight.

    Args:
        parts: Parts of the checkpoint.
        action_tokenizer: Coding of the actions.
        proprioception: Quantiles of proprioception, for a checkpoint that reads it.
        images: Number of the environment's images that are read, from the first on.
        std: Initial deviation, in units of the head's output.
    """

    distribution = Gaussian

    def __init__(
        self,
        parts: Parts,
        *,
        action_tokenizer: OpenVLANumbers,
        proprioception: Quantiles | None,
        images: int,
        std: float,
    ) -> None:
        super().__init__(parts, proprioception=proprioception, images=images)
        self.action_tokenizer: OpenVLANumbers = action_tokenizer
        width, size = self.feature_size, action_tokenizer.dimensions
        assert width is not None
        self.action_head = nn.ModuleDict({"model": ResidualMLP(size * width, width, size)})
        self.log_std = nn.Parameter(torch.full((size,), math.log(std)))
        self.language_model.lm_head.requires_grad_(False)  # no action depends on it

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Gaussian:
        """Normalised numbers [N, T]; see `Policy.forward`."""
        hidden_NTD = self.hidden(pixel_values, proprioception, instruction_ids)
        of_action_NKX = hidden_NTD.unflatten(1, (self.chunk_length, -1)).flatten(2)
        mean_NKA = self.action_head["model"](of_action_NKX)
        return Gaussian(mean_NKA.flatten(1), self.log_std.repeat(self.chunk_length))

    def head_flops(self) -> int:
        """See `OpenVLAPolicy.head_flops`."""
        return self.chunk_length * linear_flops(self.action_head)

    def drop_head(self) -> None:
        """See `Policy.drop_head`."""
        super().drop_head()
        del self.action_head, self.log_std


class ResidualMLP(nn.Module):
    """`MLPResNet` of prismatic/models/action_heads.py, with its names."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, width)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(width) for _ in range(HEAD_BLOCKS))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., outputs]."""
        hidden = functional.relu(self.fc1(self.layer_norm1(values)))
        for block in self.mlp_resnet_blocks:
            hidden = block(hidden)
        output: torch.Tensor = self.fc2(self.layer_norm2(hidden))
        return output


class ResidualBlock(nn.Module):
    """A norm, a linear layer and a ReLU, with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., width] to the same."""
        output: torch.Tensor = self.ffn(values) + values
        return output
