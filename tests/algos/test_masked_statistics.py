"""Sums, means, variances and whitening under masks, fully masked ones too."""

import math

import pytest
import torch
from hypothesis import given
from ragged import QUICK, SEEDS, Half, ragged

from siirl.algos.masked import masked_mean, masked_moments, masked_sum, masked_var, masked_whiten
from siirl.errors import TensorError


def test_mean_counts_only_kept_entries():
    assert masked_mean(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([1, 1, 0])) == 2.0


def test_mean_of_nothing_is_zero_even_where_masked_entries_are_nan():
    values, mask = torch.full((2, 3), torch.nan), torch.zeros(2, 3)
    assert masked_mean(values, mask) == 0.0
    assert masked_mean(values, mask, -1).tolist() == [0.0, 0.0]


def test_gradient_of_a_fully_masked_row_is_zero():
    values = torch.tensor([[torch.nan, torch.inf], [1.0, 2.0]], requires_grad=True)
    masked_mean(values, torch.tensor([[0, 0], [1, 1]])).backward()
    assert values.grad.tolist() == [[0.0, 0.0], [0.5, 0.5]]


def test_variance_divides_by_n_minus_one_or_by_n():
    values, mask = torch.tensor([1.0, 3.0, 7.0]), torch.tensor([1, 1, 0])
    assert masked_var(values, mask) == 2.0
    assert masked_var(values, mask, unbiased=False) == 1.0


def test_variance_of_one_entry_is_zero():
    assert masked_var(torch.tensor([5.0, 6.0]), torch.tensor([1, 0])) == 0.0


def test_variance_survives_a_large_mean():
    assert masked_var(torch.tensor([1e8, 1e8 + 8.0], dtype=torch.float64), torch.ones(2)) == 32.0


@QUICK
@given(seed=SEEDS)
def test_sum_and_mean_are_those_of_a_loop(seed):
    batch = ragged(seed)
    kept = [
        v
        for v, m in zip(
            batch.values_BT.flatten().tolist(), batch.mask_BT.flatten().tolist(), strict=True
        )
        if m
    ]
    assert masked_sum(batch.values_BT, batch.mask_BT).item() == pytest.approx(math.fsum(kept))
    assert masked_mean(batch.values_BT, batch.mask_BT).item() == pytest.approx(
        math.fsum(kept) / len(kept)
    )


@QUICK
@given(seed=SEEDS)
def test_whitened_entries_have_mean_zero_and_variance_one(seed):
    batch = ragged(seed)
    white = masked_whiten(batch.values_BT, batch.mask_BT)
    kept = white[batch.mask_BT]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-9)
    assert kept.var().item() == pytest.approx(1.0, rel=1e-5)
    assert bool((white[~batch.mask_BT] == 0).all())


def test_whitening_without_shift_keeps_the_mean():
    white = masked_whiten(torch.tensor([1.0, 3.0]), torch.ones(2), shift_mean=False)
    assert white.mean().item() == pytest.approx(2.0)


def test_whitening_equal_entries_gives_zeros():
    assert masked_whiten(torch.tensor([0.1, 0.1, 0.1]), torch.ones(3)).abs().max() < 1e-3


def test_moments_are_those_of_all_ranks():
    # Here 1 and 3; there 5 and 7: count 4, mean 4, squares 9 + 1 + 1 + 9.
    there = Half(
        torch.tensor([2.0, 12.0], dtype=torch.float64), torch.tensor(10.0, dtype=torch.float64)
    )
    mean, variance, count = masked_moments(
        torch.tensor([1.0, 3.0]), torch.ones(2), unbiased=False, ranks=there
    )
    assert (mean.item(), variance.item(), count.item()) == (4.0, 5.0, 4.0)


def test_shapes_that_differ_are_refused_not_broadcast():
    with pytest.raises(TensorError, match=r"mask has shape \[2, 1\] and values has shape \[2, 3\]"):
        masked_mean(torch.ones(2, 3), torch.ones(2, 1))


def test_a_mask_of_weights_is_refused():
    with pytest.raises(TensorError, match=r"mask is 0.5 at \[1\]"):
        masked_sum(torch.ones(2), torch.tensor([1.0, 0.5]))
