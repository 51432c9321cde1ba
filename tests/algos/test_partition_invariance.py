"""The gradient of a batch is the sum of the gradients of its pieces, for every policy loss and the
value loss, and every aggregation.

Pieces are micro-batches of a number of rows or under a token budget, each padded to its own width,
on either side.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_batches import columns_of, loss_batch, loss_of
from paper_losses import LOOPS
from ragged import SEEDS

from siirl.algos.aggregation import AGGREGATIONS, aggregate_loss, aggregation_weight
from siirl.algos.value_loss import clipped_value_loss
from siirl.data_coordinator.balance import micro_batches_by_budget

HORIZON, ROWS, TOKENS = 12, 7, 9
FEW = settings(max_examples=6, deadline=None, derandomize=True)
CUTS = st.one_of(
    st.integers(1, ROWS).map(
        lambda size: [list(range(start, min(start + size, ROWS))) for start in range(0, ROWS, size)]
    ),
    st.integers(TOKENS, 3 * TOKENS),  # a token budget
)


def value_loss(columns):
    return clipped_value_loss(
        values_BT=columns["log_probs_BT"],
        old_values_BT=columns["old_log_probs_BT"],
        returns_BT=columns["advantages_BT"],
        mask_BT=columns["mask_BT"],
    )[0]


LOSSES = {
    name: (lambda columns, name=name: loss_of(name, columns, LOOPS[name][1]).loss_BT)
    for name in sorted(LOOPS)
} | {"value loss": value_loss}


def gradient(loss, columns, rows, *, mode, denominator, left=0, trim=False):
    """Gradient in the log-probs that the piece with these rows adds."""
    piece = {name: column[rows] for name, column in columns.items()}
    if trim:
        width = max(1, int((piece["mask_BT"] * torch.arange(1, TOKENS + 1)).max()))
        piece = {
            name: torch.nn.functional.pad(column[:, :width], (left, 0))
            for name, column in piece.items()
        }
    total = aggregate_loss(
        loss_BT=loss(piece),
        mask_BT=piece["mask_BT"],
        mode=mode,
        denominator=denominator,
        horizon=HORIZON,
    )
    return torch.autograd.grad(total, columns["log_probs_BT"])[0]


@FEW
@given(seed=SEEDS, cut=CUTS, left=st.integers(0, 2))
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_pieces_add_up_to_the_gradient_of_the_batch(name, mode, seed, cut, left):
    batch = loss_batch(seed)
    columns = columns_of(batch)
    columns["log_probs_BT"].requires_grad_()
    lengths = batch.mask_BT.sum(1).tolist()
    parts = cut if isinstance(cut, list) else micro_batches_by_budget(lengths, cut)
    denominator = aggregation_weight(mask_BT=batch.mask_BT, mode=mode)
    whole = gradient(LOSSES[name], columns, list(range(ROWS)), mode=mode, denominator=denominator)
    pieces = [
        gradient(
            LOSSES[name], columns, part, mode=mode, denominator=denominator, left=left, trim=True
        )
        for part in parts
    ]
    torch.testing.assert_close(sum(pieces), whole, rtol=1e-9, atol=1e-12)
    assert bool((whole[batch.mask_BT] != 0).any())
