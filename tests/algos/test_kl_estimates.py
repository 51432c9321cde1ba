"""KL estimators, their gradients, and the controllers of the coefficient."""

import math

import pytest
import torch
from hypothesis import given
from ragged import QUICK, SEEDS, ragged

from siirl.algos.kl import KL_NAMES, AdaptiveKLController, FixedKLController, kl_estimate
from siirl.errors import ConfigError, TensorError, UnknownNameError

FORMULAS = {
    "k1": lambda r: r,
    "kl": lambda r: r,
    "abs": abs,
    "k2": lambda r: r * r / 2,
    "mse": lambda r: r * r / 2,
    "k3": lambda r: math.exp(-r) - 1 + r,
    "low_var_kl": lambda r: math.exp(-r) - 1 + r,
}
SAME = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
SLOPES = {
    "k1": lambda r: 1.0,
    "k2": lambda r: r,
    "k3": lambda r: 1 - math.exp(-r),
    "abs": lambda r: math.copysign(1.0, r),
}


def estimate(log_prob, name, *, ref=-2.0):
    x = torch.tensor([[log_prob]], dtype=torch.float64, requires_grad=True)
    value = kl_estimate(
        log_probs_BT=x,
        ref_log_probs_BT=torch.full_like(x, ref),
        mask_BT=torch.ones(1, 1),
        name=name,
    )
    value.sum().backward()
    return value.item(), x.grad.item()


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("name", KL_NAMES)
def test_values_are_those_of_a_loop(name, seed):
    batch = ragged(seed)
    result = kl_estimate(
        log_probs_BT=batch.log_probs_BT,
        ref_log_probs_BT=batch.old_log_probs_BT,
        mask_BT=batch.mask_BT,
        name=name,
    )
    for b, t in batch.mask_BT.nonzero().tolist():
        r = (batch.log_probs_BT - batch.old_log_probs_BT)[b, t].item()
        assert result[b, t].item() == pytest.approx(
            FORMULAS[name.removesuffix("+")](r), rel=1e-9, abs=1e-12
        )
    assert bool((result[~batch.mask_BT] == 0).all())


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("log_prob", [-1.5, -2.75])
def test_gradients_by_hand(name, log_prob):
    r = log_prob + 2.0
    assert estimate(log_prob, name) == pytest.approx((FORMULAS[name](r), SLOPES[name](r)))


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("log_prob", [-1.5, -2.75])
def test_straight_through_keeps_the_value_and_takes_the_gradient_of_k2(name, log_prob):
    r = log_prob + 2.0
    assert estimate(log_prob, f"{name}+") == pytest.approx((FORMULAS[name](r), r))


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("name", KL_NAMES)
def test_gradients_are_those_of_a_loop_and_0_where_the_mask_is(name, seed):
    batch = ragged(seed)
    new_BT = batch.log_probs_BT.requires_grad_()
    kl_BT = kl_estimate(
        log_probs_BT=new_BT,
        ref_log_probs_BT=batch.old_log_probs_BT,
        mask_BT=batch.mask_BT,
        name=name,
    )
    (found_BT,) = torch.autograd.grad(kl_BT.sum(), new_BT)
    slope = SLOPES["k2"] if name.endswith("+") else SLOPES[SAME.get(name, name)]
    for b, t in batch.mask_BT.nonzero().tolist():
        r = (new_BT.detach() - batch.old_log_probs_BT)[b, t].item()
        assert found_BT[b, t].item() == pytest.approx(slope(r), rel=1e-9, abs=1e-12)
    assert bool((found_BT[~batch.mask_BT] == 0).all())


def test_k3_does_not_cancel_for_tiny_differences():
    assert estimate(-2.0 + 1e-9, "k3")[0] == pytest.approx(5e-19, rel=1e-3)


def test_a_far_reference_stays_finite_in_float32():
    far = kl_estimate(
        log_probs_BT=torch.full((1, 1), -600.0),
        ref_log_probs_BT=torch.zeros(1, 1),
        mask_BT=torch.ones(1, 1),
        name="k3",
    )
    assert bool(torch.isfinite(far).all())


def test_unknown_estimator_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'k4'.*k1.*k3"):
        kl_estimate(
            log_probs_BT=torch.zeros(1, 1),
            ref_log_probs_BT=torch.zeros(1, 1),
            mask_BT=torch.ones(1, 1),
            name="k4",
        )


def test_nan_reference_is_refused():
    with pytest.raises(TensorError, match="ref_log_prob is nan in row 0"):
        kl_estimate(
            log_probs_BT=torch.zeros(1, 1),
            ref_log_probs_BT=torch.tensor([[torch.nan]]),
            mask_BT=torch.ones(1, 1),
            name="k1",
        )


def test_fixed_coefficient_stays():
    controller = FixedKLController(0.1)
    controller.update(current_kl=100.0, n_steps=1000)
    assert controller.value == 0.1


@pytest.mark.parametrize(
    ("current_kl", "factor"), [(6.6, 1.1 * 1.0 + 0.0), (100.0, 1.2), (0.0, 0.8)]
)
def test_adaptive_coefficient_moves_by_at_most_a_fifth_of_the_horizon(current_kl, factor):
    controller = AdaptiveKLController(init_kl_coef=1.0, target_kl=6.0, horizon=10)
    controller.update(current_kl=current_kl, n_steps=10)
    assert controller.value == pytest.approx(factor)


def test_adaptive_coefficient_continues_from_a_checkpoint():
    one, other = AdaptiveKLController(1.0, 6.0, 10), AdaptiveKLController(0.2, 6.0, 10)
    one.update(9.0, 10)
    other.load_state_dict(one.state_dict())
    assert other.value == one.value


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_kl_that_is_not_a_number_does_not_poison_the_coefficient(bad):
    controller = AdaptiveKLController(1.0, 6.0, 10)
    with pytest.raises(TensorError, match=f"current_kl is {bad}"):
        controller.update(bad, 1)
    assert controller.value == 1.0


def test_a_target_of_zero_is_refused():
    with pytest.raises(ConfigError, match="target_kl=0"):
        AdaptiveKLController(1.0, 0, 10)
