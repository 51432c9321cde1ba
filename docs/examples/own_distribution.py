"""An action distribution of your own; no file of siirl changes.

    siirl train pipeline=ppo trainer=mujoco_control env=gymnasium env.id=Pendulum-v1 \
        actor_rollout_ref.model.policy=own_distribution:make_policy \
        actor_rollout_ref.model.options='{}'

A Laplace distribution at each dimension of an action: its tails are heavier than a Gaussian's, so
that far actions are tried more often.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.base import PROPRIOCEPTION, EnvSpec
from siirl.models import ActionDistribution, ContinuousActions, Policy
from siirl.models.weights import load_weights


@dataclass(eq=False)  # sharded training finds a policy's tensors in fields of dataclasses
class Laplace(ActionDistribution):
    """exp(-|x - m| / b) / (2 b) at each of [N, T] places."""

    mean: torch.Tensor
    log_scale: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, T)."""
        return self.mean.shape[0], self.mean.shape[1]

    def tempered(self, temperature: float) -> "Laplace":
        """p^(1/t) has the scale t b."""
        return Laplace(self.mean, self.log_scale + math.log(temperature))

    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """Quantiles: m - b sign(u - 1/2) log(1 - 2 |u - 1/2|)."""
        side_NT = uniforms_NU - 0.5 + 2.0**-25  # a uniform number of 0 has no quantile
        distance_NT = -torch.log1p(-2 * side_NT.abs())
        return self.mean + self.log_scale.exp() * side_NT.sign() * distance_NT

    def mode(self) -> torch.Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """-|x - m| / b - log(2 b)."""
        distance_NT = (choices - self.mean).abs() * torch.exp(-self.log_scale)
        return -distance_NT - self.log_scale - math.log(2)

    def entropy(self) -> torch.Tensor:
        """1 + log(2 b)."""
        return (1 + math.log(2) + self.log_scale).expand(self.shape)

    def imitation_loss(
        self, values_NT: torch.Tensor, *, generator: torch.Generator
    ) -> torch.Tensor:
        """Negative log-likelihood of demonstrated values, for a warm start."""
        return -self.log_prob(values_NT).mean()


class TwoLayers(Policy):
    """Two layers from the state to the distribution of one action; PPO's critic has such a layer
    of its own.
    """

    distribution = Laplace
    feature_size = 64

    def __init__(self, *, inputs: int, coding: ContinuousActions) -> None:
        super().__init__()
        self.action_tokenizer, self.chunk_length = coding, 1
        self.trunk = nn.Sequential(nn.Linear(inputs, self.feature_size), nn.Tanh())
        self.head = nn.Linear(self.feature_size, coding.dimensions)
        self.log_scale = nn.Parameter(torch.full((coding.dimensions,), -1.0))

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """One constant token: this policy reads no instruction."""
        return np.zeros(1, np.int64)

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Laplace:
        """One number for each dimension of the action."""
        return Laplace(self.head(self.trunk(proprioception)), self.log_scale)

    def features(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """What a critic reads, [N, feature_size]."""
        return self.trunk(proprioception)

    def drop_head(self) -> None:
        """A critic does not act."""
        del self.head, self.log_scale


def make_policy(spec: EnvSpec, path: str | None) -> TwoLayers:
    """The policy for an environment, with the weights of a checkpoint if a path is given."""
    policy = TwoLayers(
        inputs=spec.observation_space[PROPRIOCEPTION].shape[0],
        coding=ContinuousActions.for_space(spec.action_space),
    )
    if path is not None:
        load_weights(policy, Path(path))
    return policy
