"""Common base of VLA policies in LeRobot's layouts whose action expert denoises chunks.

`FlowVLA` is the policy around a network (`PrefixNetwork`): SmolVLA, pi0 and pi0.5. A network
computes a prefix once (images, instruction, state), and velocities from its keys and values. The
networks' flow runs from noise at time 1 to actions at time 0. The flow of
`siirl.algos.flow_distributions` runs from 0 to 1, with the opposite velocity.

A network denoises `chunk_size` actions of `max_action_dim` numbers. The tokens of a chunk are the
numbers that the environment uses: `n_action_steps` actions, without their padding. The other
numbers are unseen numbers of the flow.
"""

# N observation, C camera, K action of a chunk, A number of an action, P number of the state, T
# token of a chunk, E unseen number, F = T+E, L token or position, S step, D feature

from __future__ import annotations

import abc
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn

from siirl.algos.flow_distributions import FlowDistribution, FlowEnd, FlowNoise, FlowSDE
from siirl.files.weight_files import CONFIG_FILE
from siirl.models.action_tokenizer import ContinuousActions
from siirl.models.flow_noise import DISTRIBUTIONS, END, LEARNING, SDE
from siirl.models.policy import Policy
from siirl.models.prefix_layers import Prefix

PADDING = -1  # after the last token of an instruction; no token has this id
PROCESSORS = ("policy_preprocessor*", "policy_postprocessor*")
"""Files of LeRobot's processors; they hold the statistics."""
DEVIATION = "deviation"
"""Name of the layer of learnt noise, which LeRobot's layouts do not have."""


