"""Distributions that policies return: refused before they train, or named in a warning."""

import logging
import math
from dataclasses import dataclass

import pytest
import torch

from siirl.algos import distribution_checks
from siirl.algos.distribution_checks import (
    check_own,
    require_choices,
    require_distribution,
    require_gradient,
)
from siirl.algos.distributions import Categorical, Gaussian, SquashedGaussian
from siirl.errors import ConfigError, TensorError

MEAN = torch.tensor([[0.3, -0.8, 1.4]])
LOG_STD = torch.tensor([[-0.5, 0.1, -1.2]])


def test_a_distribution_with_a_tensor_outside_of_its_fields_is_refused():
    """FSDP2 would not find it in a module's output, and would not reduce gradients."""

    class Own(Gaussian):
        """A user's distribution without the decorator."""

        def __init__(self, mean: torch.Tensor) -> None:
            super().__init__(mean, torch.zeros(()))
            self.shift = mean.mean()

    with pytest.raises(ConfigError, match=r"Own whose shift is not a field: decorate the class"):
        require_distribution(Own(MEAN), policy="Mine")
    assert require_distribution(Gaussian(MEAN, LOG_STD), policy="Mine").shape == (1, 3)


def test_a_policy_that_returns_logits_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"Mine.forward returned a Tensor.*Categorical\(logits\)"):
        require_distribution(torch.zeros(1, 2, 3), policy="Mine")


@pytest.mark.parametrize("shape", [(1, 3, 1), (1,), 3, None])
def test_a_shape_of_other_axes_than_rows_and_tokens_is_refused(shape):
    odd = own(shape=property(lambda self: shape))(MEAN, LOG_STD)
    with pytest.raises(ConfigError, match=r"Own.shape is .*; it must be two numbers"):
        require_distribution(odd, policy="Mine")


def test_choices_of_another_length_are_refused():
    with pytest.raises(TensorError, match="1 chunks of 3 tokens, but the batch has 1 of 4"):
        require_choices(Gaussian(MEAN, LOG_STD), torch.zeros(1, 4))


def own(base=Gaussian, **methods):
    """A user's distribution: `base` with some methods of its own."""
    return dataclass(eq=False)(type("Own", (base,), {"__module__": "own", **methods}))


def checked(kind, caplog) -> list[str]:
    """Warnings about a distribution of a user at two observations."""
    with caplog.at_level(logging.WARNING):
        check_own(kind(MEAN.expand(2, 3), LOG_STD), uniforms=3)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("base", [Gaussian, SquashedGaussian])
def test_a_correct_distribution_passes_without_a_word(base, caplog):
    assert checked(own(base), caplog) == []


def test_a_correct_categorical_passes_without_a_word(caplog):
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    check_own(own(Categorical)(logits), uniforms=3)
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("sample", lambda self, uniforms_NU, *, top_p=1.0: self.mean[:1]),
        ("sample", lambda self, uniforms_NU, *, top_p=1.0: self.mean[:, :1]),
        ("sample", lambda self, uniforms_NU, *, top_p=1.0: self.mean.numpy()),
        ("mode", lambda self: self.mean[:1]),
        ("mode", lambda self: None),
        ("mode", lambda self: self.mean[..., None]),
        ("mode", lambda self: self.mean.long()),
        ("log_prob", lambda self, choices: Gaussian.log_prob(self, choices).sum(-1)),
        ("entropy", lambda self: self.log_std[0, 0]),
        ("entropy", lambda self: 1.5),
    ],
)
def test_a_method_that_returns_another_form_is_refused(method, function, caplog):
    with pytest.raises(ConfigError, match=rf"Own\.{method} returned (the shape|a \w+ instead)"):
        checked(own(**{method: function}), caplog)


def test_samples_that_follow_the_numbers_of_another_row_are_refused(caplog):
    def sample(self, uniforms_NU, *, top_p=1.0):
        return Gaussian.sample(self, uniforms_NU[:1].expand_as(uniforms_NU))

    with pytest.raises(ConfigError, match="changed the choices of other rows"):
        checked(own(sample=sample), caplog)


def test_what_acting_does_not_need_may_be_missing(caplog):
    def entropy(self):
        raise NotImplementedError

    def sample(self, uniforms_NU, *, top_p):
        return Gaussian.sample(self, uniforms_NU)

    assert checked(own(entropy=entropy, sample=sample), caplog) == []


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("sample", lambda self, uniforms_NU, *, top_p=1.0: self.mean * math.nan),
        ("mode", lambda self: self.mean * math.inf),
        ("log_prob", lambda self, choices: Gaussian.log_prob(self, choices) * math.nan),
        ("entropy", lambda self: Gaussian.entropy(self) * math.nan),
    ],
)
def test_a_method_whose_numbers_are_not_finite_is_named(method, function, caplog):
    message = rf"Own\.{method} returned NaN or infinity .*: no field has them: fix `{method}`\."
    with pytest.raises(ConfigError, match=message):
        checked(own(**{method: function}), caplog)


