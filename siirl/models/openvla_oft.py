"""OpenVLA-OFT: a 7B VLA policy that decodes a chunk of action tokens in one pass.

Paper: https://arxiv.org/abs/2502.19645. `siirl.models.openvla_checkpoint` reads checkpoints.

Input of the language model: <s>, image patches, proprioception, the question, one empty embedding
for each token of the chunk, </s>. Attention is not causal. The logits of a token are at the place
before it (github.com/moojink/openvla-oft, prismatic/extern/hf/modeling_prismatic.py, MIT, and its
fork of transformers). `envs.libero.openvla` defines the meaning of images, numbers and tokens.
"""

# N observation, I image, V place of vision (and proprioception), L place of the question, T token
# of a chunk, S = V+L+T+1 place, D feature

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from envs.libero.openvla import (
    CHUNK_LENGTH,
    IMAGE_SIZE,
    STATISTICS_FILE,
    Quantiles,
    action_tokens,
    action_values,
    environment_actions,
    normalised_actions,
    policy_image,
    prompt,
)
from siirl.algos.distributions import Categorical
from siirl.errors import ConfigError
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.flops import decoder_flops, image_flops, linear_flops
from siirl.models.language_model import recompute_activations
from siirl.models.openvla_vision import MLP, VisionBackbone, VisionEncoder, encoder_shape
from siirl.models.policy import Policy
from siirl.models.weights import CONFIG_FILE

TOKENIZER_FILE = "tokenizer.json"
PREPROCESSOR_FILE = "preprocessor_config.json"
COPIED_FILES = (
    CONFIG_FILE,
    TOKENIZER_FILE,
    PREPROCESSOR_FILE,
    STATISTICS_FILE,
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
)
"""Files of a checkpoint that are copied next to the trained weights."""
START = 1  # Llama's <s>
STOP = 2  # Llama's </s>
BLANK = 29_871  # the blank after "Out:", as in training
EVERYBODY = "siirl_everybody"
"""Name of `attend_to_everybody` among the attention functions of transformers."""


