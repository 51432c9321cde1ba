"""The critic's gradient does not depend on micro-batches, ranks, or uneven and empty shares."""

import itertools

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_critic import experience, make_critic
from tiny_training import largest_difference, weights

from siirl.engine.training.collectives import OneProcess
from siirl.errors import InvariantError, TensorError

ROWS, MASKED_ROWS = 9, (3, 8)
SHARES = {"even": (5, 4), "uneven": (1, 8), "one rank is empty": (0, 9)}
MICRO_BATCHES = (1, 4)
TOLERANCE = 1e-5  # relative, max norm


def own_rows(batch, ranks, shares):
    """Rank 0 has the first `shares[0]` rows, rank 1 the rest."""
    return batch[: shares[0]] if ranks.rank == 0 else batch[shares[0] :]


def one_update(ranks, *, micro_batch, shares):
    """Gradient before the step, weights after it, metrics, and own values before.

    The head is not at 0, and some values are clipped.
    """
    critic = make_critic(ranks, clip_range=0.3, micro_batch_size=micro_batch, head_seed=1)
    batch = own_rows(experience(ROWS, masked_rows=MASKED_ROWS), ranks, shares)
    critic.model.observe_returns(batch["returns"], batch["value_mask"], ranks=ranks)
    values_BT = critic.compute_values(batch).values_BT
    batch["values"] = values_BT + 0.4 * batch["old_log_probs"]
    metrics = critic.update(batch)
    return {
        "gradient": critic.engine.gradients[0],
        "weights": weights(critic.engine),
        "metrics": metrics,
        "values": values_BT,
    }


def mini_batches(ranks, shares):
    """Weights after two epochs of mini-batches of at most four rows."""
    critic = make_critic(ranks, epochs=2, rows=4)
    critic.update(own_rows(experience(ROWS, masked_rows=MASKED_ROWS), ranks, shares))
    return weights(critic.engine)


def failing(ranks):
    """Errors of each rank if only rank 1 has a NaN, and that both can continue."""
    critic, batch = make_critic(ranks), own_rows(experience(4), ranks, (2, 2))
    bad = batch.clone()
    if ranks.rank == 1:
        bad["returns"][0, 0] = torch.nan
    try:
        critic.update(bad)
    except (TensorError, InvariantError) as error:
        raised = f"{type(error).__name__}: {error}"
    return {"raised": raised, "updates": critic.update(batch)["critic/updates"]}


def on_two_ranks(ranks):
    """All results that need two ranks, in one start of processes."""
    cases = itertools.product(MICRO_BATCHES, SHARES)
    return {
        "updates": {
            case: one_update(ranks, micro_batch=case[0], shares=SHARES[case[1]]) for case in cases
        },
        "mini-batches": {name: mini_batches(ranks, shares) for name, shares in SHARES.items()},
        "failing": failing(ranks),
    }


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(on_two_ranks, ranks=2)


@pytest.fixture(scope="module")
def alone():
    return {
        size: one_update(OneProcess(), micro_batch=size, shares=(ROWS, 0)) for size in MICRO_BATCHES
    }


def test_some_values_are_clipped_and_the_trunk_has_a_gradient(alone):
    assert 0 < alone[1]["metrics"]["critic/vf_clipfrac"] < 1
    assert float(alone[1]["gradient"]["trunk.policy.inputs.weight"].abs().max()) > 1e-3


def test_micro_batches_of_one_and_of_four_have_the_same_gradient(alone):
    assert largest_difference(alone[1]["gradient"], alone[4]["gradient"]) < TOLERANCE


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("micro_batch", MICRO_BATCHES)
def test_two_ranks_have_the_gradient_of_one(alone, two_ranks, micro_batch, share):
    for rank in two_ranks:
        found = rank["updates"][micro_batch, share]
        assert largest_difference(alone[1]["gradient"], found["gradient"]) < TOLERANCE
        assert largest_difference(alone[1]["weights"], found["weights"]) < TOLERANCE
        assert found["metrics"] == pytest.approx(alone[1]["metrics"], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("share", SHARES)
def test_values_of_a_ranks_rows_are_those_of_the_whole_batch(alone, two_ranks, share):
    parts = [rank["updates"][4, share]["values"] for rank in two_ranks]
    torch.testing.assert_close(torch.cat(parts), alone[1]["values"])


@pytest.mark.parametrize("share", SHARES)
def test_mini_batches_and_epochs_move_the_weights_alike(two_ranks, share):
    expected = mini_batches(OneProcess(), (ROWS, 0))
    for rank in two_ranks:
        assert largest_difference(expected, rank["mini-batches"][share]) < 1e-4


def test_a_nan_on_one_rank_stops_both_and_a_good_batch_trains_afterwards(two_ranks):
    assert two_ranks[1]["failing"]["raised"].startswith(
        "TensorError: returns is nan in row 0, place [0]"
    )
    assert two_ranks[0]["failing"]["raised"].startswith(
        "InvariantError: Rank 1 failed, so all stop: TensorError: returns is nan"
    )
    assert [rank["failing"]["updates"] for rank in two_ranks] == [1.0, 1.0]