@dataclass(frozen=True)
class Scale:
    """Normalises by `(number - offset) / divisor`; restores by `value * factor + offset`."""

    offset: NDArray[np.float64]
    factor: NDArray[np.float64]
    divisor: NDArray[np.float64]

    def normalise(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """Numbers in the form that the network reads."""
        return ((numbers - self.offset) / self.divisor).astype(np.float32)

    def restore(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """The inverse, for the network's output."""
        return (values * self.factor + self.offset).astype(np.float32)


@dataclass(frozen=True)
class NormalisedActions(ContinuousActions):
    """Actions by the statistics of the checkpoint's data, clipped to the environment's bounds."""

    scale: Scale

    def decode(self, values: NDArray[np.floating]) -> NDArray[np.float32]:
        """Numbers [K*A] to actions float32 [K, A]."""
        actions_KA = self.scale.restore(values.reshape(-1, self.dimensions))
        low_A, high_A = self.extremes()
        return np.clip(actions_KA, low_A, high_A)

    def encode(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Actions [K, A] to numbers float32 [K*A]."""
        return self.scale.normalise(np.asarray(actions)).reshape(-1)

    def extremes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The bounds."""
        return np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """How the flow is sampled."""

    steps: int
    noise: str
    noise_level: float
    noise_std: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class InputOutputFormat:
    """How a policy reads observations and writes chunks."""

    images: int
    """Number of the environment's cameras that are read, from the first on."""
    view: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
    """Rotates an image to match the checkpoint's data."""
    state: Scale
    tokenizer: Tokenizer
    instruction_length: int
    truncation_side: str
    chunk_size: int
    """Actions that the network denoises."""
    chunk_length: int
    """Actions that are executed."""
    max_action_dim: int
    """Numbers of an action that the network denoises."""

    def tokens(self, text: str) -> NDArray[np.int64]:
        """Tokens of a text, int64 [L], cut or padded to `instruction_length` as LeRobot does."""
        ids = self.tokenizer.encode(text).ids
        length = self.instruction_length
        kept = ids[-length:] if self.truncation_side == "left" else ids[:length]
        return np.array(kept + [PADDING] * (length - len(kept)), np.int64)


class PrefixNetwork(Protocol):
    """A network of LeRobot's, with its names."""

    def prefix(
        self, images: torch.Tensor, words_NL: torch.Tensor, state_NP: torch.Tensor, /
    ) -> Prefix:
        """Images uint8 [N, C, height, width, 3], token ids (negative: padding), scaled state."""

    def velocity(
        self,
        context: torch.Tensor,
        valid_NL: torch.Tensor,
        actions_NSKA: torch.Tensor,
        time_NS: torch.Tensor,
        /,
    ) -> torch.Tensor:
        """Velocity from actions (time 0) to noise (time 1), float32 [N, S, K, A], at S times.

        Args:
            context: The `context` that `prefix` returned.
            valid_NL: The `valid_NL` that `prefix` returned.
            actions_NSKA: Noisy actions, of `max_action_dim` numbers.
            time_NS: LeRobot's time: 1 for noise, 0 for actions.
        """


class FlowVLA(Policy):
    """The policy; see `Policy` for the contract.

    Args:
        network: The network, with LeRobot's names.
        feature_size: Width of `Prefix.features_NW`.
        io_format: Format of observations and chunks.
        actions: Coding of actions.
        flow: Settings of sampling from the flow.
        folder: Folder of the files beside the weights.
    """

    order_F: torch.Tensor
    """Position of each of the flow's numbers in the network's actions, tokens first."""
    model: Any
    """A `PrefixNetwork`."""
    distribution: type[FlowDistribution]

    def __init__(
        self,
        network: nn.Module,
        *,
        feature_size: int,
        io_format: InputOutputFormat,
        actions: NormalisedActions,
        flow: FlowSettings,
        folder: Path,
    ) -> None:
        super().__init__()
        self.io_format = io_format
        self.flow = flow
        self.folder = folder
        self.action_tokenizer: NormalisedActions = actions
        self.chunk_length = io_format.chunk_length
        self.distribution = DISTRIBUTIONS[flow.noise]
        self.model = network
        self.feature_size = feature_size
        moved = io_format.chunk_size * io_format.max_action_dim
        self.unseen = moved - self.tokens_per_chunk
        place_KA = torch.arange(moved).view(io_format.chunk_size, io_format.max_action_dim)
        is_token_KA = torch.zeros_like(place_KA, dtype=torch.bool)
        is_token_KA[: self.chunk_length, : actions.dimensions] = True
        order_F = torch.cat([place_KA[is_token_KA], place_KA[~is_token_KA]])
        self.register_buffer("order_F", order_F, persistent=False)
        if flow.noise in LEARNING:
            self.deviation = nn.Linear(feature_size, flow.steps)
            nn.init.zeros_(self.deviation.weight)
            nn.init.zeros_(self.deviation.bias)

    @property
    def uniforms_per_chunk(self) -> int:
        """See `Policy.uniforms_per_chunk`."""
        return self.distribution.uniforms(
            tokens=self.tokens_per_chunk, unseen=self.unseen, steps=self.flow.steps
        )

    def prepare(
        self, *, images: NDArray[np.uint8] | None, proprioception: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.uint8] | None, NDArray[np.float32] | None]:
        """The cameras that are read, and normalised proprioception; see `Policy.prepare`."""
        assert images is not None and proprioception is not None, "checked when it was made"
        seen = np.stack([self.io_format.view(image) for image in images[: self.io_format.images]])
        return seen, self.io_format.state.normalise(proprioception)

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Tokens of the instruction and a line's end, int64 [L]."""
        return self.io_format.tokens(text if text.endswith("\n") else f"{text}\n")

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> FlowDistribution:
        """A flow of chunks of T numbers; see `Policy.forward`."""
        prefix = self._prefix(pixel_values, proprioception, instruction_ids)
        velocity = Denoiser(self, prefix.valid_NL)
        sizes = {
            "tokens": self.tokens_per_chunk,
            "unseen": self.unseen,
            "steps": self.flow.steps,
        }
        if self.flow.noise == SDE:
            return FlowSDE(velocity, prefix.context, noise=self.flow.noise_level, **sizes)
        log_std_NST = self._log_std(prefix.features_NW)
        if self.flow.noise == END:
            return FlowEnd(velocity, prefix.context, log_std=log_std_NST[:, -1], **sizes)
        return FlowNoise(velocity, prefix.context, log_std=log_std_NST, **sizes)

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """`Prefix.features_NW`; see `Policy.features`."""
        return self._prefix(pixel_values, proprioception, instruction_ids).features_NW

    def drop_head(self) -> None:
        """See `Policy.drop_head`."""
        self._drop_velocity()
        if self.flow.noise in LEARNING:
            del self.deviation

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """Copy the checkpoint's own files next to its weights; `notes` are not stored."""
        for file in (self.folder / CONFIG_FILE, *processor_files(self.folder)):
            shutil.copyfile(file, folder / file.name)

    @abc.abstractmethod
    def _drop_velocity(self) -> None:
        """Remove the network's weights that its features do not depend on."""

    def _prefix(
        self,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Prefix:
        assert pixel_values is not None and proprioception is not None, "checked when it was made"
        return self.model.prefix(pixel_values, instruction_ids, proprioception)

    def _log_std(self, features_ND: torch.Tensor) -> torch.Tensor:
        """Log-deviations [N, S, T] within their bounds, by a tanh as in ReinFlow and RLinf.

        They belong to a step, not to a token: new weights must not depend on the number of tokens,
        which an option changes.
        """
        share_NS1 = ((torch.tanh(self.deviation(features_ND)) + 1) / 2)[..., None]
        low, high = (math.log(bound) for bound in self.flow.noise_std)
        return (low + (high - low) * share_NS1).expand(-1, -1, self.tokens_per_chunk)

    def _linear_layers(self) -> list[str]:
        """Layers that are trained without adapters; LeRobot puts adapters into some of them too."""
        return [
            name
            for name, part in self.named_modules()
            if isinstance(part, nn.Linear) and part.weight.requires_grad
        ]


@dataclass(frozen=True)
class Denoiser:
    """`siirl.algos.flow_distributions.Velocity` of a policy and a prefix."""

    policy: FlowVLA
    valid_NL: torch.Tensor

    def __call__(
        self, context: torch.Tensor, x_NSF: torch.Tensor, time_NS: torch.Tensor, /
    ) -> torch.Tensor:
        """Velocities [N, S, F], tokens first."""
        order_F = self.policy.order_F
        size = self.policy.io_format.max_action_dim
        place_F = order_F.argsort()
        actions_NSKA = x_NSF[..., place_F].unflatten(-1, (-1, size))
        towards_noise = self.policy.model.velocity(
            context, self.valid_NL, actions_NSKA, 1 - time_NS
        )
        return -towards_noise.flatten(-2)[..., order_F]


def processor_files(folder: Path) -> list[Path]:
    """Files of LeRobot's processors."""
    return sorted(file for pattern in PROCESSORS for file in folder.glob(pattern))
