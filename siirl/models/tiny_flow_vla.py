"""The shipped tiny flow policy: the tiny VLA's backbone, and a head that denoises chunks of
actions.

It is cloned by flow matching and improved by RL with one of three kinds of noise
(`siirl.algos.flow_distributions`): `noise=end`, `learnt` (Flow-Noise) or `sde` (Flow-SDE). The head
is small, because a sampled chunk takes `steps` passes through it. It has two hidden layers; the
part of the first that reads the observation's features is computed once for all steps.
"""

# N observation, T token of a chunk, S step of denoising, D feature, E entry of a time's embedding

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from envs.base import EnvSpec
from siirl.algos.flow_distributions import FlowDistribution, FlowEnd, FlowNoise, FlowSDE
from siirl.models.action_tokenizer import ContinuousActions
from siirl.models.flops import linear_flops
from siirl.models.flow_noise import (
    DISTRIBUTIONS,
    END,
    LEARNING,
    LEARNT,
    NOISE_LEVEL,
    SDE,
    require_noise,
    require_read,
)
from siirl.models.tiny_backbone import (
    TinyConfig,
    TinyPolicy,
    conv_flops,
    observed_sizes,
    require_sizes,
)
from siirl.models.tiny_checkpoint import make_tiny, stored_bounds, stored_sizes

TINY_FLOW_VLA = "tiny_flow_vla"
FREQUENCIES = 4  # of a time's embedding: half a period to four periods in [0, 1]
# Bounds of a learnt step's deviation, in units of half an action's range; new weights begin with
# their geometric mean, 0.2. RLinf's bounds are 0.08 and 0.16 (`noise_logvar_range`). More noise
# explores more actions, and the shipped weights' sampled actions succeed as often: in 38 % of 300
# held-out episodes, against 37 % of 180 with RLinf's bounds.
NOISE_STD = (0.1, 0.4)
SAMPLING = ("steps", "noise", "noise_level", "noise_std")
"""Options that stored weights do not determine."""


@dataclass(frozen=True, kw_only=True)
class TinyFlowVLAConfig(TinyConfig):
    """Shape of a TinyFlowVLA, and how it samples; saved next to its weights."""

    action_tokenizer: ContinuousActions
    steps: int = 4  # piRL's on LIBERO
    noise: str = END
    noise_level: float = NOISE_LEVEL
    """Read with noise=sde."""
    noise_std: tuple[float, float] = NOISE_STD
    """Bounds of a learnt deviation; read with noise=end and noise=learnt."""

    @classmethod
    def for_env(
        cls,
        spec: EnvSpec,
        *,
        chunk_length: int = 8,
        width: int = 256,
        instruction_length: int = 24,
        steps: int = 4,
        noise: str = END,
        noise_level: float = NOISE_LEVEL,
        noise_std: Sequence[float] = NOISE_STD,
    ) -> TinyFlowVLAConfig:
        """The configuration that fits an environment's observations and actions.

        Raises:
            ValueError: An observation space without images and without proprioception, discrete
                actions, or an invalid option.
        """
        require_sizes(
            {
                "chunk_length": (chunk_length, 1),
                "width": (width, 1),
                "instruction_length": (instruction_length, 1),
                "steps": (steps, 1),
            }
        )
        require_noise(noise, noise_level, noise_std)
        return cls(
            action_tokenizer=ContinuousActions.for_space(spec.action_space),
            chunk_length=chunk_length,
            width=width,
            instruction_length=instruction_length,
            steps=steps,
            noise=noise,
            noise_level=noise_level,
            noise_std=(noise_std[0], noise_std[1]),
            **observed_sizes(spec),
        )

    @classmethod
    def from_json(cls, values: dict) -> TinyFlowVLAConfig:
        """The inverse of `to_json`.

        Raises KeyError, TypeError or ValueError for values that do not describe a TinyFlowVLA.
        """
        sizes = stored_sizes(values, other={"steps": 1})
        low, high = values["noise_std"]
        require_noise(values["noise"], values["noise_level"], (low, high))
        return cls(
            action_tokenizer=ContinuousActions(**stored_bounds(values["action_tokenizer"])),
            noise=values["noise"],
            noise_level=values["noise_level"],
            noise_std=(low, high),
            steps=values["steps"],
            **sizes,
        )


