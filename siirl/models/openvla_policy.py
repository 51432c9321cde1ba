"""Common base of the OpenVLA policies: encoders, language model, question, files.

Papers: https://arxiv.org/abs/2406.09246 and https://arxiv.org/abs/2502.19645.
`siirl.models.openvla` generates tokens one after another, `siirl.models.openvla_oft` decodes a
chunk in one pass; `siirl.models.openvla_checkpoint` reads checkpoints.
`envs.libero.openvla_conventions` defines the meaning of images, numbers and tokens.
"""

# N observation, I image, V token of vision (and proprioception), L token of the question, D feature

import abc
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
from transformers import AutoModelForCausalLM, LlamaConfig

from envs.libero.openvla_conventions import (
    BINS,
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
from siirl.errors import ConfigError
from siirl.files.weight_files import CONFIG_FILE, PREPROCESSOR_FILE, TOKENIZER_FILE
from siirl.models.action_tokenizer import ActionTokenizer, ContinuousActions
from siirl.models.flops import decoder_flops, image_flops, linear_flops
from siirl.models.language_model import recompute_activations
from siirl.models.openvla_vision import MLP, VisionBackbone, VisionEncoder, encoder_shape
from siirl.models.policy import Policy

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
BLANK = 29_871  # the blank after "Out:", as in training


@dataclass(frozen=True)
class OpenVLATokenizer(ActionTokenizer):
    """Actions of `env=libero` as the checkpoint's tokens, counted from the first of its 256."""

    quantiles: Quantiles
    vocabulary: int
    """Size of the tokenizer, whose last tokens are the action tokens."""

    @property
    def first(self) -> int:
        """The first action token."""
        return self.vocabulary - self.bins

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[Any]:
        """Tokens [K*A] to actions, float32 [K, A]."""
        values = action_values(tokens + self.first, vocabulary=self.vocabulary)
        return environment_actions(values.reshape(-1, self.dimensions), quantiles=self.quantiles)

    def encode(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Actions [K, A] to tokens, int64 [K*A]."""
        values = normalised_actions(actions, quantiles=self.quantiles)
        tokens = action_tokens(values, vocabulary=self.vocabulary)
        return (tokens - self.first).reshape(-1)


@dataclass(frozen=True)
class OpenVLANumbers(ContinuousActions):
    """Actions of `env=libero` as the output numbers of a checkpoint's regression head."""

    quantiles: Quantiles

    def decode(self, values: NDArray[np.floating]) -> NDArray[np.float32]:
        """Numbers [K*A] to actions float32 [K, A]."""
        return environment_actions(values.reshape(-1, self.dimensions), quantiles=self.quantiles)

    def encode(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Actions [K, A] to numbers float32 [K*A]."""
        values_KA = normalised_actions(actions, quantiles=self.quantiles)
        return values_KA.astype(np.float32).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Contents of a checkpoint, from which a policy is built.

    `siirl.models.openvla_checkpoint` reads them.
    """

    config: Mapping[str, Any]
    """The checkpoint's config.json."""
    preprocessor: Mapping[str, Any]
    """Its preprocessor_config.json."""
    tokenizer: Tokenizer
    """Tokenizer of the question."""
    question_length: int
    """Length in tokens to which every question is padded."""
    recompute: bool
    """Keep only the input of each block for the backward pass."""
    folder: Path
    """Folder of the files next to the weights."""
    encoders: Sequence[VisionEncoder] | None = None
    """See `VisionBackbone`."""


class OpenVLAPolicy(Policy):
    """Encoders, projector and language model, with the names of the published weights.

    Args:
        parts: Parts of the checkpoint.
        attention: Name of the language model's attention function.
        proprioception: Quantiles of proprioception, for a checkpoint that reads it.
        images: Number of the environment's images that are read, from the first on.
    """

    read_past = ("language_model.lm_head",)

    def __init__(
        self,
        parts: Parts,
        *,
        attention: str,
        proprioception: Quantiles | None = None,
        images: int = 1,
    ) -> None:
        super().__init__()
        config = parts.config
        self.tokenizer = parts.tokenizer
        self.folder = parts.folder
        self.images = images
        self.question_length = parts.question_length
        self.padding = int(config["pad_token_id"])
        llama = LlamaConfig(**config["text_config"])
        width = llama.hidden_size
        self.feature_size = width
        self.vision_backbone = VisionBackbone(
            [encoder_shape(name) for name in config["timm_model_ids"]],
            means=parts.preprocessor["means"],
            stds=parts.preprocessor["stds"],
            image_size=IMAGE_SIZE,
            recompute=parts.recompute,
            encoders=parts.encoders,
        )
        seen = self.vision_backbone.width
        fused = len(config["timm_model_ids"]) > 1
        self.projector = MLP((seen, 4 * seen, width, width) if fused else (seen, width, width))
        self.quantiles = proprioception
        self.proprio_projector = (
            None if proprioception is None else MLP((len(proprioception.low), width, width))
        )
        self.language_model = AutoModelForCausalLM.from_config(
            llama, attn_implementation=attention, dtype=torch.float32
        )
        if parts.recompute:
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

    def _linear_layers(self) -> list[str]:
        """Leaves out the projector of proprioception: its eight inputs are fewer than an adapter's
        rank.

        OpenVLA-OFT's own adapters also leave it out (vla-scripts/finetune.py there).
        """
        layers = super()._linear_layers()
        return [name for name in layers if not name.startswith("proprio_projector.")]

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

    @property
    @abc.abstractmethod
    def places_beside(self) -> int:
        """Places of the language model beside patches, proprioception and question."""

    @abc.abstractmethod
    def head_flops(self) -> int:
        """Operations for one observation after the last hidden state."""

    def observation_flops(self, instruction_ids: torch.Tensor) -> int:
        """See `Policy.observation_flops`."""
        question = int((instruction_ids != self.padding).sum(1).max())
        return openvla_flops(self, question=question)

    def drop_head(self) -> None:
        """See `Policy.drop_head`."""
        del self.language_model.lm_head

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """Copy the checkpoint's own files next to its weights; `notes` are not stored."""
        for name in COPIED_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)

    def question(self, instruction_ids: torch.Tensor) -> torch.Tensor:
        """The questions [N, L], without their common padding."""
        return instruction_ids[:, : int((instruction_ids != self.padding).sum(1).max())]

    def seen(self, pixel_values: torch.Tensor, proprioception: torch.Tensor | None) -> torch.Tensor:
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

    def bin_logits(self, hidden: torch.Tensor, coding: OpenVLATokenizer) -> torch.Tensor:
        """Logits [..., 256] of the action tokens, from the hidden state before each."""
        rows = slice(coding.first, coding.first + coding.bins)
        return functional.linear(hidden, self.language_model.lm_head.weight[rows])


def openvla_flops(policy: OpenVLAPolicy, *, question: int) -> int:
    """Operations for one observation whose question has `question` tokens."""
    patches = policy.vision_backbone.patches
    seen = policy.images * patches
    images = policy.images * sum(
        image_flops(shape, patches=patches) for shape in policy.vision_backbone.shapes
    )
    projector = seen * linear_flops(policy.projector)
    state = 0 if policy.proprio_projector is None else linear_flops(policy.proprio_projector)
    positions = seen + (policy.proprio_projector is not None) + question + policy.places_beside
    config = policy.language_model.config
    decoder = decoder_flops(config, tokens=positions, pairs=positions**2, head_tokens=0)
    return images + projector + state + decoder + policy.head_flops()


def bin_flops(policy: OpenVLAPolicy) -> int:
    """Operations for the logits of a chunk."""
    return 2 * policy.tokens_per_chunk * policy.language_model.config.hidden_size * BINS
