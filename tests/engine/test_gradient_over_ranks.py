"""The gradient of a batch does not depend on micro-batches, ranks, or uneven and empty shares."""

import itertools

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_training import (
    TinyPolicy,
    largest_difference,
    make_actor,
    make_engine,
    trajectories,
    weights,
)

from siirl.algos.advantages import ADVANTAGES, estimate_advantages
from siirl.algos.aggregation import AGGREGATIONS
from siirl.engine.actor.chunk_windows import chunk_windows
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.critic.value_scorers import first_token_of_each_chunk
from siirl.engine.training.batch_loss import LossSum
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.sharding import measure_reduction, reduction_factor
from siirl.errors import InvariantError, TensorError

ROWS, MASKED_ROWS = 9, (3, 8)
SHARES = {"even": (5, 4), "uneven": (1, 8), "one rank is empty": (0, 9)}
MICRO_BATCHES = (1, 4)
TERMS = {"entropy_coef": 0.01, "use_kl_loss": True, "kl_loss_coef": 0.1}
TOLERANCE = 1e-5  # relative, max norm
ESTIMATORS = sorted(ADVANTAGES)


def own_rows(batch, ranks, shares):
    """Rank 0 has the first `shares[0]` rows, rank 1 the rest."""
    return batch[: shares[0]] if ranks.rank == 0 else batch[shares[0] :]


def one_update(ranks, *, aggregation, micro_batch, shares):
    """Gradient before the step, weights after it, metrics and own log-probs."""
    engine = make_engine(ranks, micro_batch_size=micro_batch)
    actor = make_actor(engine, loss_agg_mode=aggregation, **TERMS)
    batch = own_rows(trajectories(ROWS, masked_rows=MASKED_ROWS), ranks, shares)
    log_probs_BT = actor.compute_log_prob(batch).log_probs_BT
    metrics = actor.update(batch)
    return {
        "gradient": engine.gradients[0],
        "weights": weights(engine),
        "metrics": metrics,
        "log_probs": log_probs_BT,
    }


def several_updates(ranks, shares):
    """Weights and metrics after two epochs of mini-batches of at most four rows."""
    engine = make_engine(ranks)
    actor = make_actor(engine, ppo_epochs=2, ppo_mini_batch_size=4, **TERMS)
    metrics = actor.update(own_rows(trajectories(ROWS, masked_rows=MASKED_ROWS), ranks, shares))
    return {"weights": weights(engine), "metrics": metrics}


def failing_updates(ranks):
    """Errors of each rank if only rank 1 has a NaN, and that both can continue.

    Then with unequal initial weights.
    """
    actor, batch = make_actor(make_engine(ranks)), own_rows(trajectories(4), ranks, (2, 2))
    bad = batch.clone()
    if ranks.rank == 1:
        bad["advantages"][0, 0] = torch.nan
    raised = []
    for attempt in (
        lambda: actor.update(bad),
        lambda: make_engine(ranks, module=TinyPolicy(seed=ranks.rank)),
    ):
        try:
            attempt()
        except (TensorError, InvariantError) as error:
            raised.append(f"{type(error).__name__}: {error}")
    return {"raised": raised, "updates": actor.update(batch)["actor/updates"]}


def refused_losses(ranks):
    """Errors of each rank if only rank 1's loss has no gradient: of micro-batches, of whole rows."""

    def loss_fn(scores, _):
        log_probs_BT = scores.log_probs_BT
        return LossSum((log_probs_BT.detach() if ranks.rank == 1 else log_probs_BT).sum())

    batch, raised = own_rows(trajectories(4), ranks, (2, 2)), []
    for cut in (None, lambda rows: chunk_windows(rows, chunks=2)):
        try:
            make_engine(ranks, cut=cut).train_batch(
                batch, loss_fn, lambda rows: torch.tensor(len(rows))
            )
        except (TensorError, InvariantError) as error:
            raised.append(f"{type(error).__name__}: {error}")
    return raised


