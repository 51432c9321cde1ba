"""Checks of the distributions that policies return, which may be user-defined.

A wrong shape, numbers drawn from elsewhere than the episode, or an entropy of another distribution
would train without a symptom. `check_own` looks for them once, at the first observations.
"""

# N observation, T token of a chunk, U uniform number, K draw

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from siirl.algos.distributions import ActionDistribution
from siirl.errors import ConfigError, TensorError

logger = logging.getLogger(__name__)

DRAWS = 256
FEWEST_DRAWS = 32
MOST_S = 2.0  # a flow runs its network in each draw
TOLERANCE = 0.1  # nats: an entropy may be an estimate, as SquashedGaussian's
STANDARD_ERRORS = 6


def require_distribution(output: Any, *, policy: str) -> ActionDistribution:
    """The output of a policy.

    Raises:
        ConfigError: It is not a distribution, its shape has not two axes, or FSDP2 would not find
            its tensors.
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
    shape: Any = output.shape
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise ConfigError(
            f"{type(output).__name__}.shape is {shape!r}; it must be two numbers: "
            "observations, and tokens of a chunk."
        )
    return output


def require_scores(distribution: ActionDistribution, **scores: Any) -> None:
    """Check that each method named in `scores` returned a number per token, [N, T].

    Raises:
        ConfigError: A method of the distribution returned another shape.
    """
    for method, found in scores.items():
        if not isinstance(found, torch.Tensor) or found.shape != distribution.shape:
            raise ConfigError(
                f"{type(distribution).__name__}.{method} returned {_form(found)}; "
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

    Warns if the entropy of a token is not the mean of `-log_prob` over its samples: one of the
    three methods is then of another distribution, unless the entropy is an estimate. siirl's own
    distributions are not checked. Left out: the order of `mode` and `tempered`, and log-probs that
    depend on other rows.

    Args:
        distribution: Of some observations.
        uniforms: `siirl.models.Policy.uniforms_per_chunk`.

    Raises:
        ConfigError: Choices that are no tensor or of another shape, other choices for the same
            uniform numbers, choices that depend on the numbers of another row, or choices or scores
            that are not finite.
    """
    if type(distribution).__module__.startswith("siirl."):
        return
    most_likely = _returned(distribution, "mode", distribution.mode())
    generator = torch.Generator().manual_seed(0)
    uniforms_KNU = torch.rand((DRAWS, distribution.shape[0], uniforms), generator=generator)
    uniforms_KNU = uniforms_KNU.to(most_likely.device)

    def draw(uniforms_NU: torch.Tensor) -> torch.Tensor:
        return _returned(distribution, "sample", distribution.sample(uniforms_NU, top_p=1.0))

    first = draw(uniforms_KNU[0])
    if (most_likely.shape, most_likely.dtype) != (first.shape, first.dtype):
        raise ConfigError(
            f"{type(distribution).__name__}.mode returned {_form(most_likely)}, and sample "
            f"{_form(first)}: both return choices, in one form."
        )
    _require_finite(distribution, mode=most_likely, sample=first)
    log_probs_NT = distribution.log_prob(first)
    require_scores(distribution, log_prob=log_probs_NT)
    _require_finite(distribution, log_prob=log_probs_NT)
    _check_draws(distribution, draw, first, uniforms_KNU)
    samples = [first]
    until = time.monotonic() + MOST_S
    for uniforms_NU in uniforms_KNU[1:]:
        if time.monotonic() > until:
            break
        samples.append(draw(uniforms_NU))
    if len(samples) >= FEWEST_DRAWS:
        _compare_entropy(distribution, samples)


def _check_draws(
    distribution: ActionDistribution,
    draw: Callable[[torch.Tensor], torch.Tensor],
    first: torch.Tensor,
    uniforms_KNU: torch.Tensor,
) -> None:
    """Raise ConfigError unless the choices of a row are a function of its uniform numbers."""
    name = type(distribution).__name__
    if not torch.equal(draw(uniforms_KNU[0]), first):
        raise ConfigError(
            f"{name}.sample returned two results for the same uniform numbers: draw from its "
            "argument alone, by inverting the cumulative distribution, so that an episode can be "
            "repeated and does not depend on others."
        )
    other_NU = uniforms_KNU[0].clone()
    other_NU[0] = uniforms_KNU[1, 0]
    if not torch.equal(draw(other_NU)[1:], first[1:]):
        raise ConfigError(
            f"{name}.sample changed the choices of other rows with the uniform numbers of the "
            "first: a row's choices must depend on its own numbers alone, because the rows of a "
            "batch are different episodes."
        )


