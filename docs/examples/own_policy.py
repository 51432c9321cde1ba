"""A policy of your own, named on the command line; no file of siirl changes.

    siirl train pipeline=grpo env=gymnasium env.id=CartPole-v1 \
        actor_rollout_ref.model.policy=own_policy:make_policy \
        actor_rollout_ref.model.options='{width: 32}'

The reference is called with the environment's spec, a path or None, and `model.options`. It
returns a `siirl.models.Policy`, which maps an observation to a distribution of chunks of actions.
Sampling, log-probs, updates and checkpoints are siirl's.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.base import PROPRIOCEPTION, EnvSpec
from siirl.models import ActionTokenizer, Categorical, Policy
from siirl.models.weights import load_weights


class TwoLayers(Policy):
    """Two layers from the state to the distribution of one action."""

    def __init__(self, *, inputs: int, tokenizer: ActionTokenizer, width: int) -> None:
        super().__init__()
        self.action_tokenizer, self.chunk_length = tokenizer, 1
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.Tanh(),
            nn.Linear(width, tokenizer.dimensions * tokenizer.bins),
        )

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """One constant token: this policy reads no instruction."""
        return np.zeros(1, np.int64)

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> Categorical:
        """One of the bins for each dimension of the action."""
        logits = self.layers(proprioception)
        return Categorical(logits.unflatten(-1, (-1, self.action_tokenizer.bins)))


def make_policy(spec: EnvSpec, path: str | None, width: int = 64) -> TwoLayers:
    """The policy for an environment; with the weights of a checkpoint where a path is
    given.
    """
    policy = TwoLayers(
        inputs=spec.observation_space[PROPRIOCEPTION].shape[0],
        tokenizer=ActionTokenizer.for_space(spec.action_space, bins=32),
        width=width,
    )
    if path is not None:
        load_weights(policy, Path(path))
    return policy