def advantages(ranks, shares, name):
    """Advantages of own rows; groups are spread over ranks, decisions are a chunk's tokens."""
    batch = own_rows(trajectories(ROWS, masked_rows=MASKED_ROWS), ranks, shares)
    mask_BT = batch["response_mask"]
    available = {
        "token_level_rewards": batch["old_log_probs"] * mask_BT,
        "response_mask": mask_BT,
        "index": torch.tensor([int(uid) % 3 for uid in batch["uid"]], dtype=torch.long),
        "values": batch["rollout_log_probs"],
        "value_mask": first_token_of_each_chunk(batch),
        "reward_baselines": batch["old_log_probs"][:, 0],
        "gamma": 0.9,
        "lam": 0.8,
        "ranks": ranks,
    }
    return estimate_advantages(name=name, available=available)[0]


def conversation(ranks):
    """One of each collective call."""
    rows, own = ranks.gather_rows(torch.full((ranks.rank + 1, 2), float(ranks.rank)))
    return {
        "sum": ranks.sum(torch.tensor([1.0, ranks.rank])).tolist(),
        "maximum": ranks.maximum(torch.tensor(ranks.rank)).item(),
        "rows": rows[:, 0].tolist(),
        "own": own,
        "objects": ranks.gather_objects({"rank": ranks.rank}),
        "broadcast": ranks.broadcast_object(f"from {ranks.rank}"),
    }


def overflowing_update(ranks):
    """An update in which the gradient of rank 1's rows is infinite.

    Weights before and after, and metrics.
    """

    def scorer(module, micro_batch, temperature):
        scores = embodied_scorer(module, micro_batch, temperature)
        if ranks.rank == 1:
            scores.log_probs_BT.register_hook(lambda gradient: gradient * torch.inf)
        return scores

    engine = make_engine(ranks, scorer=scorer)
    before = weights(engine)
    metrics = make_actor(engine).update(own_rows(trajectories(4), ranks, (2, 2)))
    return {"before": before, "after": weights(engine), "metrics": metrics}


def on_two_ranks(ranks):
    """All results that need two ranks, in one start of processes."""
    updates = {
        case: one_update(ranks, aggregation=case[0], micro_batch=case[1], shares=SHARES[case[2]])
        for case in itertools.product(AGGREGATIONS, MICRO_BATCHES, SHARES)
    }
    return {
        "reduction": measure_reduction(ranks=ranks, device=torch.device("cpu")),
        "bfloat16 reduction": measure_reduction(
            ranks=ranks, device=torch.device("cpu"), compute_dtype=torch.bfloat16
        ),
        "updates": updates,
        "several": {name: several_updates(ranks, shares) for name, shares in SHARES.items()},
        "advantages": {
            case: advantages(ranks, SHARES[case[0]], case[1])
            for case in itertools.product(SHARES, ESTIMATORS)
        },
        "conversation": conversation(ranks),
        "failing": failing_updates(ranks),
        "refused losses": refused_losses(ranks),
        "overflowing": overflowing_update(ranks),
    }


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(on_two_ranks, ranks=2)


@pytest.fixture(scope="module")
def alone():
    """The same with one rank."""
    return {
        case: one_update(OneProcess(), aggregation=case[0], micro_batch=case[1], shares=(ROWS, 0))
        for case in itertools.product(AGGREGATIONS, MICRO_BATCHES)
    }


def test_gloo_sums_or_averages_alike_in_all_types(two_ranks):
    assert (
        two_ranks[0]["reduction"] == two_ranks[1]["reduction"] == two_ranks[0]["bfloat16 reduction"]
    )


@pytest.mark.parametrize(("entry", "factor"), [(6.0, 1.0), (2.0, 3.0)])
def test_a_sum_and_an_average_are_distinguished(entry, factor):
    assert reduction_factor(torch.tensor([entry, entry]), ranks=3) == factor


