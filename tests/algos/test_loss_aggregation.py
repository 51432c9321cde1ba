"""Aggregations against their definitions; the pieces of a batch add up to the whole."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import QUICK, SEEDS, ragged

from siirl.algos.aggregation import AGGREGATIONS, aggregate_loss, aggregation_weight
from siirl.errors import ConfigError, TensorError, UnknownNameError

HORIZON = 12


def loop(loss, mask, mode):
    """The definitions, row by row."""
    rows = [[loss[b, t] for t in range(loss.shape[1]) if mask[b, t]] for b in range(loss.shape[0])]
    rows = [row for row in rows if row]
    if mode == "token-mean":
        return sum(sum(row) for row in rows) / sum(len(row) for row in rows)
    of_row = {
        "seq-mean-token-sum": lambda row: sum(row),
        "seq-mean-token-mean": lambda row: sum(row) / len(row),
        "seq-mean-token-sum-norm": lambda row: sum(row) / HORIZON,
    }[mode]
    return sum(of_row(row) for row in rows) / len(rows)


def whole(loss, mask, mode):
    denominator = aggregation_weight(mask_BT=mask, mode=mode)
    return aggregate_loss(
        loss_BT=loss, mask_BT=mask, mode=mode, denominator=denominator, horizon=HORIZON
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 3.0),
        ("seq-mean-token-sum", 4.5),
        ("seq-mean-token-mean", 3.75),
        ("seq-mean-token-sum-norm", 4.5 / 12),
    ],
)
def test_modes_by_hand(mode, expected):
    loss = torch.tensor([[1.0, 2.0], [6.0, 99.0]])  # rows [1, 2] and [6]
    assert whole(loss, torch.tensor([[1, 1], [1, 0]]), mode).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_only_sums_of_tokens_do_not_depend_on_a_cut_of_the_rows(mode):
    loss = torch.tensor([[1.0, 2.0, 6.0]])

    def numerator(columns):
        part = loss[:, columns]
        return aggregate_loss(
            loss_BT=part, mask_BT=torch.ones_like(part), mode=mode, denominator=1.0, horizon=HORIZON
        )

    apart = numerator([0, 1]) + numerator([2])
    assert torch.equal(apart, numerator([0, 1, 2])) == AGGREGATIONS[mode].sums_tokens


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_values_and_gradients_are_those_of_a_loop(mode, seed):
    batch = ragged(seed)
    loss = batch.advantages_BT.requires_grad_()
    gradients = []
    for total in (whole(loss, batch.mask_BT, mode), loop(loss, batch.mask_BT, mode)):
        loss.grad = None
        total.backward()
        gradients.append((total.detach(), loss.grad))
    torch.testing.assert_close(gradients[0], gradients[1])


@QUICK
@given(seed=SEEDS, cuts=st.lists(st.integers(0, 7), max_size=4), left=st.integers(0, 3))
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_pieces_of_a_batch_add_up_to_it_however_cut_and_padded(mode, seed, cuts, left):
    batch = ragged(seed)
    denominator = aggregation_weight(mask_BT=batch.mask_BT, mode=mode)
    bounds = [0, *sorted(cuts), 7]
    total = torch.zeros((), dtype=torch.float64)
    for start, end in itertools.pairwise(bounds):
        loss, mask = (
            torch.nn.functional.pad(x[start:end], (left, 0))
            for x in (batch.advantages_BT, batch.mask_BT)
        )
        total += aggregate_loss(
            loss_BT=loss, mask_BT=mask, mode=mode, denominator=denominator, horizon=HORIZON
        )
    torch.testing.assert_close(total, whole(batch.advantages_BT, batch.mask_BT, mode))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_fully_masked_row_changes_nothing(mode):
    loss, mask = torch.tensor([[1.0, 5.0], [torch.nan, torch.inf]]), torch.tensor([[1, 1], [0, 0]])
    assert whole(loss, mask, mode) == whole(loss[:1], mask[:1], mode)


def test_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'token_mean'.*'token-mean'"):
        aggregation_weight(mask_BT=torch.ones(1, 1), mode="token_mean")


def test_a_fixed_length_must_be_given():
    with pytest.raises(ConfigError, match="horizon must be positive, not None"):
        aggregate_loss(
            loss_BT=torch.ones(1, 1),
            mask_BT=torch.ones(1, 1),
            mode="seq-mean-token-sum-norm",
            denominator=1.0,
        )


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(TensorError, match=r"response_mask has shape \[1, 2\]"):
        aggregate_loss(
            loss_BT=torch.ones(2, 2), mask_BT=torch.ones(1, 2), mode="token-mean", denominator=1.0
        )
