"""Networks common in continuous control and Atari: they map states or images to one action per
step.

States go through two layers of 64 units (tanh by default), images through the convolutions of Mnih
et al. 2015 (Nature 518, table 1 of the extended data). The first weights are orthogonal, with a
gain of sqrt(2) and of 0.01 in the head, so that the first actions are nearly uniform (Andrychowicz
et al. 2021, arXiv 2006.05990, section 3.2; also Stable-Baselines3 and CleanRL); with `orthogonal:
false` they are PyTorch's (Stable-Baselines3's `ortho_init`). Discrete actions are categorical, and
so is each of several decisions (`MultiDiscrete`) that have few values. Continuous actions are
Gaussian with a deviation that does not depend on the state, and so are decisions of many values,
which are rounded.

With `normalize` states are standardised by the mean and deviation of all states so far and clipped
at 10, as `VecNormalize` of Stable-Baselines3 does. The statistics change once per step, after its
update, so acting and training compute the same log-probs.

An instruction is read if it may change within an episode: the mean of its words' vectors and the
features of states and images go through two more layers. Left out: the constant instruction of a
job with one task.
"""

# N observation, P proprioception value, T token of a chunk, D feature

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from envs.base import EnvSpec
from siirl.algos.distributions import ActionDistribution, Categorical, Gaussian
from siirl.algos.ranks import Ranks
from siirl.models.action_tokenizer import ActionTokenizer, ContinuousActions
from siirl.models.flops import linear_flops
from siirl.models.tiny_backbone import (
    PADDING,
    TinyConfig,
    TinyPolicy,
    mean_of_words,
    observed_sizes,
    require_sizes,
)
from siirl.models.tiny_checkpoint import make_tiny, stored_bounds, stored_sizes

CONTROL_POLICY = "control_policy"
HIDDEN_GAIN, HEAD_GAIN = math.sqrt(2), 0.01
PICTURE_FEATURES = 512
SMALLEST_PICTURE = 36  # smallest side in pixels that three convolutions accept
LARGEST_STATE = 10.0  # in deviations; VecNormalize's clip_obs
EPSILON = 1e-8  # VecNormalize's
MOST_BINS = 256  # of a decision; the head has an output for each
LARGEST_LOG_STD = 20  # deviations of float32 remain finite and positive
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


@dataclass(frozen=True, kw_only=True)
class ControlConfig(TinyConfig):
    """Shape of a ControlPolicy; saved next to its weights."""

    action_tokenizer: ActionTokenizer | ContinuousActions
    normalize: bool = False
    activation: str = "tanh"
    initial_log_std: float = 0.0
    orthogonal: bool = True
    reads_instruction: bool = False

    @classmethod
    def for_env(
        cls,
        spec: EnvSpec,
        *,
        chunk_length: int = 1,
        width: int = 64,
        normalize: bool = False,
        activation: str = "tanh",
        initial_log_std: float = 0.0,
        orthogonal: bool = True,
    ) -> ControlConfig:
        """The configuration that fits an environment's observations and actions.

        Args:
            spec: The environment.
            chunk_length: Actions for each observation.
            width: Units of a layer of states.
            normalize: Whether states are standardised.
            activation: Activation of the layers of states, tanh or relu.
            initial_log_std: Logarithm of the first deviation of continuous actions.
            orthogonal: Whether the first weights are orthogonal; otherwise PyTorch's default.

        Raises:
            ValueError: An observation space without images and without proprioception, an invalid
                size or option, images that are too small, or several tasks.
        """
        require_sizes({"chunk_length": (chunk_length, 1), "width": (width, 1)})
        network: dict[str, Any] = {
            "normalize": normalize,
            "activation": activation,
            "initial_log_std": initial_log_std,
            "orthogonal": orthogonal,
        }
        _require_network(**network)
        if len(spec.tasks) > 1 and not spec.instruction_changes:
            raise ValueError(
                f"Environment {spec.name!r} has {len(spec.tasks)} tasks, but {CONTROL_POLICY} does "
                "not read the instruction of a task: choose one with env.tasks, or choose "
                "model=tiny_vla."
            )
        sizes = observed_sizes(spec)
        shape = sizes["image_shape"]
        if shape is not None and min(shape[1:]) < SMALLEST_PICTURE:
            raise ValueError(
                f"Environment {spec.name!r} has images of {shape[1]} x {shape[2]} pixels, but "
                f"{CONTROL_POLICY} needs {SMALLEST_PICTURE}: choose model=tiny_vla."
            )
        return cls(
            action_tokenizer=_coding(spec),
            chunk_length=chunk_length,
            width=width,
            reads_instruction=spec.instruction_changes,
            **network,
            **sizes,
        )

    @classmethod
    def from_json(cls, values: dict) -> ControlConfig:
        """The inverse of `to_json`.

        Raises KeyError, TypeError or ValueError for values that do not describe a ControlPolicy.
        """
        coding = values["action_tokenizer"]
        bounds = stored_bounds(coding)
        network: dict[str, Any] = {
            "normalize": values["normalize"],
            # folders written before these were options
            "activation": values.get("activation", "tanh"),
            "initial_log_std": values.get("initial_log_std", 0.0),
            "orthogonal": values.get("orthogonal", True),
            "reads_instruction": values.get("reads_instruction", False),
        }
        _require_network(**network)
        if "bins" not in coding:
            sizes = stored_sizes(values, other={})
            return cls(action_tokenizer=ContinuousActions(**bounds), **network, **sizes)
        sizes = stored_sizes({**values, "bins": coding["bins"]}, other={"bins": 2})
        # folders written before decisions were categorical have no counts
        counts = tuple(coding.get("counts", ()))
        tokens = ActionTokenizer(bins=coding["bins"], **bounds, counts=counts)
        if counts and tokens != ActionTokenizer.for_decisions(counts):
            raise ValueError(f"{coding} are not decisions.")
        return cls(action_tokenizer=tokens, **network, **sizes)