@pytest.mark.parametrize("entries", [[6.0, 2.0], [1.0, 1.0], [torch.nan, 6.0]])
def test_a_reduction_that_is_neither_sum_nor_mean_is_refused(entries):
    with pytest.raises(InvariantError, match=r"their sum is 6.0, their average 2.0"):
        reduction_factor(torch.tensor(entries), ranks=3)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_of_one_and_of_four_have_the_same_gradient(alone, aggregation):
    assert (
        largest_difference(alone[aggregation, 1]["gradient"], alone[aggregation, 4]["gradient"])
        < TOLERANCE
    )


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("micro_batch", MICRO_BATCHES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_two_ranks_have_the_gradient_of_one(alone, two_ranks, aggregation, micro_batch, share):
    for rank in two_ranks:
        update = rank["updates"][aggregation, micro_batch, share]
        assert largest_difference(alone[aggregation, 1]["gradient"], update["gradient"]) < TOLERANCE
        assert largest_difference(alone[aggregation, 1]["weights"], update["weights"]) < TOLERANCE


@pytest.mark.parametrize("share", SHARES)
def test_every_rank_reports_the_metrics_of_the_whole_batch(alone, two_ranks, share):
    expected = alone["token-mean", 1]["metrics"]
    for rank in two_ranks:
        assert rank["updates"]["token-mean", 4, share]["metrics"] == pytest.approx(
            expected, rel=1e-5, abs=1e-7
        )


@pytest.mark.parametrize("share", SHARES)
def test_log_probs_of_a_ranks_rows_are_those_of_the_whole_batch(alone, two_ranks, share):
    parts = [rank["updates"]["token-mean", 4, share]["log_probs"] for rank in two_ranks]
    torch.testing.assert_close(torch.cat(parts), alone["token-mean", 1]["log_probs"])


@pytest.mark.parametrize("share", SHARES)
def test_mini_batches_and_epochs_move_the_weights_alike(two_ranks, share):
    expected = several_updates(OneProcess(), (ROWS, 0))
    assert expected["metrics"]["actor/updates"] == 6.0  # nine rows in mini-batches of three, twice
    for rank in two_ranks:
        # Adam divides by small moments
        assert largest_difference(expected["weights"], rank["several"][share]["weights"]) < 1e-4
        assert rank["several"][share]["metrics"] == pytest.approx(
            expected["metrics"], rel=1e-3, abs=1e-5
        )


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("share", SHARES)
def test_advantages_of_groups_that_are_spread_over_ranks_are_those_of_one_rank(
    two_ranks, share, name
):
    found = torch.cat([rank["advantages"][share, name] for rank in two_ranks])
    torch.testing.assert_close(found, advantages(OneProcess(), (ROWS, 0), name))


def test_two_ranks_exchange_numbers_rows_and_objects(two_ranks):
    for rank, heard in enumerate(rank["conversation"] for rank in two_ranks):
        assert (heard["sum"], heard["maximum"]) == ([2.0, 1.0], 1)
        assert (heard["rows"], heard["own"]) == ([0.0, 1.0, 1.0], (slice(0, 1), slice(1, 3))[rank])
        assert (heard["objects"], heard["broadcast"]) == ([{"rank": 0}, {"rank": 1}], "from 0")


def test_a_nan_on_one_rank_stops_both_and_names_rank_and_row(two_ranks):
    assert two_ranks[1]["failing"]["raised"][0].startswith(
        "TensorError: advantages is nan in row 0, place [0]"
    )
    assert two_ranks[0]["failing"]["raised"][0].startswith(
        "InvariantError: Rank 1 failed, so all stop: TensorError: advantages is nan"
    )


@pytest.mark.parametrize("passes", [0, 1], ids=["micro-batches", "whole rows"])
def test_a_loss_without_a_gradient_on_one_rank_stops_both(two_ranks, passes):
    told = "TensorError: The loss has no gradient"
    assert two_ranks[1]["refused losses"][passes].startswith(told)
    assert two_ranks[0]["refused losses"][passes].startswith(
        f"InvariantError: Rank 1 failed, so all stop: {told}"
    )


def test_after_a_refused_batch_a_good_one_trains(two_ranks):
    assert [rank["failing"]["updates"] for rank in two_ranks] == [1.0, 1.0]


def test_ranks_that_start_from_different_weights_are_refused(two_ranks):
    for rank in two_ranks:
        assert (
            "start from different weights (9 tensors, the first is 'words.weight')"
            in rank["failing"]["raised"][1]
        )


def test_an_infinite_gradient_on_one_rank_is_skipped_on_both(two_ranks):
    for rank in two_ranks:
        outcome = rank["overflowing"]
        assert (
            outcome["metrics"]["actor/updates"],
            outcome["metrics"]["actor/skipped_updates"],
        ) == (0.0, 1.0)
        assert largest_difference(outcome["before"], outcome["after"]) == 0.0