def attend_to_everybody(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of every place to every other one, or to those of a mask; never causal.

    The signature is that of transformers. Without a mask transformers' own function is causal.
    """
    named["is_causal"] = False
    return sdpa_attention_forward(module, query, key, value, attention_mask, **named)


AttentionInterface.register(EVERYBODY, attend_to_everybody)


@dataclass(frozen=True)
class OpenVLATokenizer(ActionTokenizer):
    """Actions of `env=libero` as the checkpoint's tokens, counted from the first of its 256."""

    quantiles: Quantiles
    vocabulary: int
    """Size of the tokenizer, whose last tokens are the action tokens."""

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[Any]:
        """Tokens [K*A] to actions, float32 [K, A]."""
        values = action_values(tokens + (self.vocabulary - self.bins), vocabulary=self.vocabulary)
        return environment_actions(values.reshape(-1, self.dimensions), quantiles=self.quantiles)

    def encode(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Actions [K, A] to tokens, int64 [K*A]."""
        values = normalised_actions(actions, quantiles=self.quantiles)
        tokens = action_tokens(values, vocabulary=self.vocabulary)
        return (tokens - (self.vocabulary - self.bins)).reshape(-1)


class OpenVLAOFT(Policy):
    """The policy; see `Policy` for the contract.

    `siirl.models.openvla_checkpoint` builds one.

    Args:
        config: The checkpoint's config.json.
        preprocessor: Its preprocessor_config.json.
        tokenizer: Of the question.
        action_tokenizer: Of the actions.
        proprioception: Quantiles of proprioception, for a checkpoint that reads it.
        images: Number of the environment's images that are read, from the first on.
        question_length: Tokens that every question is padded to.
        recompute: Keep only the input of each block for the backward pass.
        folder: Folder of the files next to the weights.
        encoders: See `VisionBackbone`.
    """

    read_past = ("language_model.lm_head",)

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        preprocessor: Mapping[str, Any],
        tokenizer: Tokenizer,
        action_tokenizer: OpenVLATokenizer,
        proprioception: Quantiles | None,
        images: int,
        question_length: int,
        recompute: bool,
        folder: Path,
        encoders: Sequence[VisionEncoder] | None = None,
    ) -> None:
        super().__init__()
        self.action_tokenizer: OpenVLATokenizer = action_tokenizer
        self.tokenizer = tokenizer
        self.folder = folder
        self.images = images
        self.question_length = question_length
        self.padding = int(config["pad_token_id"])
        self.chunk_length = CHUNK_LENGTH
        self.first_action = action_tokenizer.vocabulary - action_tokenizer.bins
        llama = LlamaConfig(**config["text_config"])
        width = llama.hidden_size
        self.feature_size = width
        self.vision_backbone = VisionBackbone(
            [encoder_shape(name) for name in config["timm_model_ids"]],
            means=preprocessor["means"],
            stds=preprocessor["stds"],
            image_size=IMAGE_SIZE,
            recompute=recompute,
            encoders=encoders,
        )
        seen = self.vision_backbone.width
        fused = len(config["timm_model_ids"]) > 1
        self.projector = MLP((seen, 4 * seen, width, width) if fused else (seen, width, width))
        self.quantiles = proprioception
        self.proprio_projector = (
            None if proprioception is None else MLP((len(proprioception.low), width, width))
        )
        self.language_model = AutoModelForCausalLM.from_config(
            llama, attn_implementation=EVERYBODY, dtype=torch.float32
        )
        if recompute:
            recompute_activations(self.language_model)

    def prepare(
        self, *, images: NDArray[np.uint8] | None, proprioception: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.uint8] | None, NDArray[np.float32] | None]:
        """Images [I, 224, 224, 3] and quantiles in [-1, 1], as in the checkpoint's training.

        See `Policy.prepare`.
        """
        assert images is not None, "checked when the policy was made"
        seen = np.stack([policy_image(image) for image in images[: self.images]])
        if self.quantiles is None or proprioception is None:
            return seen, None
        return seen, self.quantiles.normalise(proprioception).astype(np.float32)

    def observation_flops(self, instruction_ids: torch.Tensor) -> int:
        """See `Policy.observation_flops`."""
        question = int((instruction_ids != self.padding).sum(1).max())
        return openvla_flops(self, question=question)

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Tokens of the question, int64 [L], from <s> to the blank after "Out:", padded at the end.

        Raises:
            ConfigError: A question longer than L.
        """
        ids = self.tokenizer.encode(prompt(text)).ids
        if ids[0] != START:
            ids = [START, *ids]
        if ids[-1] != BLANK:
            ids = [*ids, BLANK]
        if len(ids) > self.question_length:
            raise ConfigError(
                f"The instruction {text!r} makes a question of {len(ids)} tokens: give "
                f"actor_rollout_ref.model.options.question_length={len(ids)} or more."
            )
        return np.array(ids + [self.padding] * (self.question_length - len(ids)), np.int64)

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Categorical:
        """Action tokens of 256 bins [N, T]; see `Policy.forward`."""
        hidden_NTD = self._hidden(pixel_values, proprioception, instruction_ids)
        rows = slice(self.first_action, self.first_action + self.action_tokenizer.bins)
        return Categorical(functional.linear(hidden_NTD, self.language_model.lm_head.weight[rows]))

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The last hidden state before the chunk's first token, [N, D]; see `Policy.features`."""
        return self._hidden(pixel_values, proprioception, instruction_ids)[:, 0]

    def drop_head(self) -> None:
        """See `Policy.drop_head`."""
        del self.language_model.lm_head

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """Copy the checkpoint's own files next to its weights; `notes` are not stored."""
        for name in COPIED_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)

    def _hidden(
        self,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The language model's last hidden states [N, T, D], each at the place before its token."""
        assert pixel_values is not None, "checked when the policy was made"
        ids_NL = instruction_ids[:, : int((instruction_ids != self.padding).sum(1).max())]
        words_NLD = self.language_model.get_input_embeddings()(ids_NL)
        seen_NVD = self._seen(pixel_values, proprioception).to(words_NLD.dtype)
        tokens = self.chunk_length * self.action_tokenizer.dimensions
        empty_NTD = words_NLD.new_zeros(len(ids_NL), tokens, words_NLD.shape[-1])
        stop_N1D = self.language_model.get_input_embeddings()(torch.full_like(ids_NL[:, :1], STOP))
        embeddings_NSD = torch.cat(
            [words_NLD[:, :1], seen_NVD, words_NLD[:, 1:], empty_NTD, stop_N1D], dim=1
        )

        # A short question is padded before the chunk; padding is masked and has no positions.
        there_NL = ids_NL != self.padding
        before = seen_NVD.shape[1] + 1
        after = tokens + 1
        there_NS = functional.pad(
            functional.pad(there_NL[:, 1:], (before, 0), value=True), (0, after), value=True
        )
        mask_N1SS = there_NS[:, None, None].expand(-1, 1, there_NS.shape[1], -1)
        output = self.language_model.model(
            inputs_embeds=embeddings_NSD,
            # without a mask torch takes its fastest kernel
            attention_mask=None if bool(there_NL.all()) else mask_N1SS,
            position_ids=there_NS.cumsum(1) - 1,
            use_cache=False,
        ).last_hidden_state
        last_word_N = seen_NVD.shape[1] + there_NL.sum(1) - 1
        first_N1D = output[torch.arange(len(output), device=output.device), last_word_N][:, None]
        return torch.cat([first_N1D, output[:, -after:-2]], dim=1)

    def _seen(
        self, pixel_values: torch.Tensor, proprioception: torch.Tensor | None
    ) -> torch.Tensor:
        """Patches of all images, then proprioception if the checkpoint reads it: [N, V, D]."""
        seen_NVD = (
            self.projector(self.vision_backbone(pixel_values.flatten(0, 1)))
            .unflatten(0, (len(pixel_values), -1))
            .flatten(1, 2)
        )
        if self.proprio_projector is None:
            return seen_NVD
        assert proprioception is not None, "checked when the policy was made"
        state_ND = self.proprio_projector(proprioception.to(self.proprio_projector.dtype))
        return torch.cat([seen_NVD, state_ND[:, None]], dim=1)


def openvla_flops(policy: OpenVLAOFT, *, question: int) -> int:
    """OpenVLA-OFT on one observation, whose question has `question` tokens."""
    patches = policy.vision_backbone.patches
    seen = policy.images * patches
    images = policy.images * sum(
        image_flops(shape, patches=patches) for shape in policy.vision_backbone.shapes
    )
    projector = seen * linear_flops(policy.projector)
    state = 0 if policy.proprio_projector is None else linear_flops(policy.proprio_projector)
    tokens = policy.chunk_length * policy.action_tokenizer.dimensions
    places = seen + (policy.proprio_projector is not None) + question + tokens + 1
    config = policy.language_model.config
    decoder = decoder_flops(config, tokens=places, pairs=places**2, head_tokens=0)
    head = 2 * tokens * config.hidden_size * policy.action_tokenizer.bins
    return images + projector + state + decoder + head
