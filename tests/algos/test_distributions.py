"""Action distributions against torch.distributions, numerical integrals and counts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from siirl.algos.distributions import (
    ActionDistribution,
    Categorical,
    Gaussian,
    SquashedGaussian,
    standard_normal,
)
from siirl.errors import ConfigError

MEAN = torch.tensor([[0.3, -0.8, 1.4]])
LOG_STD = torch.tensor([[-0.5, 0.1, -1.2]])


def gaussians() -> list[ActionDistribution]:
    return [Gaussian(MEAN, LOG_STD), SquashedGaussian(MEAN, LOG_STD)]


def quantiles(count: int) -> torch.Tensor:
    """Uniform numbers at the middle of `count` equal parts, for each of three tokens."""
    return ((torch.arange(count) + 0.5) / count)[:, None].expand(-1, 3)


def test_a_gaussian_has_the_log_prob_and_entropy_of_torch():
    values = torch.tensor([[0.0, 0.5, 2.0]])
    normal = torch.distributions.Normal(MEAN, LOG_STD.exp())
    scores = Gaussian(MEAN, LOG_STD).scores(values)
    torch.testing.assert_close(scores.log_probs_BT, normal.log_prob(values))
    torch.testing.assert_close(scores.entropy_BT, normal.entropy())


def test_a_squashed_gaussian_has_the_log_prob_of_torch():
    before = torch.tensor([[0.0, 0.5, 2.0]])
    normal = torch.distributions.Normal(MEAN, LOG_STD.exp())
    tanh = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.TanhTransform()]
    )
    torch.testing.assert_close(
        SquashedGaussian(MEAN, LOG_STD).log_prob(before), tanh.log_prob(torch.tanh(before))
    )


def test_the_entropy_of_a_squashed_gaussian_is_minus_the_mean_of_its_log_prob():
    distribution = SquashedGaussian(MEAN.expand(20_000, -1), LOG_STD.expand(20_000, -1))
    choices = distribution.sample(quantiles(20_000))
    mean = -distribution.log_prob(choices).mean(0)
    torch.testing.assert_close(distribution.entropy()[0], mean, rtol=0, atol=2e-3)


def test_the_log_prob_of_a_squashed_gaussian_is_finite_where_tanh_rounds_to_one():
    choices = torch.tensor([[30.0, -30.0, 30.0]])
    assert float(torch.tanh(choices)[0, 0]) == 1.0
    assert SquashedGaussian(MEAN, LOG_STD).log_prob(choices).isfinite().all()


@pytest.mark.parametrize("distribution", gaussians(), ids=lambda it: type(it).__name__)
def test_the_density_of_values_integrates_to_one(distribution: ActionDistribution):
    choices = torch.linspace(-12, 12, 200_001)[:, None].expand(-1, 3)
    densities = distribution.log_prob(choices).double().exp()
    for token in range(3):
        values = distribution.values(choices)[:, token].double()
        assert float(torch.trapezoid(densities[:, token], values)) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_tempered_gaussian_has_the_density_to_the_power_of_one_over_the_temperature(temperature):
    values = torch.linspace(-3, 3, 7)[:, None].expand(-1, 3)
    plain = Gaussian(MEAN, LOG_STD).log_prob(values) / temperature
    tempered = Gaussian(MEAN, LOG_STD).tempered(temperature).log_prob(values)
    constant = (tempered - plain)[:1].expand(7, -1)
    torch.testing.assert_close(tempered - plain, constant, rtol=1e-4, atol=1e-4)


def test_samples_of_a_gaussian_have_its_mean_and_deviation():
    samples = Gaussian(MEAN.expand(10_000, -1), LOG_STD).sample(quantiles(10_000))
    torch.testing.assert_close(samples.mean(0), MEAN[0], rtol=0, atol=1e-3)
    torch.testing.assert_close(samples.std(0), LOG_STD[0].exp(), rtol=1e-2, atol=0)


@given(some.floats(0, 1, exclude_max=True, width=32))
def test_every_uniform_number_has_a_finite_normal_quantile(uniform: float):
    assert standard_normal(torch.tensor([uniform])).isfinite().all()


def test_a_uniform_number_next_to_one_has_a_finite_normal_quantile():
    assert float(standard_normal(torch.tensor([1 - 2**-24]))) == pytest.approx(5.42, abs=0.01)


def test_a_categorical_has_the_log_prob_and_entropy_of_torch():
    logits = torch.tensor([[[0.0, 1.0, 2.0], [0.5, -1.0, -torch.inf]]])
    tokens = torch.tensor([[2, 0]])
    theirs = torch.distributions.Categorical(logits=logits)
    ours = Categorical(logits)
    torch.testing.assert_close(ours.log_prob(tokens), theirs.log_prob(tokens))
    expected = -(theirs.probs * theirs.probs.log().nan_to_num(neginf=0.0)).sum(-1)
    for entropy in (ours.entropy(), ours.scores(tokens).entropy_BT):
        torch.testing.assert_close(entropy, expected)


def test_a_categorical_in_bfloat16_is_scored_in_float32():
    logits = torch.tensor([[[0.0, 1.0, 2.0]]], dtype=torch.bfloat16)
    assert Categorical(logits).log_prob(torch.tensor([[1]])).dtype == torch.float32


def test_an_excluded_bin_adds_nothing_to_entropy_and_gradient():
    logits = torch.tensor([[[0.3, -0.4, -torch.inf]]], requires_grad=True)
    alone = torch.tensor([[[0.3, -0.4]]], requires_grad=True)
    for each in (logits, alone):
        Categorical(each).entropy().sum().backward()
    assert Categorical(logits).entropy().item() == pytest.approx(
        Categorical(alone).entropy().item()
    )
    assert logits.grad[0, 0].tolist() == pytest.approx([*alone.grad[0, 0].tolist(), 0.0])


@pytest.mark.parametrize("distribution", gaussians(), ids=lambda it: type(it).__name__)
def test_gradients_of_log_prob_and_entropy_are_those_of_finite_differences(distribution):
    kind, choices = type(distribution), torch.tensor([[0.1, 0.2, 0.9]])

    def loss(mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
        scores = kind(mean, log_std).scores(choices)
        return scores.log_probs_BT.sum() + scores.entropy_BT.sum()

    leaves = [MEAN.clone().requires_grad_(), LOG_STD.clone().requires_grad_()]
    loss(*leaves).backward()
    step = 1e-2
    for place, leaf in enumerate(leaves):
        moved = [value.detach().clone() for value in leaves]
        moved[place][0, 1] += step
        there = loss(*moved)
        moved[place][0, 1] -= 2 * step
        slope = float(there - loss(*moved)) / (2 * step)
        assert slope == pytest.approx(float(leaf.grad[0, 1]), abs=5e-3)


def test_imitation_of_values_at_the_ends_of_the_range_has_a_finite_loss():
    ends = torch.tensor([[-1.0, 1.0, 0.0]])
    loss = SquashedGaussian(MEAN, LOG_STD).imitation_loss(ends, generator=torch.Generator())
    assert loss.isfinite()


@pytest.mark.parametrize("kind", [Gaussian, SquashedGaussian])
def test_a_nucleus_of_a_continuous_distribution_is_refused(kind: type[ActionDistribution]):
    with pytest.raises(ConfigError, match=r"rollout.top_p=0.9: .* leave it at 1"):
        kind.check_settings(temperature=1.0, top_p=0.9, entropy_coef=0.0)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match="temperature=0"):
        Gaussian(MEAN, LOG_STD).tempered(0.0)


def test_entropy_of_a_gaussian_grows_by_half_the_log_of_the_temperature():
    hot = Gaussian(MEAN, LOG_STD).tempered(4.0).entropy()
    torch.testing.assert_close(hot, Gaussian(MEAN, LOG_STD).entropy() + math.log(2))
