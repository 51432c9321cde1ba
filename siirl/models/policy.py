"""What rollout and training need of a vision-language-action (VLA) policy: one forward pass from an
observation to a chunk of tokens.

The tiny VLA and a 7B OpenVLA-OFT have the same shape here: all tokens of a chunk are decoded in
parallel, each from its own logits, so the same engine samples them and the same scorer computes
their log-probs.
"""

# N observation, T = K*A token of a chunk (K actions of A dimensions), V bin, D feature

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.base import EnvSpec
from siirl.errors import ConfigError
from siirl.models.action_tokenizer import ActionTokenizer
from siirl.models.adapters import Adaptable, adapted_layers, add_adapters
from siirl.params.model_args import LoraArguments


class Policy(Adaptable, abc.ABC):
    """A VLA policy. A user's own is named by `actor_rollout_ref.model.policy=module:name`, which is
    called with (spec, path, **options).
    """

    action_tokenizer: ActionTokenizer
    chunk_length: int
    """K, the number of actions decoded from one observation."""
    feature_size: int | None = None
    """D of `features`; None for a policy that no critic can stand on."""
    read_past: tuple[str, ...] = ()
    """Names of linear layers whose weights `forward` reads past the layer, so that an adapter in
    them would do nothing.
    """

    @abc.abstractmethod
    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Token ids of an instruction, int64 [L], always of the same length."""

    def prepare(
        self, *, images: NDArray[np.uint8] | None, proprioception: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.uint8] | None, NDArray[np.float32] | None]:
        """What `forward` is given of one observation, and what a trajectory keeps of it; as it is,
        by default.

        Args:
            images: [cameras, height, width, 3], or None for an environment without.
            proprioception: [P], or None.
        """
        return images, proprioception

    @abc.abstractmethod
    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [N, T, V].

        Args:
            pixel_values: uint8 [N, cameras, height, width, 3], or None for a policy that has no
                camera.
            proprioception: float32 [N, P], or None.
            instruction_ids: int64 [N, L].
        """

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """What the policy makes of an observation before it decodes a chunk from it, [N, D]: what a
        value head reads.

        Arguments are those of `forward`. A policy that has them sets `feature_size` and writes
        `drop_head` as well.
        """
        raise NotImplementedError(f"{type(self).__name__} has no features (feature_size is None).")

    def adapt(self, lora: LoraArguments, *, seed: int) -> None:
        """Put adapters into all linear layers, or those of `lora.target_modules`; nothing else is
        trained from then on.

        Raises:
            ConfigError: Layers that the policy does not have, or that it reads past; a rank above a
                layer's smaller side.
        """
        self.check_adapters(lora)
        add_adapters(self, lora, layers=self._linear_layers(), seed=seed)
        self.lora = lora

    def check_adapters(self, lora: LoraArguments) -> None:
        """Refuse adapters that this policy cannot have, without making them.

        Raises:
            ConfigError: As `adapt`.
        """
        useless = sorted(
            set(adapted_layers(self, lora, layers=self._linear_layers())) & set(self.read_past)
        )
        if useless:
            raise ConfigError(
                f"actor_rollout_ref.model.lora.target_modules: an adapter in {', '.join(useless)} would do nothing."
            )

    def _linear_layers(self) -> list[str]:
        return [
            name
            for name, part in self.named_modules()
            if isinstance(part, nn.Linear) and name not in self.read_past
        ]

    def check_options(self, spec: EnvSpec, *, options: Mapping[str, Any], path: str) -> None:
        """Refuse options that the weights in `path` contradict; by default none: the maker was
        given both.

        Raises:
            CheckpointError: An option with another value than the weights have.
        """

    @property
    def proprioception_layer(self) -> nn.Linear | None:
        """The layer that reads proprioception, whose new weights a warm start can set to its scale;
        None: there is no such layer.
        """
        return None

    def drop_head(self) -> None:
        """Give up the weights that only `forward` needs, for a copy of which nothing but `features`
        will be asked.
        """
        raise NotImplementedError(f"{type(self).__name__} has no features (feature_size is None).")

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """Write into `folder`, where the weights are, what is needed beside them to read this
        policy again.

        Args:
            folder: Is there.
            notes: For who reads the folder, for example the command that made the weights.
        """