class TinyFlowVLA(TinyPolicy):
    """The policy; see `Policy` for the contract."""

    name = TINY_FLOW_VLA
    config_class = TinyFlowVLAConfig
    config: TinyFlowVLAConfig
    distribution: type[FlowDistribution]

    def __init__(self, config: TinyFlowVLAConfig) -> None:
        super().__init__(config)
        self.action_tokenizer = config.action_tokenizer
        self.distribution = DISTRIBUTIONS[config.noise]
        assert self.feature_size is not None
        self.velocity = VelocityNetwork(
            features=self.feature_size, tokens=self.tokens_per_chunk, width=config.width
        )
        if config.noise in LEARNING:
            self.deviation = nn.Linear(self.feature_size + 2 * FREQUENCIES, self.tokens_per_chunk)
            nn.init.zeros_(self.deviation.weight)
            nn.init.zeros_(self.deviation.bias)

    @property
    def uniforms_per_chunk(self) -> int:
        """See `Policy.uniforms_per_chunk`."""
        return self.distribution.uniforms(
            tokens=self.tokens_per_chunk, unseen=0, steps=self.config.steps
        )

    def observation_flops(self, instruction_ids: torch.Tensor) -> int:
        """See `Policy.observation_flops`: operations of a scored choice."""
        steps = self.config.steps if self.config.noise in LEARNING else 1
        of_further_steps = (steps - 1) * self.velocity.flops_per_step()
        if self.config.noise == LEARNT:
            of_further_steps += (steps - 1) * linear_flops(self.deviation)
        return conv_flops(self) + linear_flops(self) + of_further_steps

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> FlowDistribution:
        """A flow of chunks of T numbers; see `Policy.forward`."""
        features_ND = self.features(
            pixel_values=pixel_values,
            proprioception=proprioception,
            instruction_ids=instruction_ids,
        )
        tokens, steps = self.tokens_per_chunk, self.config.steps
        context_ND = self.velocity.observed(features_ND)
        if self.config.noise == SDE:
            return FlowSDE(
                self.velocity,
                context_ND,
                tokens=tokens,
                steps=steps,
                noise=self.config.noise_level,
            )
        if self.config.noise == END:
            log_std_NT = self._log_std(features_ND, first_step=steps - 1)[:, 0]
            return FlowEnd(
                self.velocity, context_ND, tokens=tokens, steps=steps, log_std=log_std_NT
            )
        return FlowNoise(
            self.velocity,
            context_ND,
            tokens=tokens,
            steps=steps,
            log_std=self._log_std(features_ND),
        )

    def drop_head(self) -> None:
        """See `Policy.drop_head`."""
        del self.velocity
        if self.config.noise in LEARNING:
            del self.deviation

    def _log_std(self, features_ND: torch.Tensor, *, first_step: int = 0) -> torch.Tensor:
        """Log-deviations [N, S, T] within their bounds, by a tanh as in ReinFlow and RLinf."""
        steps = self.config.steps
        time_S = torch.arange(first_step, steps, device=features_ND.device) / steps
        time_NSE = embed_time(time_S).to(features_ND.dtype).expand(len(features_ND), -1, -1)
        seen_NSD = features_ND[:, None].expand(-1, len(time_S), -1)
        share_NST = (torch.tanh(self.deviation(torch.cat([seen_NSD, time_NSE], -1))) + 1) / 2
        low, high = (math.log(bound) for bound in self.config.noise_std)
        return low + (high - low) * share_NST

    def sampled_with(self, config: TinyFlowVLAConfig, options: Mapping[str, Any]) -> TinyFlowVLA:
        """This policy, with the sampling options of `config` that `options` names.

        Raises:
            ValueError: A learnt deviation for weights that have none.
        """
        asked = {name: getattr(config, name) for name in SAMPLING if name in options}
        if asked.get("noise") in LEARNING and self.config.noise == SDE:
            raise ValueError(
                f"noise={asked['noise']!r} needs weights that were made with a learnt deviation: "
                "leave it at 'sde', or start from other weights (actor_rollout_ref.model.path)."
            )
        changed = TinyFlowVLA(dataclasses.replace(self.config, **asked))
        weights = self.state_dict()
        changed.load_state_dict({name: weights[name] for name in changed.state_dict()})
        return changed


class VelocityNetwork(nn.Module):
    """v(x, t): the contract of `siirl.algos.flow_distributions.Velocity`.

    Its context is `observed` of the features.
    """

    def __init__(self, *, features: int, tokens: int, width: int) -> None:
        super().__init__()
        self.observed = nn.Linear(features, width)
        self.moved = nn.Linear(tokens + 2 * FREQUENCIES, width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, tokens)

    def forward(
        self, context_ND: torch.Tensor, x_NST: torch.Tensor, time_NS: torch.Tensor
    ) -> torch.Tensor:
        """Velocities [N, S, T]."""
        place = torch.cat([x_NST, embed_time(time_NS)], dim=-1).to(context_ND.dtype)
        hidden = functional.silu(context_ND[:, None] + self.moved(place))
        return self.out(functional.silu(self.hidden(hidden)))

    def flops_per_step(self) -> int:
        """Operations of one additional step for an observation."""
        return sum(linear_flops(layer) for layer in (self.moved, self.hidden, self.out))


def embed_time(time: torch.Tensor) -> torch.Tensor:
    """Sines and cosines [..., E] of times in [0, 1]."""
    angles = time[..., None] * math.pi * 2.0 ** torch.arange(FREQUENCIES, device=time.device)
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)


def make_tiny_flow_vla(
    spec: EnvSpec, path: str | None, /, *, weights: bool = True, **options: Any
) -> TinyFlowVLA:
    """See `make_tiny`; sampling options also apply to stored weights.

    Raises:
        ValueError: An invalid option (`TinyFlowVLAConfig.for_env`), or one that the policy's kind
            of noise does not read.
    """
    policy = make_tiny(TinyFlowVLA, spec, path, options=options)
    if path is not None and set(options) & set(SAMPLING):
        policy = policy.sampled_with(TinyFlowVLAConfig.for_env(spec, **options), options)
    require_read(options, noise=policy.config.noise)
    return policy