@pytest.mark.parametrize(
    ("mean", "log_std", "cause"),
    [
        (math.nan, 0.0, "the field `mean` already has NaN: fix the policy's `forward`."),
        (math.nan, math.nan, "`mean` and `log_std` already have NaN: fix the policy's `forward`."),
        (math.nan, -math.inf, "the field `mean` already has NaN: fix the policy's `forward`."),
        (
            -math.inf,
            0.0,
            "the field `mean` has infinity: fix the policy's `forward` unless that is meant, as for "
            "impossible choices or a missing bound, or fix `mode`.",
        ),
    ],
)
def test_a_policy_that_gives_its_distribution_bad_numbers_is_told_the_field(mean, log_std, cause):
    given = own()(torch.full_like(MEAN, mean), torch.full_like(LOG_STD, log_std))
    with pytest.raises(ConfigError) as caught:
        check_own(given, uniforms=3)
    assert str(caught.value).startswith("Own.mode returned NaN or infinity at the first obs")
    assert str(caught.value).endswith(cause)


def test_the_field_with_bad_numbers_is_found_within_others():
    @dataclass(eq=False, slots=True)
    class Mixture(Gaussian):
        """Its mode is that of its first part."""

        parts: tuple[Gaussian, ...]
        scales: dict[str, torch.Tensor]

        def mode(self):
            return self.parts[0].mode()

    scales = {"high": torch.tensor(math.nan)}
    given = Mixture(MEAN, LOG_STD, (Gaussian(MEAN * math.nan, LOG_STD),), scales)
    with pytest.raises(
        ConfigError,
        match=r"mode .* the fields `parts\.0\.mean` and `scales\.high` already have NaN",
    ):
        check_own(given, uniforms=3)


def test_logits_of_minus_infinity_may_mark_impossible_choices():
    logits = torch.tensor([[[0.0, 1.0, -math.inf]]]).expand(2, 3, 3)
    check_own(own(Categorical)(logits), uniforms=3)

    def entropy(self):
        log_probs = self.logits.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    with pytest.raises(ConfigError, match=r"entropy .* the field `logits` has .* fix `entropy`\."):
        check_own(own(Categorical, entropy=entropy)(logits), uniforms=3)


def test_a_slow_distribution_is_drawn_from_for_a_bounded_time(caplog, monkeypatch):
    draws = []

    def sample(self, uniforms_NU, *, top_p=1.0):
        draws.append(uniforms_NU)
        return self.mean + 5  # of another distribution, but too few draws say so

    monkeypatch.setattr(distribution_checks, "MOST_S", 0.0)
    assert checked(own(sample=sample), caplog) == []
    assert len(draws) <= 4


def test_samples_of_the_global_generator_are_refused(caplog):
    kind = own(sample=lambda self, uniforms_NU, *, top_p=1.0: torch.randn_like(self.mean))
    with pytest.raises(ConfigError, match="two results for the same uniform numbers"):
        checked(kind, caplog)


@pytest.mark.parametrize(
    "methods",
    [
        {"sample": lambda self, uniforms_NU, *, top_p=1.0: self.mean + 5},
        {"log_prob": lambda self, choices: Gaussian.log_prob(self, choices) + 1},
        {
            "log_prob": lambda self, choices: (
                Gaussian.log_prob(self, choices) + torch.tensor([1.0, -1.0, 0.0])
            )
        },
        {"entropy": lambda self: Gaussian.entropy(self) + 1},
        {"sample": lambda self, uniforms_NU, *, top_p=1.0: 2 * Gaussian.sample(self, uniforms_NU)},
    ],
)
def test_methods_of_different_distributions_are_named(methods, caplog):
    (warning,) = checked(own(**methods), caplog)
    assert "sample, log_prob and entropy are not of one distribution" in warning


def test_siirls_own_distributions_are_not_drawn_from():
    broken = Gaussian(MEAN, torch.full((1, 3), math.nan))
    check_own(broken, uniforms=1)  # too few numbers for a sample


def test_log_probs_without_a_gradient_are_refused_in_a_training_pass():
    distribution = Gaussian(MEAN.clone().requires_grad_(), LOG_STD)
    log_probs = distribution.log_prob(MEAN)
    require_gradient(distribution, log_probs)
    with pytest.raises(
        ConfigError, match=r"Gaussian\.log_prob returned numbers without a gradient"
    ):
        require_gradient(distribution, log_probs.detach())
    with torch.no_grad():
        require_gradient(distribution, log_probs.detach())