def _coding(spec: EnvSpec) -> ActionTokenizer | ContinuousActions:
    space = spec.action_space
    if spec.decisions and max(spec.decisions) <= MOST_BINS:
        return ActionTokenizer.for_decisions(spec.decisions)
    bins = getattr(space, "n", None)
    if bins is None:
        return ContinuousActions.for_space(space)
    return ActionTokenizer.for_space(space, bins=int(bins))


def _require_network(
    *,
    normalize: Any,
    activation: Any,
    initial_log_std: Any,
    orthogonal: Any,
    reads_instruction: Any = False,
) -> None:
    switches = {
        "normalize": normalize,
        "orthogonal": orthogonal,
        "reads_instruction": reads_instruction,
    }
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r} must be true or false.")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}.")
    if type(initial_log_std) not in (int, float) or not abs(initial_log_std) <= LARGEST_LOG_STD:
        raise ValueError(
            f"initial_log_std={initial_log_std!r} must be a number from -{LARGEST_LOG_STD} to "
            f"{LARGEST_LOG_STD}."
        )


class ControlPolicy(TinyPolicy):
    """The policy; see `Policy` for the contract."""

    name = CONTROL_POLICY
    config_class = ControlConfig
    config: ControlConfig
    count: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    missing_bins: torch.Tensor | None
    """Bins [T, V] that decisions with fewer values than the most do not have."""

    def __init__(self, config: ControlConfig) -> None:
        super().__init__(config)
        self.action_tokenizer = config.action_tokenizer
        assert self.feature_size is not None
        outputs = self.tokens_per_chunk
        if isinstance(config.action_tokenizer, ActionTokenizer):
            self.distribution = Categorical
            bins, counts = config.action_tokenizer.bins, config.action_tokenizer.counts
            outputs *= bins
            missing_TV = torch.arange(bins) >= torch.tensor(counts or (bins,))[:, None]
            self.register_buffer(
                "missing_bins",
                missing_TV.repeat(config.chunk_length, 1) if counts else None,
                persistent=False,
            )
        else:
            self.distribution = Gaussian
            self.log_std = nn.Parameter(
                torch.full((self.tokens_per_chunk,), float(config.initial_log_std))
            )
        self.head = nn.Linear(self.feature_size, outputs)
        if config.orthogonal:
            _orthogonal(self.head, gain=HEAD_GAIN)

    def build_backbone(self, config: TinyConfig) -> int:
        """See `TinyPolicy.build_backbone`."""
        assert isinstance(config, ControlConfig)
        features = 0
        if config.image_shape is not None:
            self.pictures = _picture_layers(config.image_shape)
            features += PICTURE_FEATURES
        activation = ACTIVATIONS[config.activation]
        if config.proprioception_size:
            self.states = nn.Sequential(
                nn.Linear(config.proprioception_size, config.width),
                activation(),
                nn.Linear(config.width, config.width),
                activation(),
            )
            features += config.width
            self.register_buffer("count", torch.zeros((), dtype=torch.float64))
            self.register_buffer(
                "mean", torch.zeros(config.proprioception_size, dtype=torch.float64)
            )
            self.register_buffer(
                "variance", torch.ones(config.proprioception_size, dtype=torch.float64)
            )
        if config.reads_instruction:
            self.words = nn.Embedding(config.instruction_buckets, config.width, padding_idx=PADDING)
            self.joined = nn.Sequential(
                nn.Linear(features + config.width, config.width),
                activation(),
                nn.Linear(config.width, config.width),
                activation(),
            )
            features = config.width
        for part in self.modules() if config.orthogonal else ():
            if isinstance(part, nn.Linear | nn.Conv2d):
                _orthogonal(part, gain=HIDDEN_GAIN)
        return features

    def observation_flops(self, instruction_ids: torch.Tensor) -> int | None:
        """See `Policy.observation_flops`; not counted for images."""
        return None if self.config.image_shape is not None else linear_flops(self)

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The last hidden layer [N, D]; see `Policy.features`."""
        parts = []
        if pixel_values is not None:
            pictures = pixel_values.permute(0, 1, 4, 2, 3).flatten(1, 2)
            parts.append(self.pictures(pictures.to(next(self.parameters()).dtype) / 255))
        if proprioception is not None:
            parts.append(self.states(self._standardised(proprioception)))
        if not self.config.reads_instruction:
            return torch.cat(parts, dim=-1)
        return self.joined(torch.cat([*parts, mean_of_words(self.words, instruction_ids)], dim=-1))

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> ActionDistribution:
        """Distribution of chunks; see `Policy.forward`."""
        outputs_ND = self.head(
            self.features(
                pixel_values=pixel_values,
                proprioception=proprioception,
                instruction_ids=instruction_ids,
            )
        )
        if isinstance(self.config.action_tokenizer, ActionTokenizer):
            logits_NTV = outputs_ND.unflatten(-1, (-1, self.config.action_tokenizer.bins))
            if self.missing_bins is not None:
                logits_NTV = logits_NTV.masked_fill(self.missing_bins, -math.inf)
            return Categorical(logits_NTV)
        return Gaussian(outputs_ND, self.log_std)

    def observe(self, proprioception_NP: torch.Tensor, *, ranks: Ranks) -> None:
        """See `Policy.observe`: joins mean and variance (Chan et al. 1979, equation 1.5)."""
        if not self.config.normalize:
            return
        found = proprioception_NP.to(self.mean)
        count = found.new_tensor([float(len(found))])
        total, summed = ranks.sum(count), ranks.sum(found.sum(0))
        if float(total) == 0:
            return
        mean = summed / total
        variance = ranks.sum((found - mean).square().sum(0)) / total
        whole = self.count + total[0]
        apart = mean - self.mean
        scattered = (
            self.variance * self.count
            + variance * total
            + apart.square() * self.count * total / whole
        )
        self.variance.copy_(scattered / whole)
        self.mean.add_(apart * total / whole)
        self.count.copy_(whole)

    @property
    def proprioception_layer(self) -> nn.Linear | None:
        """See `Policy.proprioception_layer`."""
        if not self.config.proprioception_size:
            return None
        layer = self.states[0]
        assert isinstance(layer, nn.Linear)
        return layer

    def drop_head(self) -> None:
        """See `Policy.drop_head`."""
        del self.head
        if isinstance(self.config.action_tokenizer, ContinuousActions):
            del self.log_std

    def _standardised(self, proprioception_NP: torch.Tensor) -> torch.Tensor:
        if not self.config.normalize:
            return proprioception_NP
        deviation_P = (self.variance + EPSILON).sqrt()
        standard_NP = (proprioception_NP.double() - self.mean) / deviation_P
        return standard_NP.clamp(-LARGEST_STATE, LARGEST_STATE).to(proprioception_NP.dtype)


def _picture_layers(shape: tuple[int, int, int]) -> nn.Sequential:
    convolutions = nn.Sequential(
        nn.Conv2d(3 * shape[0], 32, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        outputs = convolutions(torch.zeros(1, 3 * shape[0], *shape[1:])).shape[1]
    return nn.Sequential(*convolutions, nn.Linear(outputs, PICTURE_FEATURES), nn.ReLU())


def _orthogonal(layer: nn.Linear | nn.Conv2d, *, gain: float) -> None:
    if layer.weight.is_meta:  # only shapes are needed
        return
    nn.init.orthogonal_(layer.weight, gain=gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def make_control_policy(
    spec: EnvSpec, path: str | None, /, *, weights: bool = True, **options: Any
) -> ControlPolicy:
    """See `make_tiny`; the options are those of `ControlConfig.for_env`."""
    return make_tiny(ControlPolicy, spec, path, options=options)
