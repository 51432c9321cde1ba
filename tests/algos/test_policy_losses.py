"""Policy losses against loops written from the papers, values and gradients, and what is refused."""

import math

import pytest
import torch
from hypothesis import given
from ragged import QUICK, SEEDS, ragged

from siirl.algos.aggregation import aggregate_loss
from siirl.algos.policy_losses import POLICY_LOSSES, gspo_policy_loss, policy_loss, register_policy_loss, vanilla_policy_loss
from siirl.errors import ConfigError, TensorError, UnknownNameError


def vanilla_loop(batch, log_probs, *, low, high, dual):
    """PPO, equation 7, and the dual clip, equation 5, token by token; returns the sum of the losses."""
    total = torch.zeros((), dtype=torch.float64)
    for b, t in batch.mask_BT.nonzero().tolist():
        advantage = batch.advantages_BT[b, t].item()
        ratio = torch.exp(log_probs[b, t] - batch.old_log_probs_BT[b, t])
        clipped = ratio.clamp(1 - low, 1 + high)
        gain = torch.minimum(ratio * advantage, clipped * advantage)
        if advantage < 0 and dual is not None:
            gain = torch.maximum(gain, torch.tensor(dual * advantage, dtype=torch.float64))
        total = total - gain
    return total


def gspo_loop(batch, log_probs, row_advantages, *, low, high):
    """GSPO, equations 5 to 7, row by row: the mean over rows that have tokens."""
    losses = []
    for b in range(len(log_probs)):
        kept = batch.mask_BT[b].nonzero()[:, 0].tolist()
        if not kept:
            continue
        ratio = torch.exp(sum(log_probs[b, t] - batch.old_log_probs_BT[b, t] for t in kept) / len(kept))
        advantage = row_advantages[b].item()
        losses.append(-torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage))
    return torch.stack(losses).mean()


def gradient_of(loss, log_probs):
    log_probs.grad = None
    loss.backward()
    return torch.nan_to_num(log_probs.grad, nan=-1e9)  # a NaN would be unequal to everything


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("dual", [3.0, None])
def test_vanilla_values_and_gradients_are_those_of_a_loop(seed, dual):
    batch = ragged(seed)
    log_probs = batch.log_probs_BT.requires_grad_()
    result = vanilla_policy_loss(
        log_probs_BT=log_probs,
        old_log_probs_BT=batch.old_log_probs_BT,
        advantages_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=dual,
    )
    expected = vanilla_loop(batch, log_probs, low=0.2, high=0.28, dual=dual)
    torch.testing.assert_close(result.loss_BT.sum(), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient_of(result.loss_BT.sum(), log_probs), gradient_of(expected, log_probs), rtol=1e-9, atol=1e-9)


@QUICK
@given(seed=SEEDS)
def test_gspo_token_form_has_value_and_gradient_of_the_row_form(seed):
    batch = ragged(seed)
    log_probs, row_advantages = batch.log_probs_BT.requires_grad_(), torch.nan_to_num(batch.advantages_BT[:, 0])
    result = gspo_policy_loss(
        log_probs_BT=log_probs,
        old_log_probs_BT=batch.old_log_probs_BT,
        advantages_BT=row_advantages[:, None].expand_as(log_probs),
        mask_BT=batch.mask_BT,
        clip_ratio_low=0.2,
        clip_ratio_high=0.3,
    )
    rows = float(batch.mask_BT.any(-1).sum())
    loss = aggregate_loss(loss_BT=result.loss_BT, mask_BT=batch.mask_BT, mode="seq-mean-token-mean", denominator=rows)
    expected = gspo_loop(batch, log_probs, row_advantages, low=0.2, high=0.3)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient_of(loss, log_probs), gradient_of(expected, log_probs), rtol=1e-9, atol=1e-9)


def one_token(ratio, advantage, **options):
    return vanilla_policy_loss(
        log_probs_BT=torch.tensor([[math.log(ratio)]]),
        old_log_probs_BT=torch.zeros(1, 1),
        advantages_BT=torch.tensor([[advantage]]),
        mask_BT=torch.ones(1, 1),
        **options,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),  # on policy
        (1.5, 2.0, -2.4),  # clipped above at 1.2
        (0.5, 2.0, -1.0),  # a good action that became rarer is not clipped
        (0.5, -2.0, 1.6),  # clipped below at 0.8
        (1.5, -2.0, 3.0),  # a bad action that became likelier is not clipped ...
        (9.0, -2.0, 6.0),  # ... until the dual clip at 3
    ],
)
def test_vanilla_by_hand(ratio, advantage, loss):
    assert one_token(ratio, advantage).loss_BT.item() == pytest.approx(loss, rel=1e-6)


