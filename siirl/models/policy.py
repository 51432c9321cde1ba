"""Contract of vision-language-action (VLA) policies: they map observations to a distribution of
chunks.

A chunk has one token for each dimension of each action. The policy's distribution defines a token:
a bin, a number, or a chain of denoised numbers. Rollout, scorer and losses use only its interface
(`siirl.algos.distributions`), so that one engine and one scorer serve all policies.
"""

# N observation, T = K*A token of a chunk (K actions of A dimensions), D feature

import abc
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.base import EnvSpec
from siirl.algos.distributions import ActionDistribution, Categorical
from siirl.algos.ranks import Ranks
from siirl.errors import CheckpointError, ConfigError
from siirl.models.action_tokenizer import ActionTokenizer, ContinuousActions
from siirl.models.adapters import Adaptable, adapted_layers, add_adapters
from siirl.params.model_args import LoraArguments


class Policy(Adaptable, abc.ABC):
    """A VLA policy.

    `actor_rollout_ref.model.policy=module:name` names a user's own policy; it is called with (spec,
    path, **options).
    """

    action_tokenizer: ActionTokenizer | ContinuousActions
    """Codes actions as the values of `distribution`."""
    distribution: type[ActionDistribution] = Categorical
    """Class that `forward` returns; checks refuse settings that have no meaning for it."""
    chunk_length: int
    """K, the number of actions decoded from one observation."""
    feature_size: int | None = None
    """D of `features`; None for a policy without support for a critic."""
    read_past: tuple[str, ...] = ()
    """Linear layers whose weights `forward` reads directly.

    An adapter in them would have no effect.
    """

    @abc.abstractmethod
    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Token ids of an instruction, int64 [L], of fixed length."""

    def prepare(
        self, *, images: NDArray[np.uint8] | None, proprioception: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.uint8] | None, NDArray[np.float32] | None]:
        """Convert an observation to the inputs of `forward`; trajectories keep these.

        By default it is unchanged.

        Args:
            images: [cameras, height, width, 3], or None for an environment without images.
            proprioception: [P], or None.
        """
        return images, proprioception

    @property
    def tokens_per_chunk(self) -> int:
        """Tokens of a chunk (T)."""
        return self.chunk_length * self.action_tokenizer.dimensions

    @property
    def uniforms_per_chunk(self) -> int:
        """Uniform numbers from which a chunk is sampled; by default one per token."""
        return self.tokens_per_chunk

    @abc.abstractmethod
    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> ActionDistribution:
        """Distribution of N chunks of T tokens.

        Args:
            pixel_values: uint8 [N, cameras, height, width, 3], or None for a policy without
                cameras.
            proprioception: float32 [N, P], or None.
            instruction_ids: int64 [N, L].
        """

    def observation_flops(self, instruction_ids: torch.Tensor) -> int | None:
        """Operations of `forward` on one observation with the longest of `instruction_ids` [N, L].

        None for a policy without a formula; training then reports no FLOPs.
        """
        return None

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Features [N, D] of an observation, before a chunk is decoded: input of a value head.

        Arguments are those of `forward`. A policy with features also sets `feature_size` and
        implements `drop_head`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no features (feature_size is None).")

    def observe(self, proprioception_NP: torch.Tensor, *, ranks: Ranks) -> None:
        """Update statistics with the observations of a step, after its update; by default nothing.

        Every rank calls it.

        Args:
            proprioception_NP: Observations at which the policy acted on this rank, float32 [N, P].
            ranks: The processes that train together.
        """

    def adapt(self, lora: LoraArguments, *, seed: int) -> None:
        """Add adapters and train only them.

        They are in all linear layers, or those of `lora.target_modules`.

        Raises:
            ConfigError: Layers that the policy does not have, or that it bypasses; a rank above the
                smaller side of a layer.
        """
        self.check_adapters(lora)
        add_adapters(self, lora, layers=self._linear_layers(), seed=seed)
        self.lora = lora

    def check_adapters(self, lora: LoraArguments) -> None:
        """Refuse adapters that this policy cannot have, without making them.

        Raises:
            ConfigError: Layers or a rank that `adapt` refuses.
        """
        adapted = adapted_layers(self, lora, layers=self._linear_layers())
        useless = sorted(set(adapted) & set(self.read_past))
        if useless:
            raise ConfigError(
                "actor_rollout_ref.model.lora.target_modules: an adapter in "
                f"{', '.join(useless)} would have no effect; leave it out."
            )

    def _linear_layers(self) -> list[str]:
        return [
            name
            for name, part in self.named_modules()
            if isinstance(part, nn.Linear) and name not in self.read_past
        ]

    def check_options(self, spec: EnvSpec, *, options: Mapping[str, Any], path: str) -> None:
        """Refuse options that contradict the weights in `path`; by default none.

        Raises:
            CheckpointError: An option with another value than the weights have.
        """

    def check_resumed(self, folder: Path, *, changed: Collection[str]) -> None:
        """Refuse to continue the checkpoint's policy in `folder` with other options than its own.

        Args:
            folder: The policy's folder in the checkpoint.
            changed: Options whose words differ from those of the run that made the checkpoint. By
                default they are refused; a policy that stores its options compares these instead.

        Raises:
            CheckpointError: This policy has another option than the stored weights.
        """
        if changed:
            raise CheckpointError(
                f"trainer.resume: {', '.join(changed)} in actor_rollout_ref.model.options differ "
                f"from those that the weights in {folder} were made with: repeat the words of that "
                "run's command."
            )

    @property
    def proprioception_layer(self) -> nn.Linear | None:
        """The layer that reads proprioception, or None.

        A warm start scales its new weights to the data.
        """
        return None

    def drop_head(self) -> None:
        """Remove the weights that `features` does not need."""
        raise NotImplementedError(f"{type(self).__name__} has no features (feature_size is None).")

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """Write the files that are needed besides the weights to load this policy.

        Args:
            folder: An existing folder.
            notes: For readers of the folder, for example the command that made the weights.
        """
