"""Policy losses through real updates: the same gradient however the batch is cut.

Every policy loss, every aggregation and every KL is tested. Cuts are micro-batches of one and of
four rows, and two ranks (real processes) with uneven shares. `test_losses_over_packed_text` covers
packed text rows.
"""

import pytest
from loss_cases import OPTIONS, STILL, TOLERANCE, configurations, gradient_norms, gradients
from ranks_at_work import run_on_ranks
from tiny_training import largest_difference, make_engine, trajectories

from siirl.engine.training.collectives import OneProcess

ROWS, MASKED_ROWS, SHARE = 9, (3, 8), 2  # rank 0 has the first two rows


def found_by(ranks, micro_batch):
    """Gradient and metrics of an update for each case."""
    batch = trajectories(ROWS, masked_rows=MASKED_ROWS)
    if ranks.size > 1:
        batch = batch[:SHARE] if ranks.rank == 0 else batch[SHARE:]
    return gradients(make_engine(ranks, micro_batch_size=micro_batch, optim=STILL), batch)


@pytest.fixture(scope="module")
def alone():
    return found_by(OneProcess(), 4)


@pytest.fixture(scope="module")
def one_row_at_a_time():
    return found_by(OneProcess(), 1)


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(found_by, 4, ranks=2)


@pytest.mark.parametrize("case", configurations(), ids=str)
def test_every_case_has_a_gradient(alone, case):
    gradient, metrics = alone[case]
    assert max(float(tensor.abs().max()) for tensor in gradient.values()) > 0
    assert metrics["actor/updates"] == 1.0


@pytest.mark.parametrize("case", configurations(), ids=str)
def test_micro_batches_of_one_row_have_the_same_gradient(alone, one_row_at_a_time, case):
    assert largest_difference(alone[case][0], one_row_at_a_time[case][0]) < TOLERANCE


@pytest.mark.parametrize("case", configurations(), ids=str)
def test_two_ranks_have_the_gradient_and_the_metrics_of_one(alone, two_ranks, case):
    for rank in two_ranks:
        assert largest_difference(alone[case][0], rank[case][0]) < TOLERANCE
        assert rank[case][1] == pytest.approx(alone[case][1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_selection_holds_back_some_tokens_and_not_all(alone, name):
    assert 0.1 < alone[name, "token-mean"][1]["actor/selected_share"] < 0.5


def test_the_cases_have_different_losses(alone):
    norms = gradient_norms(alone)
    assert len(set(norms)) == len(norms)
