"""A flow policy of your own, trained with log-probs by Flow-SDE; no file of siirl changes.

    siirl train pipeline=grpo env=gymnasium env.id=Pendulum-v1 \
        actor_rollout_ref.model.policy=own_flow_policy:make_policy \
        actor_rollout_ref.model.options='{steps: 4}'

The policy gives a network for the velocity and features of the observation. The distribution
(`siirl.algos.flow_distributions`) samples chunks, and computes log-probs of the choices that
rollout stored.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.base import PROPRIOCEPTION, EnvSpec
from siirl.algos.flow_distributions import FlowSDE
from siirl.models import ContinuousActions, Policy
from siirl.models.weights import load_weights


class Velocity(nn.Module):
    """v(x, t) [N, S, T] given features [N, D], at S places and times of N observations."""

    def __init__(self, *, features: int, tokens: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features + tokens + 1, 64), nn.SiLU(), nn.Linear(64, tokens)
        )

    def forward(
        self, context_ND: torch.Tensor, x_NST: torch.Tensor, time_NS: torch.Tensor
    ) -> torch.Tensor:
        """See the class."""
        seen_NSD = context_ND[:, None].expand(-1, x_NST.shape[1], -1)
        return self.layers(torch.cat([seen_NSD, x_NST, time_NS[..., None]], dim=-1))


class OwnFlow(Policy):
    """Denoises a chunk of two actions in a few steps."""

    distribution = FlowSDE

    def __init__(self, *, inputs: int, coding: ContinuousActions, steps: int) -> None:
        super().__init__()
        self.action_tokenizer, self.chunk_length, self.steps = coding, 2, steps
        self.encoder = nn.Sequential(nn.Linear(inputs, 64), nn.SiLU())
        self.velocity = Velocity(features=64, tokens=self.tokens_per_chunk)

    @property
    def uniforms_per_chunk(self) -> int:
        """See `Policy.uniforms_per_chunk`."""
        return FlowSDE.uniforms(tokens=self.tokens_per_chunk, unseen=0, steps=self.steps)

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """One constant token: this policy reads no instruction."""
        return np.zeros(1, np.int64)

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> FlowSDE:
        """A flow of chunks of T numbers in [-1, 1]."""
        return FlowSDE(
            self.velocity,
            self.encoder(proprioception),
            tokens=self.tokens_per_chunk,
            steps=self.steps,
            noise=0.5,
        )


def make_policy(spec: EnvSpec, path: str | None, steps: int = 4) -> OwnFlow:
    """The policy for an environment, with the weights of a checkpoint if a path is given."""
    policy = OwnFlow(
        inputs=spec.observation_space[PROPRIOCEPTION].shape[0],
        coding=ContinuousActions.for_space(spec.action_space),
        steps=steps,
    )
    if path is not None:
        load_weights(policy, Path(path))
    return policy
