"""Micro-batches that cut trajectories by chunk: which chunks pass together; nothing else
changes.
"""

import pytest
import torch
from hypothesis import given, settings, strategies
from loss_cases import STILL, TOLERANCE, configurations, gradients
from ranks_at_work import run_on_ranks
from tiny_critic import experience, make_critic
from tiny_training import CHUNKS, TOKENS, largest_difference, make_engine, trajectories

from siirl.engine.actor.chunk_windows import chunk_windows
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.training.collectives import OneProcess

ROWS, MASKED_ROWS, SHARE = 9, (3, 8), 2  # rank 0 has the first two rows
WINDOWS = (1, 3)
# one of each way: sums of tokens, whole rows by loss, by aggregation, by weight, by selection
OVER_RANKS = (
    ("vanilla", "token-mean"),
    ("gspo", "seq-mean-token-mean"),
    ("vanilla", "seq-mean-token-mean"),
    ("importance", "sequence, mask"),
    ("clip_cov", "token-mean"),
)


def cut_in(chunks):
    return lambda batch: chunk_windows(batch, chunks=chunks)


def found_by(ranks, chunks, cases=None):
    batch = trajectories(ROWS, masked_rows=MASKED_ROWS)
    if ranks.size > 1:
        batch = batch[:SHARE] if ranks.rank == 0 else batch[SHARE:]
    cut = None if chunks is None else cut_in(chunks)
    return gradients(make_engine(ranks, optim=STILL, cut=cut), batch, cases)


@pytest.fixture(scope="module")
def whole():
    return found_by(OneProcess(), None)


@pytest.fixture(scope="module")
def cut():
    return {chunks: found_by(OneProcess(), chunks) for chunks in WINDOWS}


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(found_by, 3, OVER_RANKS, ranks=2)


def test_a_window_ends_within_a_trajectory_and_the_next_continues_there():
    batch = trajectories(3)  # 2, 7 and 12 executed tokens: 1, 3 and 4 chunks
    parts = chunk_windows(batch, chunks=2)
    assert [list(part.rows) for part in parts] == [[0, 1], [1], [2], [2]]
    first = parts[0].places_BT.unflatten(1, (CHUNKS, TOKENS))
    assert first.all(-1).tolist() == [[True, False, False, False], [True, False, False, False]]


@settings(max_examples=30, deadline=None)
@given(
    rows=strategies.integers(1, 12),
    masked=strategies.sets(strategies.integers(0, 11)),
    chunks=strategies.integers(1, 50),
)
def test_every_executed_chunk_is_in_one_window_and_no_window_is_too_large(rows, masked, chunks):
    batch = trajectories(rows, masked_rows=tuple(masked))
    executed_BC = batch["response_mask"].bool().unflatten(1, (CHUNKS, TOKENS)).any(-1)
    seen_BC = torch.zeros(rows, CHUNKS, dtype=torch.long)
    sizes = []
    for part in chunk_windows(batch, chunks=chunks):
        places_BC = part.places_BT.unflatten(1, (CHUNKS, TOKENS)).any(-1)
        assert places_BC.any(1).all()
        seen_BC[torch.as_tensor(part.rows)] += places_BC
        sizes.append(int(places_BC.sum()))
    assert torch.equal(seen_BC, executed_BC.long())
    assert max(sizes, default=0) <= chunks
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@pytest.mark.parametrize("chunks", WINDOWS)
@pytest.mark.parametrize("case", configurations(), ids=str)
def test_trajectories_cut_into_windows_have_the_gradient_and_metrics_of_whole_ones(
    whole, cut, chunks, case
):
    gradient, metrics = cut[chunks][case]
    assert largest_difference(whole[case][0], gradient) < TOLERANCE
    assert metrics == pytest.approx(whole[case][1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", OVER_RANKS, ids=str)
def test_two_ranks_with_cut_rows_have_the_gradient_and_metrics_of_one_with_whole_rows(
    whole, two_ranks, case
):
    for rank in two_ranks:
        assert largest_difference(whole[case][0], rank[case][0]) < TOLERANCE
        assert rank[case][1] == pytest.approx(whole[case][1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("chunks", WINDOWS)
def test_scores_of_each_row_are_its_own_whatever_the_window(chunks):
    batch = trajectories(ROWS, masked_rows=MASKED_ROWS)

    def scored(cut):
        return make_engine(cut=cut).forward(batch, lambda scores, _: scores.log_probs_BT)

    torch.testing.assert_close(scored(cut_in(chunks)), scored(None), rtol=1e-6, atol=1e-6)


def test_no_pass_sees_more_chunks_than_a_window():
    seen = []

    def scorer(module, micro_batch, temperature):
        kept_BCS = micro_batch["response_mask"].bool().unflatten(1, (CHUNKS, TOKENS))
        seen.append(int(kept_BCS.any(-1).sum()))
        return embodied_scorer(module, micro_batch, temperature)

    engine = make_engine(scorer=scorer, cut=cut_in(3))
    engine.forward(trajectories(ROWS), lambda scores, _: scores.log_probs_BT)
    assert max(seen) <= 3
    assert sum(seen) > 3


def empty_rank(ranks):
    batch = trajectories(2) if ranks.rank else trajectories(2)[:0]
    engine = make_engine(ranks, optim=STILL, cut=cut_in(1))
    scores = engine.forward(batch, lambda scores, _: scores.log_probs_BT)
    return gradients(engine, batch, OVER_RANKS), len(scores)


def test_a_rank_without_rows_joins_the_collective_calls():
    alone = gradients(make_engine(optim=STILL), trajectories(2), OVER_RANKS)
    for rank, (found, rows) in enumerate(run_on_ranks(empty_rank)):
        assert rows == 2 * rank
        for case, (gradient, _) in found.items():
            assert largest_difference(alone[case][0], gradient) < TOLERANCE


def test_a_critic_with_cut_rows_has_the_gradient_of_whole_rows():
    found = []
    for cut in (None, cut_in(2)):
        critic = make_critic(cut=cut)
        metrics = critic.update(experience(ROWS))
        found.append((critic.engine.gradients[0], metrics))
    (whole, expected), (parts, metrics) = found
    assert largest_difference(whole, parts) < TOLERANCE
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