def _compare_entropy(distribution: ActionDistribution, samples: Sequence[torch.Tensor]) -> None:
    try:
        entropy_NT = distribution.entropy()
    except NotImplementedError:  # evaluations need none
        return
    require_scores(distribution, entropy=entropy_NT)
    _require_finite(distribution, entropy=entropy_NT)
    surprise_KT = torch.stack([-distribution.log_prob(each).double().mean(0) for each in samples])
    entropy_T, mean_T = entropy_NT.double().mean(0), surprise_KT.mean(0)
    error_T = surprise_KT.std(0) / len(samples) ** 0.5
    gap_T = (mean_T - entropy_T).abs() - TOLERANCE - STANDARD_ERRORS * error_T
    token = int(gap_T.argmax())
    if float(gap_T[token]) > 0:
        logger.warning(
            "%s.entropy of token %d is %.3g nats on average, but the mean of -log_prob over %d "
            "samples is %.3g: unless the entropy is an estimate, sample, log_prob and entropy are "
            "not of one distribution.",
            type(distribution).__name__,
            token,
            float(entropy_T[token]),
            len(samples),
            float(mean_T[token]),
        )


def _require_finite(distribution: ActionDistribution, **found: torch.Tensor) -> None:
    """Raise ConfigError for NaN or infinity among the results of the methods named in `found`."""
    for method, numbers in found.items():
        if bool(torch.isfinite(numbers).all()):
            continue
        raise ConfigError(
            f"{type(distribution).__name__}.{method} returned NaN or infinity at the first "
            f"observations: {_cause(distribution, method)}."
        )


def _cause(distribution: ActionDistribution, method: str) -> str:
    """What gave the results of a method NaN or infinity, and the remedy."""
    tensors = dict(_tensors("", distribution))
    if wrong := [name for name, each in tensors.items() if bool(each.isnan().any())]:
        fields, have = _named(wrong)
        return f"{fields} already {have} NaN: fix the policy's `forward`"
    if infinite := [name for name, each in tensors.items() if bool(each.isinf().any())]:
        fields, have = _named(infinite)
        return (
            f"{fields} {have} infinity: fix the policy's `forward` unless that is meant, as for "
            f"impossible choices or a missing bound, or fix `{method}`"
        )
    return f"no field has them: fix `{method}`"


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a value and in its parts, to any depth, with their dotted names."""
    parts: Mapping[Any, Any] = {}
    if isinstance(value, torch.Tensor):
        yield name, value
    elif dataclasses.is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        parts = value
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    for part, inner in parts.items():
        yield from _tensors(f"{name}.{part}" if name else str(part), inner)


def _named(fields: Sequence[str]) -> tuple[str, str]:
    """Fields as the subject of a sentence, and its verb."""
    names = " and ".join(f"`{field}`" for field in fields)
    return (f"the fields {names}", "have") if len(fields) > 1 else (f"the field {names}", "has")


def _returned(distribution: ActionDistribution, method: str, choices: Any) -> torch.Tensor:
    """Choices of a user's method.

    Raises:
        ConfigError: They are no tensor, or of another shape.
    """
    rows, tokens = distribution.shape
    if not isinstance(choices, torch.Tensor) or tuple(choices.shape[:2]) != (rows, tokens):
        raise ConfigError(
            f"{type(distribution).__name__}.{method} returned {_form(choices)}; its first two axes "
            f"must be {(rows, tokens)}: rows, and tokens of a chunk."
        )
    return choices


def _form(found: Any) -> str:
    if isinstance(found, torch.Tensor):
        return f"the shape {tuple(found.shape)} of {str(found.dtype).removeprefix('torch.')}"
    return f"a {type(found).__name__} instead of a tensor"


def _is_data(output: ActionDistribution) -> TypeGuard[Any]:
    return dataclasses.is_dataclass(output)
