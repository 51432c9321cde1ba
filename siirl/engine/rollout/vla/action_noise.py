"""Random numbers that choose the actions of an episode; they may be correlated over time.

Independent noise averages out over an episode: rollouts from one start state end in similar states,
and a group with equal rewards gives no gradient. Noise that persists over several actions moves the
arm to other places (Eberhard et al. 2023, openreview hQ9V5QN27eS; for PPO Hollenstein et al. 2024,
arXiv 2312.11091). Each action keeps its distribution given its observation, and log-probs and
ratios use only that distribution. As in those papers, they ignore the dependence between successive
actions.
"""

# K action of a chunk, A action dimension, J number that chooses one dimension of an action

import math

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.models.policy import Policy

BELOW_ONE = np.float32(1 - 2**-24)


class ActionNoise:
    """Uniform numbers for the chunks of one episode.

    With correlation r, the numbers of a dimension are Phi(z) of a stationary Gaussian process
    `z_{t+1} = r z_t + sqrt(1 - r^2) e_t` over the actions t of the episode.

    Args:
        request: Gives the episode's seed, correlation r, and `greedy`, which draws no numbers.
        policy: Defines how many numbers choose a chunk.
    """

    def __init__(self, request: EpisodeRequest, policy: Policy) -> None:
        self.generator = np.random.default_rng(request.policy_seed)
        self.correlation = request.noise_correlation
        self.numbers = policy.uniforms_per_chunk
        self.actions = policy.chunk_length
        self.dimensions = policy.action_tokenizer.dimensions
        self.greedy = request.greedy
        self.last_JA: NDArray[np.float64] | None = None

    def chunk(self) -> NDArray[np.float32] | None:
        """The next `Policy.uniforms_per_chunk` numbers in [0, 1).

        J * K * A of them are correlated. Further ones belong to no action dimension and are
        independent.
        """
        if self.greedy:
            return None
        if self.correlation == 0:
            return self.generator.random(self.numbers, dtype=np.float32)
        per_number = self.actions * self.dimensions
        noise_JKA = self.generator.standard_normal(
            (self.numbers // per_number, self.actions, self.dimensions)
        )
        for action in range(self.actions):
            if self.last_JA is not None:
                noise_JKA[:, action] *= math.sqrt(1 - self.correlation**2)
                noise_JKA[:, action] += self.correlation * self.last_JA
            self.last_JA = noise_JKA[:, action]
        quantiles_JKA = torch.special.ndtr(torch.from_numpy(noise_JKA)).numpy()
        correlated = np.minimum(quantiles_JKA.astype(np.float32), BELOW_ONE).reshape(-1)
        rest = self.generator.random(self.numbers % per_number, dtype=np.float32)
        return np.concatenate([correlated, rest])