def test_low_and_high_bounds_are_separate():
    assert one_token(1.5, 1.0, clip_ratio_low=0.1, clip_ratio_high=0.28).loss_BT.item() == pytest.approx(-1.28)
    assert one_token(0.5, -1.0, clip_ratio_low=0.1, clip_ratio_high=0.28).loss_BT.item() == pytest.approx(0.9)


def test_clip_shares_say_where_the_clip_bounds():
    assert one_token(1.5, 1.0).metrics_BT["pg_clipfrac"].item() == 1.0
    assert one_token(1.1, 1.0).metrics_BT["pg_clipfrac"].item() == 0.0
    assert one_token(9.0, -1.0).metrics_BT["pg_clipfrac_lower"].item() == 1.0
    assert one_token(2.0, -1.0).metrics_BT["pg_clipfrac_lower"].item() == 0.0


def test_a_log_ratio_beyond_float32_keeps_loss_and_gradient_finite():
    log_probs = torch.tensor([[0.0]], requires_grad=True)
    result = vanilla_policy_loss(
        log_probs_BT=log_probs,
        old_log_probs_BT=torch.full((1, 1), -500.0),
        advantages_BT=torch.full((1, 1), -1.0),
        mask_BT=torch.ones(1, 1),
    )
    result.loss_BT.sum().backward()
    assert result.loss_BT.item() == pytest.approx(3.0)
    assert log_probs.grad.item() == 0.0


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("name", ["vanilla", "gspo"])
def test_losses_do_not_see_padding(name, seed):
    batch = ragged(seed)
    columns = {
        "log_probs_BT": batch.log_probs_BT,
        "old_log_probs_BT": batch.old_log_probs_BT,
        "advantages_BT": batch.advantages_BT,
        "mask_BT": batch.mask_BT,
    }
    plain = policy_loss(name=name, available=columns).loss_BT
    for left, right in ((4, 0), (0, 4)):
        padded = {key: torch.nn.functional.pad(value, (left, right)) for key, value in columns.items()}
        torch.testing.assert_close(policy_loss(name=name, available=padded).loss_BT[:, left : left + 9], plain)


@pytest.mark.parametrize("column", ["log_probs_BT", "old_log_probs_BT", "advantages_BT"])
@pytest.mark.parametrize("name", ["vanilla", "gspo"])
def test_nan_is_refused_with_column_and_row(name, column):
    columns = {key: torch.zeros(2, 3) for key in ("log_probs_BT", "old_log_probs_BT", "advantages_BT")} | {"mask_BT": torch.ones(2, 3)}
    columns[column][1, 2] = torch.nan
    with pytest.raises(TensorError, match=rf"{column.removesuffix('_BT')} is nan in row 1, place \[2\]"):
        policy_loss(name=name, available=columns)


@pytest.mark.parametrize("name", ["vanilla", "gspo"])
def test_one_trajectorys_log_probs_are_not_broadcast_over_all(name):
    columns = {"log_probs_BT": torch.zeros(2, 3), "old_log_probs_BT": torch.zeros(1, 3), "advantages_BT": torch.zeros(2, 3)}
    with pytest.raises(TensorError, match=r"old_log_probs has shape \[1, 3\]"):
        policy_loss(name=name, available=columns | {"mask_BT": torch.ones(2, 3)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_ratio_low": 1.5}, r"clip_ratio_low=1.5.*\[0, 1\]"),
        ({"clip_ratio_high": -0.1}, "clip_ratio_high=-0.1.*not be negative"),
        ({"clip_ratio_c": 1.0}, "clip_ratio_c=1.0.*larger than 1"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        one_token(1.0, 1.0, **options)


def test_unknown_loss_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'vanila'. Did you mean 'vanilla'\? Known: .*gspo"):
        policy_loss(name="vanila", available={})


@pytest.fixture
def registry():
    before = dict(POLICY_LOSSES)
    yield POLICY_LOSSES
    POLICY_LOSSES.clear()
    POLICY_LOSSES.update(before)


def test_a_loss_of_the_documents_form_is_told_to_use_the_other_decorator(registry):
    with pytest.raises(ConfigError, match=r"'old_log_prob' of policy loss .* is not provided"):
        register_policy_loss("mine")(lambda old_log_prob, log_prob: None)
