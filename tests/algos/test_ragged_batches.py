"""Each of the random batches of these tests has every edge case of the formulas."""

import pytest
import torch
from hypothesis import given
from loss_batches import loss_batch
from ragged import ALONE_IN_ITS_GROUP, EQUAL_REWARDS, QUICK, SEEDS, ragged


def has_hole(mask_T: torch.Tensor) -> bool:
    places = mask_T.nonzero().flatten()
    return len(places) > 0 and len(places) < int(places[-1] - places[0]) + 1


@QUICK
@given(seed=SEEDS)
def test_each_batch_has_empty_rows_rows_of_one_token_and_rows_with_holes(seed):
    mask_BT = ragged(seed).mask_BT
    assert mask_BT.sum(1)[:2].tolist() == [1, 0]
    assert has_hole(mask_BT[2])


def test_holes_are_not_of_one_row_alone():
    assert sum(has_hole(row_T) for seed in range(25) for row_T in ragged(seed).mask_BT[3:]) >= 20


def test_without_holes_there_are_none():
    assert not any(
        has_hole(row_T) for seed in range(25) for row_T in ragged(seed, holes=False).mask_BT
    )


@QUICK
@given(seed=SEEDS)
def test_each_batch_has_a_group_of_one_and_a_group_of_rewards_that_differ_by_rounding_alone(seed):
    batch = ragged(seed)
    assert (batch.group_B == batch.group_B[ALONE_IN_ITS_GROUP]).sum() == 1
    one, other = batch.rewards_BT.sum(1)[list(EQUAL_REWARDS)].tolist()
    assert batch.group_B[list(EQUAL_REWARDS)].tolist() == [4, 4]
    assert one != other
    assert one == pytest.approx(other, rel=1e-15)
    assert bool((batch.rewards_BT[~batch.mask_BT] == 0).all())


@QUICK
@given(seed=SEEDS)
def test_each_batch_has_log_ratios_of_60_both_ways(seed):
    batch = loss_batch(seed)
    log_ratios_N = (batch.log_probs_BT - batch.old_log_probs_BT)[batch.mask_BT]
    assert log_ratios_N.max().item() == pytest.approx(60.0)
    assert log_ratios_N.min().item() == pytest.approx(-60.0)


@QUICK
@given(seed=SEEDS)
def test_each_batch_for_losses_has_good_bad_and_indifferent_tokens(seed):
    batch = loss_batch(seed)
    assert set(batch.advantages_BT[batch.mask_BT].sign().tolist()) == {-1.0, 0.0, 1.0}


@QUICK
@given(seed=SEEDS)
def test_what_is_masked_is_nan(seed):
    batch = loss_batch(seed)
    for numbers_BT in (
        batch.log_probs_BT,
        batch.old_log_probs_BT,
        batch.rollout_log_probs_BT,
        batch.advantages_BT,
        batch.values_BT,
    ):
        assert bool(torch.isnan(numbers_BT[~batch.mask_BT]).all())
