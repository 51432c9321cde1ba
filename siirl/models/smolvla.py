"""SmolVLA: a small VLA policy whose action expert denoises chunks of actions, for RL.

`siirl.models.smolvla_network` has the network, `siirl.models.smolvla_checkpoint` reads LeRobot's
checkpoints. LeRobot's flow runs from noise at time 1 to actions at time 0; that of
`siirl.algos.flow_distributions` from 0 to 1, with the opposite velocity.

The network denoises `chunk_size` actions of `max_action_dim` numbers. The tokens of a chunk are the
numbers that the environment acts on: `n_action_steps` actions, without their padding. The others
are unseen numbers of the flow.
"""

# N observation, T token of a chunk, E unseen number, F = T+E, L token of an instruction, S step

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import SmolVLMConfig

from siirl.algos.flow_distributions import FlowDistribution, FlowNoise, FlowSDE
from siirl.models.action_tokenizer import ContinuousActions
from siirl.models.flow_noise import LEARNT, SDE
from siirl.models.policy import Policy
from siirl.models.smolvla_network import NetworkShape, SmolVLANetwork
from siirl.models.weights import CONFIG_FILE

PADDING = -1  # behind the last token of an instruction; no token has this id
VLM_FOLDER = "vlm"
VLM_FILES = (CONFIG_FILE, "tokenizer.json", "tokenizer_config.json")
"""Files of the vision-language model that lie in `vlm/` beside a run's weights."""
PROCESSORS = ("policy_preprocessor*", "policy_postprocessor*")
"""Files of LeRobot's processors, which hold the statistics."""
DEVIATION = "deviation"
"""Name of the layer of learnt noise, which LeRobot's layout does not have."""


