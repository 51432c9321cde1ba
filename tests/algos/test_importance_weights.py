"""Importance weights of the three levels and two bounds, against loops and by hand."""

import math

import pytest
import torch
from hypothesis import given
from loss_batches import QUICK, columns_of, loss_batch, loss_of
from ragged import SEEDS

from siirl.algos.importance import BOUNDS, LEVELS, importance_weights
from siirl.errors import ConfigError, TensorError, UnknownNameError


def weight_of(differences, level, bound, *, high, low):
    """The weight of the first of a row's tokens, from the differences of log-probs of all of them."""
    exponent = {
        "token": differences[0],
        "sequence": sum(differences),
        "geometric": sum(differences) / len(differences),
    }[level]
    weight = math.exp(exponent)
    if bound == "truncate":
        return min(weight, high)
    return weight if low <= weight <= high else 0.0


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("level", LEVELS)
def test_weights_are_those_of_a_loop(level, bound, seed):
    batch = loss_batch(seed)
    low = 0.5 if bound == "mask" else 0.0
    found_BT = importance_weights(
        old_log_probs_BT=batch.old_log_probs_BT,
        rollout_log_probs_BT=batch.rollout_log_probs_BT,
        mask_BT=batch.mask_BT,
        level=level,
        bound=bound,
        high=2.0,
        low=low,
    )
    for b, t in batch.mask_BT.nonzero().tolist():
        row = batch.mask_BT[b].nonzero()[:, 0].tolist()
        differences = [
            (batch.old_log_probs_BT - batch.rollout_log_probs_BT)[b, u].item()
            for u in (t, *(u for u in row if u != t))
        ]
        assert found_BT[b, t].item() == pytest.approx(
            weight_of(differences, level, bound, high=2.0, low=low), rel=1e-9
        )
    assert bool((found_BT[~batch.mask_BT] == 0).all())


def weights_by_hand(level, bound, **bounds):
    """Two tokens, which became twice and three times as likely."""
    return importance_weights(
        old_log_probs_BT=torch.tensor([[2.0, 3.0]]).log(),
        rollout_log_probs_BT=torch.zeros(1, 2),
        mask_BT=torch.ones(1, 2),
        level=level,
        bound=bound,
        **bounds,
    ).tolist()[0]


def test_weights_by_hand():
    assert weights_by_hand("token", "truncate", high=2.5) == pytest.approx([2.0, 2.5])
    assert weights_by_hand("token", "mask", high=2.5) == pytest.approx([2.0, 0.0])
    assert weights_by_hand("sequence", "truncate", high=10.0) == pytest.approx([6.0, 6.0])
    assert weights_by_hand("sequence", "mask", high=5.0) == [0.0, 0.0]
    assert weights_by_hand("geometric", "truncate", high=10.0) == pytest.approx(
        [math.sqrt(6.0)] * 2
    )


def test_the_weights_are_constants():
    batch = loss_batch(3)
    old_BT = batch.old_log_probs_BT.requires_grad_()
    weights_BT = importance_weights(
        old_log_probs_BT=old_BT,
        rollout_log_probs_BT=batch.rollout_log_probs_BT,
        mask_BT=batch.mask_BT,
        level="token",
        bound="truncate",
        high=2.0,
    )
    assert not weights_BT.requires_grad


@QUICK
@given(seed=SEEDS)
def test_the_decoupled_loss_is_vanilla_times_masked_token_weights(seed):
    columns = columns_of(loss_batch(seed))
    weights_BT = importance_weights(
        old_log_probs_BT=columns["old_log_probs_BT"],
        rollout_log_probs_BT=columns["rollout_log_probs_BT"],
        mask_BT=columns["mask_BT"],
        level="token",
        bound="mask",
        high=5.0,
    )
    vanilla = loss_of("vanilla", {**columns, "importance_weights_BT": weights_BT}, {})
    torch.testing.assert_close(loss_of("decoupled", columns, {}).loss_BT, vanilla.loss_BT)


def test_a_long_sequence_does_not_overflow():
    weights_BT = importance_weights(
        old_log_probs_BT=torch.zeros(2, 1000),
        rollout_log_probs_BT=torch.tensor([[-1.0], [1.0]]).expand(2, 1000),
        mask_BT=torch.ones(2, 1000),
        level="sequence",
        bound="truncate",
        high=2.0,
    )
    assert bool((weights_BT[0] == 2.0).all())
    assert bool((weights_BT[1] < 1e-30).all())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"level": "tokens"},
            UnknownNameError,
            "level of importance weights 'tokens'. Did you mean 'token'",
        ),
        (
            {"level": "token", "bound": "clip"},
            UnknownNameError,
            "bound of importance weights 'clip'",
        ),
        ({"level": "token", "high": 0.5}, ConfigError, "high=0.5 is below 1"),
        (
            {"level": "token", "bound": "mask", "low": 1.5},
            ConfigError,
            r"low=1.5 must lie in \[0, 1\]",
        ),
        ({"level": "token", "low": 0.5}, ConfigError, "low=0.5 is read by bound=mask"),
    ],
)
def test_invalid_settings_are_refused(options, error, message):
    one = torch.zeros(1, 1)
    with pytest.raises(error, match=message):
        importance_weights(
            old_log_probs_BT=one,
            rollout_log_probs_BT=one,
            mask_BT=one + 1,
            **{"bound": "truncate", "high": 2.0, **options},
        )


def test_a_behaviour_log_prob_that_is_nan_is_refused():
    one = torch.zeros(1, 1)
    with pytest.raises(TensorError, match="rollout_log_probs is nan in row 0"):
        importance_weights(
            old_log_probs_BT=one,
            rollout_log_probs_BT=one + torch.nan,
            mask_BT=one + 1,
            level="token",
            bound="truncate",
            high=2.0,
        )
