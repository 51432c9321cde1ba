"""Action distributions: the output of a policy, and the interface that rollout and training use.

A trajectory keeps the *choice* behind each sample, so that its log-prob can be computed again. A
choice is a token for a categorical distribution, a number for a Gaussian, several numbers for a
flow (`siirl.algos.flow_distributions`). Samples are drawn from uniform numbers of the episode, by
inverting cumulative distributions, so that they do not depend on the other rows of a batch.
Log-probs of continuous choices are log-densities. Left out: the meaning of a value to an
environment (`siirl.models.action_tokenizer`).
"""

# N observation, T = K*A token of a chunk (one dimension of one action), V bin, U uniform number, J
# number of a choice

import abc
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch.nn import functional

from siirl.algos.log_probs import TokenScores, check_temperature, token_scores
from siirl.algos.sampling import Sampling, draw
from siirl.errors import ConfigError

HALF_STEP = 2.0**-25  # float32 numbers in [0, 1) are multiples of 2^-24, and 0 has no quantile
NODES = 32  # of the quadrature; the entropy's error is below 1e-3 nats up to a deviation of 2
INSIDE = 1 - 1e-3  # demonstrations at the end of a range have no finite inverse of tanh


class ActionDistribution(abc.ABC):
    """Distribution of chunks of actions, given N observations.

    A subclass is a dataclass: FSDP2 looks for the tensors of a module's output in dataclasses, and
    would not reduce gradients otherwise.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(N, T)."""

    @abc.abstractmethod
    def tempered(self, temperature: float) -> Self:
        """The distribution with density proportional to p^(1 / temperature), of what is drawn:
        a token, or the number before tanh.

        Raises:
            ConfigError: A temperature that the distribution cannot have.
        """

    @abc.abstractmethod
    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """Choices [N, T] or [N, T, J] at uniform numbers in [0, 1).

        Args:
            uniforms_NU: `siirl.models.Policy.uniforms_per_chunk` numbers per row.
            top_p: Draw from the smallest set of tokens with this probability.
        """

    @abc.abstractmethod
    def mode(self) -> torch.Tensor:
        """The greedy choices: the most likely ones, or those of a policy that does not explore."""

    @abc.abstractmethod
    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """Log-probs [N, T] of choices."""

    @abc.abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropy [N, T] in nats; the differential entropy for continuous choices."""

    def act(
        self, uniforms_NU: torch.Tensor | None, *, top_p: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choices, sampled or (without uniform numbers) the mode, and their log-probs [N, T]."""
        choices = self.mode() if uniforms_NU is None else self.sample(uniforms_NU, top_p=top_p)
        return choices, self.log_prob(choices)

    def values(self, choices: torch.Tensor) -> torch.Tensor:
        """Input of the policy's action decoder, [N, T]: tokens, or numbers in [-1, 1]."""
        return choices

    def scores(self, choices: torch.Tensor) -> TokenScores:
        """Log-probs and entropy, differentiable, not checked for finite numbers."""
        return TokenScores(log_probs_BT=self.log_prob(choices), entropy_BT=self.entropy())

    @abc.abstractmethod
    def imitation_loss(
        self, values_NT: torch.Tensor, *, generator: torch.Generator
    ) -> torch.Tensor:
        """Mean loss of behaviour cloning on the values of demonstrated actions.

        Args:
            values_NT: Demonstrated actions in the form that `values` returns.
            generator: For a loss that draws numbers.
        """

    @classmethod
    def check_settings(cls, *, temperature: float, top_p: float, entropy_coef: float) -> None:
        """Refuse settings of rollout and loss that have no meaning for this distribution.

        Raises:
            ConfigError: Such a setting.
        """
        if top_p < 1:
            raise ConfigError(
                f"actor_rollout_ref.rollout.top_p={top_p}: {cls.__name__} has no tokens to "
                "restrict; leave it at 1."
            )