@dataclass(frozen=True)
class Scale:
    """Normalised: `(number - offset) / divisor`; back: `value * factor + offset`."""

    offset: NDArray[np.float64]
    factor: NDArray[np.float64]
    divisor: NDArray[np.float64]

    def normalise(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """Numbers as the network reads them."""
        return ((numbers - self.offset) / self.divisor).astype(np.float32)

    def restore(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """The inverse, of the network's output."""
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
class Reading:
    """How a policy reads observations and writes chunks."""

    images: int
    """The environment's cameras that are read, from the first on."""
    view: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
    """Turns an image as the checkpoint's data are."""
    state: Scale
    tokenizer: Tokenizer
    instruction_length: int
    truncation_side: str
    chunk_size: int
    """Actions that the network denoises."""
    chunk_length: int
    """Actions that are executed."""


class SmolVLA(Policy):
    """The policy; see `Policy` for the contract.

    Args:
        vlm: Configuration of the vision-language model.
        shape: Of the network.
        reading: Of observations and chunks.
        actions: Coding of actions.
        flow: How it is sampled.
        folder: Of the files beside the weights.
        vlm_folder: Of the vision-language model's files.
    """

    read_past = ("model.vlm_with_expert.vlm.lm_head",)
    order_F: torch.Tensor
    """Place of each of the flow's numbers among all actions of the network, tokens first."""

    def __init__(
        self,
        vlm: SmolVLMConfig,
        *,
        shape: NetworkShape,
        reading: Reading,
        actions: NormalisedActions,
        flow: FlowSettings,
        folder: Path,
        vlm_folder: Path,
    ) -> None:
        super().__init__()
        self.reading = reading
        self.flow = flow
        self.folder, self.vlm_folder = folder, vlm_folder
        self.action_tokenizer: NormalisedActions = actions
        self.chunk_length = reading.chunk_length
        self.distribution = FlowNoise if flow.noise == LEARNT else FlowSDE
        self.model = SmolVLANetwork(vlm, shape)
        text: Any = vlm.text_config
        self.feature_size = int(text.hidden_size)
        moved = reading.chunk_size * shape.max_action_dim
        self.unseen = moved - self.tokens_per_chunk
        place_KA = torch.arange(moved).view(reading.chunk_size, shape.max_action_dim)
        is_token_KA = torch.zeros_like(place_KA, dtype=torch.bool)
        is_token_KA[: self.chunk_length, : actions.dimensions] = True
        order_F = torch.cat([place_KA[is_token_KA], place_KA[~is_token_KA]])
        self.register_buffer("order_F", order_F, persistent=False)
        if flow.noise == LEARNT:
            self.deviation = nn.Linear(self.feature_size, flow.steps)
            nn.init.zeros_(self.deviation.weight)
            nn.init.zeros_(self.deviation.bias)

    @property
    def uniforms_per_chunk(self) -> int:
        """See `Policy.uniforms_per_chunk`: the first noise and that of the random steps."""
        moved = self.tokens_per_chunk + self.unseen
        if self.flow.noise == LEARNT:
            return moved + self.flow.steps * self.tokens_per_chunk
        return moved + self.tokens_per_chunk + 1

    def prepare(
        self, *, images: NDArray[np.uint8] | None, proprioception: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.uint8] | None, NDArray[np.float32] | None]:
        """The cameras that are read, and normalised proprioception; see `Policy.prepare`."""
        assert images is not None and proprioception is not None, "checked when it was made"
        seen = np.stack([self.reading.view(image) for image in images[: self.reading.images]])
        return seen, self.reading.state.normalise(proprioception)

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Tokens of the instruction and a line's end, int64 [L], cut or padded as LeRobot does."""
        ids = self.reading.tokenizer.encode(text if text.endswith("\n") else f"{text}\n").ids
        length = self.reading.instruction_length
        kept = ids[-length:] if self.reading.truncation_side == "left" else ids[:length]
        return np.array(kept + [PADDING] * (length - len(kept)), np.int64)

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> FlowDistribution:
        """A flow of chunks of T numbers; see `Policy.forward`."""
        context, features_ND = self._prefix(pixel_values, proprioception, instruction_ids)
        velocity = Denoiser(self, self.model.valid(instruction_ids, images=self.reading.images))
        sizes = {
            "tokens": self.tokens_per_chunk,
            "unseen": self.unseen,
            "steps": self.flow.steps,
        }
        if self.flow.noise == SDE:
            return FlowSDE(velocity, context, noise=self.flow.noise_level, **sizes)
        return FlowNoise(velocity, context, log_std=self._log_std(features_ND), **sizes)

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The prefix's last hidden state, at the state's place, [N, D]; see `Policy.features`."""
        return self._prefix(pixel_values, proprioception, instruction_ids)[1]

    def drop_head(self) -> None:
        """See `Policy.drop_head`."""
        del self.model.vlm_with_expert.lm_expert
        del self.model.action_in_proj, self.model.action_out_proj
        del self.model.action_time_mlp_in, self.model.action_time_mlp_out
        if self.flow.noise == LEARNT:
            del self.deviation

    def describe(self, folder: Path, *, notes: Mapping[str, Any]) -> None:
        """Copy the checkpoint's own files next to its weights; `notes` are not stored."""
        (folder / VLM_FOLDER).mkdir(exist_ok=True)
        for name in VLM_FILES:
            if (self.vlm_folder / name).is_file():
                shutil.copyfile(self.vlm_folder / name, folder / VLM_FOLDER / name)
        for file in (self.folder / CONFIG_FILE, *processor_files(self.folder)):
            shutil.copyfile(file, folder / file.name)

    def _prefix(
        self,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert pixel_values is not None and proprioception is not None, "checked when it was made"
        return self.model.prefix(pixel_values, instruction_ids, proprioception)

    def _log_std(self, features_ND: torch.Tensor) -> torch.Tensor:
        """Log-deviations [N, S, T] within their bounds, by a tanh as in ReinFlow and RLinf.

        Of a step, not of a token: new weights must not need the number of tokens, which an option
        changes.
        """
        share_NS1 = ((torch.tanh(self.deviation(features_ND)) + 1) / 2)[..., None]
        low, high = (math.log(bound) for bound in self.flow.noise_std)
        return (low + (high - low) * share_NS1).expand(-1, -1, self.tokens_per_chunk)

    def _linear_layers(self) -> list[str]:
        """Layers that are trained without adapters; LeRobot's adapters are in some of them too."""
        return [
            name
            for name, part in self.named_modules()
            if isinstance(part, nn.Linear) and part.weight.requires_grad
        ]


@dataclass(frozen=True)
class Denoiser:
    """`siirl.algos.flow_distributions.Velocity` of a SmolVLA and an instruction."""

    policy: SmolVLA
    valid_NL: torch.Tensor

    def __call__(
        self, context: torch.Tensor, x_NSF: torch.Tensor, time_NS: torch.Tensor, /
    ) -> torch.Tensor:
        """Velocities [N, S, F], tokens first."""
        order_F = self.policy.order_F
        size = self.policy.model.shape.max_action_dim
        place_F = order_F.argsort()
        actions_NSKA = x_NSF[..., place_F].unflatten(-1, (-1, size))
        towards_noise = self.policy.model.velocity(
            context, self.valid_NL, actions_NSKA, 1 - time_NS
        )
        return -towards_noise.flatten(-2)[..., order_F]


def processor_files(folder: Path) -> list[Path]:
    """Files of LeRobot's processors."""
    return sorted(file for pattern in PROCESSORS for file in folder.glob(pattern))
