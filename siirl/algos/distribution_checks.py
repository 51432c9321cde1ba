"""Checks of the distributions that policies return, of users' own ones in particular.

A wrong shape, numbers drawn from elsewhere than the episode, or an entropy of another distribution
would train without a symptom. `check_own` looks for them once, at the first observations.
"""

# N observation, T token of a chunk, U uniform number, K draw

import dataclasses
import logging
from typing import Any, TypeGuard

import torch

from siirl.algos.distributions import ActionDistribution
from siirl.errors import ConfigError, TensorError

logger = logging.getLogger(__name__)

DRAWS = 256
TOLERANCE = 0.1  # nats: an entropy may be an estimate, as SquashedGaussian's
STANDARD_ERRORS = 6


def require_distribution(output: Any, *, policy: str) -> ActionDistribution:
    """The output of a policy.

    Raises:
        ConfigError: It is not a distribution, or FSDP2 would not find its tensors.
    """
    if not isinstance(output, ActionDistribution):
        raise ConfigError(
            f"{policy}.forward returned a {type(output).__name__}: it must return an action "
            "distribution, for example siirl.models.Categorical(logits)."
        )
    fields = {field.name for field in dataclasses.fields(output)} if _is_data(output) else set()
    if hidden := sorted(set(vars(output)) - fields):
        raise ConfigError(
            f"{policy}.forward returned a {type(output).__name__} whose {', '.join(hidden)} is not "
            "a field: decorate the class with dataclasses.dataclass, because sharded training "
            "finds tensors in fields only."
        )
    return output


def require_scores(distribution: ActionDistribution, **scores: torch.Tensor) -> None:
    """Check that each method named in `scores` returned a number per token, [N, T].

    Raises:
        ConfigError: A method of the distribution returned another shape.
    """
    for method, found in scores.items():
        if found.shape != distribution.shape:
            raise ConfigError(
                f"{type(distribution).__name__}.{method} returned the shape {tuple(found.shape)}; "
                f"expected {distribution.shape}: rows, and tokens of a chunk."
            )


def require_gradient(distribution: ActionDistribution, log_probs: torch.Tensor) -> None:
    """Raise ConfigError for log-probs of a training pass that no gradient leaves."""
    if torch.is_grad_enabled() and not log_probs.requires_grad:
        raise ConfigError(
            f"{type(distribution).__name__}.log_prob returned numbers without a gradient, so "
            "nothing would be learnt: compute them from the policy's outputs, without detach() "
            "or no_grad()."
        )


def require_choices(distribution: ActionDistribution, choices: torch.Tensor) -> None:
    """Raise TensorError for choices with another number of rows or tokens."""
    rows, tokens = distribution.shape
    if (rows, tokens) != tuple(choices.shape[:2]):
        raise TensorError(
            f"The policy's distribution has {rows} chunks of {tokens} tokens, but the batch has "
            f"{choices.shape[0]} of {choices.shape[1]}: it comes from a policy with another chunk "
            "length or number of action dimensions."
        )


def check_own(distribution: ActionDistribution, *, uniforms: int) -> None:
    """Draw from a user's distribution, and compare its methods with each other.

    Warns if its entropy is not the mean of `-log_prob` over its samples: one of the three methods
    is then of another distribution, unless the entropy is an estimate. siirl's own distributions
    are not checked.

    Args:
        distribution: Of some observations.
        uniforms: `siirl.models.Policy.uniforms_per_chunk`.

    Raises:
        ConfigError: Choices of another shape, or other choices for the same uniform numbers.
    """
    if type(distribution).__module__.startswith("siirl."):
        return
    name = type(distribution).__name__
    rows, tokens = distribution.shape
    most_likely = distribution.mode()
    generator = torch.Generator().manual_seed(0)
    uniforms_KNU = torch.rand((DRAWS, rows, uniforms), generator=generator).to(most_likely.device)
    samples = [distribution.sample(uniforms_NU) for uniforms_NU in uniforms_KNU]
    for method, choices in (("sample", samples[0]), ("mode", most_likely)):
        if tuple(choices.shape[:2]) != (rows, tokens):
            raise ConfigError(
                f"{name}.{method} returned the shape {tuple(choices.shape)}; its first two axes "
                f"must be {(rows, tokens)}: rows, and tokens of a chunk."
            )
    if not torch.equal(distribution.sample(uniforms_KNU[0]), samples[0]):
        raise ConfigError(
            f"{name}.sample returned two results for the same uniform numbers: draw from its "
            "argument alone, by inverting the cumulative distribution, so that an episode can be "
            "repeated and does not depend on others."
        )
    require_scores(
        distribution, log_prob=distribution.log_prob(samples[0]), entropy=distribution.entropy()
    )
    surprise_K = torch.stack([-distribution.log_prob(each).double().mean() for each in samples])
    entropy = float(distribution.entropy().double().mean())
    mean, error = float(surprise_K.mean()), float(surprise_K.std()) / DRAWS**0.5
    if abs(mean - entropy) > TOLERANCE + STANDARD_ERRORS * error:
        logger.warning(
            "%s.entropy is %.3g nats on average, but the mean of -log_prob over %d samples is "
            "%.3g: unless the entropy is an estimate, sample, log_prob and entropy are not of one "
            "distribution.",
            name,
            entropy,
            DRAWS,
            mean,
        )


def _is_data(output: ActionDistribution) -> TypeGuard[Any]:
    return dataclasses.is_dataclass(output)
