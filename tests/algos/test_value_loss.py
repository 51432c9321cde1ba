"""The critic's loss against a loop."""

import pytest
import torch
from hypothesis import given
from ragged import QUICK, SEEDS, ragged

from siirl.algos.value_loss import clipped_value_loss
from siirl.errors import ConfigError, TensorError


def test_value_loss_by_hand():
    # The value moved from 0 to 2 and is clipped at 0.5: errors to the return 3 are 1 and 2.5, the
    # larger counts.
    loss, clipped = clipped_value_loss(
        values_BT=torch.tensor([[2.0]]),
        old_values_BT=torch.zeros(1, 1),
        returns_BT=torch.tensor([[3.0]]),
        mask_BT=torch.ones(1, 1),
    )
    assert (loss.item(), clipped.item()) == (0.5 * 2.5**2, 1.0)


@QUICK
@given(seed=SEEDS)
def test_values_and_gradients_are_those_of_a_loop(seed):
    batch = ragged(seed)
    values = batch.values_BT.requires_grad_()
    loss, _ = clipped_value_loss(
        values_BT=values,
        old_values_BT=batch.old_log_probs_BT,
        returns_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
        clip_range=0.3,
    )
    expected = torch.zeros((), dtype=torch.float64)
    for b, t in batch.mask_BT.nonzero().tolist():
        old, target, value = batch.old_log_probs_BT[b, t], batch.advantages_BT[b, t], values[b, t]
        clipped = torch.minimum(torch.maximum(value, old - 0.3), old + 0.3)
        expected = expected + torch.maximum((value - target) ** 2, (clipped - target) ** 2) / 2
    torch.testing.assert_close(loss.sum(), expected)
    (found,) = torch.autograd.grad(loss.sum(), values)
    (wanted,) = torch.autograd.grad(expected, values)
    torch.testing.assert_close(found, wanted)


def test_nan_return_is_refused():
    zeros = torch.zeros(1, 2)
    with pytest.raises(TensorError, match=r"returns is nan in row 0, place \[1\]"):
        clipped_value_loss(
            values_BT=zeros,
            old_values_BT=zeros,
            returns_BT=torch.tensor([[0.0, torch.nan]]),
            mask_BT=torch.ones(1, 2),
        )


def test_a_range_of_zero_is_refused():
    zeros = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match=r"clip_range=0.0"):
        clipped_value_loss(
            values_BT=zeros,
            old_values_BT=zeros,
            returns_BT=zeros,
            mask_BT=torch.ones(1, 1),
            clip_range=0.0,
        )
