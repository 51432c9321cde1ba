"""Every registered policy loss against the loop that was written from its paper: values and
gradients of each token, in float64.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_batches import QUICK, columns_of, loss_batch, loss_of
from paper_losses import LOOPS
from ragged import SEEDS

from siirl.algos.policy_losses import POLICY_LOSSES
from siirl.errors import TensorError

BUILT_IN = sorted(LOOPS)
FEW = settings(QUICK, max_examples=6)


def test_every_loss_that_ships_has_a_loop():
    ours = {
        name
        for name, function in POLICY_LOSSES.items()
        if function.__module__.startswith("siirl.algos")
    }
    assert ours == set(LOOPS)


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_values_and_gradients_are_those_of_the_papers_loop(name, seed):
    batch = loss_batch(seed)
    loop, options = LOOPS[name]
    new = batch.log_probs_BT.requires_grad_()
    weights_BT = torch.randn(
        new.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )  # tells tokens apart

    found_BT = loss_of(name, columns_of(batch), options).loss_BT
    (found_gradient,) = torch.autograd.grad((weights_BT * found_BT).sum(), new)
    expected = loop(batch, new)
    (gradient,) = torch.autograd.grad(
        sum(weights_BT[place] * loss for place, loss in expected.items()), new
    )

    assert bool((found_BT[~batch.mask_BT] == 0).all())
    for place, loss in expected.items():
        assert found_BT[place].item() == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    kept_BT = batch.mask_BT
    torch.testing.assert_close(found_gradient[kept_BT], gradient[kept_BT], rtol=1e-8, atol=1e-11)
    assert bool((found_gradient[~kept_BT] == 0).all())


def loss_and_gradient(name, columns):
    """Loss [B, T] and its gradient in the log-probs."""
    new_BT = columns["log_probs_BT"].clone().requires_grad_()
    loss_BT = loss_of(name, {**columns, "log_probs_BT": new_BT}, LOOPS[name][1]).loss_BT
    return loss_BT.detach(), torch.autograd.grad(loss_BT.sum(), new_BT)[0]


@FEW
@given(seed=SEEDS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_padding_on_either_side_changes_no_loss_and_no_gradient(name, seed):
    columns = columns_of(loss_batch(seed))
    plain = loss_and_gradient(name, columns)
    width = plain[0].shape[1]
    for left, right in ((4, 0), (0, 4)):
        padded = loss_and_gradient(
            name,
            {key: torch.nn.functional.pad(value, (left, right)) for key, value in columns.items()},
        )
        for found_BT, expected_BT in zip(padded, plain, strict=True):
            torch.testing.assert_close(found_BT[:, left : left + width], expected_BT)


@FEW
@given(seed=SEEDS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_rows_do_not_affect_each_other(name, seed):
    columns = columns_of(loss_batch(seed))
    order_B = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    mixed = loss_and_gradient(name, {key: value[order_B] for key, value in columns.items()})
    for found_BT, expected_BT in zip(mixed, loss_and_gradient(name, columns), strict=True):
        torch.testing.assert_close(found_BT, expected_BT[order_B])


@FEW
@given(seed=SEEDS, scale=st.floats(0.01, 100))
# these two add a term that is not the advantage's
@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"cpgd", "kl_cov"}))
def test_losses_and_gradients_grow_with_advantages(name, seed, scale):
    columns = columns_of(loss_batch(seed))
    scaled = loss_and_gradient(name, {**columns, "advantages_BT": scale * columns["advantages_BT"]})
    for found_BT, expected_BT in zip(scaled, loss_and_gradient(name, columns), strict=True):
        torch.testing.assert_close(found_BT, scale * expected_BT, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("old", [-500.0, 0.0])
def test_a_log_ratio_beyond_float32_keeps_loss_and_gradient_finite(name, sign, old):
    new = torch.tensor([[-500.0 - old]], requires_grad=True)
    one = torch.ones(1, 1)
    columns = {
        "log_probs_BT": new,
        "old_log_probs_BT": old * one,
        "rollout_log_probs_BT": old * one,
        "advantages_BT": sign * one,
        "mask_BT": one,
        "selected_BT": one == 1,
    }
    loss = loss_of(name, columns, {}).loss_BT.sum()
    (gradient,) = torch.autograd.grad(loss, new)
    assert bool(torch.isfinite(loss)) and bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize(
    ("name", "column"),
    [
        (name, column)
        for name in BUILT_IN
        for column in ("log_probs_BT", "old_log_probs_BT", "advantages_BT")
        if (name, column) != ("gpg", "old_log_probs_BT")  # GPG takes no old log-probs
    ],
)
def test_nan_is_refused_with_column_and_row(name, column):
    columns = {
        key: torch.zeros(2, 3)
        for key in ("log_probs_BT", "old_log_probs_BT", "rollout_log_probs_BT", "advantages_BT")
    }
    columns |= {"mask_BT": torch.ones(2, 3), "selected_BT": torch.zeros(2, 3, dtype=torch.bool)}
    columns[column][1, 2] = torch.nan
    with pytest.raises(
        TensorError, match=rf"{column.removesuffix('_BT')} is nan in row 1, place \[2\]"
    ):
        loss_of(name, columns, {})


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"gpg"}))
def test_one_trajectorys_log_probs_are_not_broadcast_over_all(name):
    columns = {
        key: torch.zeros(2, 3) for key in ("log_probs_BT", "rollout_log_probs_BT", "advantages_BT")
    }
    columns |= {
        "old_log_probs_BT": torch.zeros(1, 3),
        "mask_BT": torch.ones(2, 3),
        "selected_BT": torch.zeros(2, 3, dtype=torch.bool),
    }
    with pytest.raises(TensorError, match=r"has shape \[1, 3\]"):
        loss_of(name, columns, {})


# By hand


def one_token(name, log_ratio, advantage, **options):
    """Loss and slope of a token whose log-prob is -1 + log_ratio and was -1."""
    new = torch.tensor([[-1.0 + log_ratio]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    columns = {
        "log_probs_BT": new,
        "old_log_probs_BT": -one,
        "rollout_log_probs_BT": -one,
        "advantages_BT": advantage * one,
    }
    columns |= {"mask_BT": one, "selected_BT": one == 1}
    loss = loss_of(name, columns, options).loss_BT.sum()
    (slope,) = torch.autograd.grad(loss, new)
    return loss.item(), slope.item()


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"clip_cov", "gpg", "cispo"}))
def test_on_policy_all_ratio_losses_have_the_policy_gradient(name):
    value, slope = one_token(name, 0.0, 2.0)
    assert slope == pytest.approx(-2.0)
    assert value == pytest.approx({"cpgd": 0.0, "sapo": -4.0}.get(name, -2.0))


def test_gpg_and_cispo_on_policy_are_minus_advantage_times_log_prob():
    assert one_token("gpg", 0.0, 2.0) == one_token("cispo", 0.0, 2.0) == pytest.approx((2.0, -2.0))


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    assert one_token("cispo", 2.0, 1.0)[1] == pytest.approx(-5.0)  # e^2 = 7.4 is held at 5
    assert one_token("vanilla", 2.0, 1.0)[1] == 0.0


def test_cpgd_does_not_multiply_the_gradient_by_the_ratio():
    assert one_token("cpgd", 1.0, -1.0, policy_drift_coef=0.0)[1] == pytest.approx(1.0)
    assert one_token("vanilla", 1.0, -1.0)[1] == pytest.approx(2.718281828)


def test_cpgds_drift_pulls_back_with_slope_ratio_minus_one():
    assert one_token("cpgd", 0.5, 0.0, policy_drift_coef=1.0)[1] == pytest.approx(1.6487212707 - 1)
    # e^2 is held at 3
    assert one_token("cpgd", 2.0, 0.0, policy_drift_coef=1.0)[1] == pytest.approx(2.0)


def test_sapo_closes_its_gate_far_away_and_earlier_for_bad_tokens():
    assert abs(one_token("sapo", 3.0, 1.0)[1]) < 1e-6
    assert abs(one_token("sapo", 0.5, -1.0)[1]) < abs(one_token("sapo", 0.5, 1.0)[1])


def test_gmpo_bounds_are_those_of_the_log_ratio():
    assert one_token("gmpo", 0.5, 1.0)[0] == pytest.approx(-1.4918246976)  # e^0.4
    # a good token that became rarer is not clipped
    assert one_token("gmpo", -0.5, 1.0)[0] == pytest.approx(-0.6065306597)
    assert one_token("gmpo", -0.5, -1.0)[0] == pytest.approx(0.6703200460)  # e^-0.4


def test_selected_tokens_pay_for_their_log_ratio_in_kl_cov_and_have_no_loss_in_clip_cov():
    assert one_token("kl_cov", 0.5, 0.0) == pytest.approx((0.5, 1.0))
    assert one_token("clip_cov", 0.5, -1.0) == (0.0, 0.0)