@dataclass(eq=False)
class Categorical(ActionDistribution):
    """A token of V bins at each place, independent of the others given the observation.

    Args:
        logits: [N, T, V], of any floating dtype. Minus infinity excludes a bin.
        temperature: Divides the logits.
    """

    logits: torch.Tensor
    temperature: float = field(default=1.0, kw_only=True)

    @property
    def shape(self) -> tuple[int, int]:
        """See `ActionDistribution.shape`."""
        return self.logits.shape[0], self.logits.shape[1]

    def tempered(self, temperature: float) -> Self:
        """See `ActionDistribution.tempered`."""
        return dataclasses.replace(self, temperature=self.temperature * temperature)

    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """See `ActionDistribution.sample`; int64 [N, T]."""
        probabilities_NTV = self._log_probs_NTV().exp()
        return draw(probabilities_NTV, uniforms_NU, sampling=Sampling(top_p=top_p))

    def mode(self) -> torch.Tensor:
        """See `ActionDistribution.mode`."""
        return self._log_probs_NTV().argmax(-1)

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.log_prob`."""
        return self._log_probs_NTV().gather(-1, choices[..., None])[..., 0]

    def entropy(self) -> torch.Tensor:
        """See `ActionDistribution.entropy`."""
        log_probs_NTV = self._log_probs_NTV()
        probabilities_NTV = log_probs_NTV.exp()
        # an excluded bin has no finite logarithm, and contributes neither value nor gradient
        finite_NTV = log_probs_NTV.masked_fill(log_probs_NTV == -math.inf, 0.0)
        entropy_NT: torch.Tensor = -(probabilities_NTV * finite_NTV).sum(-1)
        return entropy_NT

    def scores(self, choices: torch.Tensor) -> TokenScores:
        """See `ActionDistribution.scores`; keeps only the logits for the backward pass."""
        return token_scores(
            logits=self.logits, tokens=choices, temperature=self.temperature, check=False
        )

    def imitation_loss(
        self, values_NT: torch.Tensor, *, generator: torch.Generator
    ) -> torch.Tensor:
        """Cross-entropy; see `ActionDistribution.imitation_loss`."""
        return functional.cross_entropy(self.logits.flatten(0, 1), values_NT.flatten())

    @classmethod
    def check_settings(cls, *, temperature: float, top_p: float, entropy_coef: float) -> None:
        """See `ActionDistribution.check_settings`; all have a meaning."""

    def _log_probs_NTV(self) -> torch.Tensor:
        return torch.log_softmax(self.logits.float() / self.temperature, dim=-1)


@dataclass(eq=False)
class Gaussian(ActionDistribution):
    """An independent normal distribution at each place.

    Args:
        mean: [N, T].
        log_std: [N, T], or a shape that is broadcast to it.
    """

    mean: torch.Tensor
    log_std: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """See `ActionDistribution.shape`."""
        return self.mean.shape[0], self.mean.shape[1]

    def tempered(self, temperature: float) -> Self:
        """See `ActionDistribution.tempered`: N(m, s^2)^(1/t) is proportional to N(m, t s^2)."""
        check_temperature(temperature)
        return dataclasses.replace(self, log_std=self.log_std + 0.5 * math.log(temperature))

    def sample(self, uniforms_NU: torch.Tensor, *, top_p: float = 1.0) -> torch.Tensor:
        """See `ActionDistribution.sample`; float32 [N, T]."""
        return self.mean.float() + self.log_std.float().exp() * standard_normal(uniforms_NU)

    def mode(self) -> torch.Tensor:
        """See `ActionDistribution.mode`."""
        return self.mean.float()

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.log_prob`."""
        return normal_log_prob(choices, mean=self.mean.float(), log_std=self.log_std.float())

    def entropy(self) -> torch.Tensor:
        """See `ActionDistribution.entropy`."""
        return normal_entropy(self.log_std.float().expand(self.shape))

    def imitation_loss(
        self, values_NT: torch.Tensor, *, generator: torch.Generator
    ) -> torch.Tensor:
        """Negative log-likelihood; see `ActionDistribution.imitation_loss`."""
        return -self.log_prob(values_NT).mean()


@dataclass(eq=False)
class SquashedGaussian(Gaussian):
    """tanh of a Gaussian: values in (-1, 1).

    Source: Haarnoja et al. 2018, arXiv 1812.05905, appendix C. A choice is the number before tanh:
    the inverse of a rounded tanh is inaccurate near the ends.
    """

    def mode(self) -> torch.Tensor:
        """The median, tanh of the mean; the density may have two modes."""
        return self.mean.float()

    def values(self, choices: torch.Tensor) -> torch.Tensor:
        """See `ActionDistribution.values`."""
        return torch.tanh(choices)

    def log_prob(self, choices: torch.Tensor) -> torch.Tensor:
        """log N(u; m, s^2) - log(1 - tanh(u)^2), equation 21 of the source."""
        return super().log_prob(choices) - log_slope_of_tanh(choices)

    def entropy(self) -> torch.Tensor:
        """Entropy of the Gaussian plus the mean of log(1 - tanh(u)^2), by Gauss-Hermite quadrature:
        differentiable, without noise.
        """
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        z_J = torch.tensor(nodes, dtype=torch.float32, device=self.mean.device)
        weight_J = torch.tensor(
            weights / weights.sum(), dtype=torch.float32, device=self.mean.device
        )
        std_NT = self.log_std.float().exp().expand(self.shape)
        u_NTJ = self.mean.float()[..., None] + std_NT[..., None] * z_J
        return super().entropy() + (log_slope_of_tanh(u_NTJ) * weight_J).sum(-1)

    def imitation_loss(
        self, values_NT: torch.Tensor, *, generator: torch.Generator
    ) -> torch.Tensor:
        """Negative log-likelihood; see `ActionDistribution.imitation_loss`.

        Values at the ends of the range are moved inside by 0.001.
        """
        return -self.log_prob(torch.atanh(values_NT.clamp(-INSIDE, INSIDE))).mean()


def standard_normal(uniforms: torch.Tensor) -> torch.Tensor:
    """Standard normal numbers, float32: the quantiles at uniform float32 numbers in [0, 1)."""
    quantiles: torch.Tensor = torch.special.ndtri(uniforms.double() + HALF_STEP)
    return quantiles.float()


def normal_log_prob(
    value: torch.Tensor, *, mean: torch.Tensor, log_std: torch.Tensor
) -> torch.Tensor:
    """`-((x - m) / s)^2 / 2 - log s - log(2 pi) / 2`."""
    z = (value - mean) * torch.exp(-log_std)
    return -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)


def normal_entropy(log_std: torch.Tensor) -> torch.Tensor:
    """`log s + log(2 pi e) / 2`."""
    return log_std + 0.5 * math.log(2 * math.pi * math.e)


def log_slope_of_tanh(u: torch.Tensor) -> torch.Tensor:
    """`log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))`, without loss of digits at large u."""
    return 2 * (math.log(2) - u - functional.softplus(-2 * u))
