"""Rows stay where they are, and only the surplus moves."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siirl.data_coordinator.balance import get_seqlen_balanced_partitions
from siirl.data_coordinator.partition import (
    NOWHERE,
    TOLERANCE,
    fewest_bytes,
    largest_load,
    partition_with_few_transfers,
)


def numbers(values):
    return np.array(values, np.int64)


def divided(work, homes, parts, *, sizes=None, equal_counts=False):
    """Parts of rows whose bytes are their work, unless `sizes` says otherwise."""
    return partition_with_few_transfers(
        work_N=numbers(work),
        bytes_N=numbers(work if sizes is None else sizes),
        home_N=numbers(homes),
        parts=parts,
        equal_counts=equal_counts,
    ).tolist()


def loads(part_N, work, parts):
    return np.bincount(part_N, weights=work, minlength=parts)


@st.composite
def many_rows(draw):
    """Enough rows per rank that a row is at most 2 % of its load, as the moved surplus needs."""
    parts = draw(st.integers(1, 6))
    counts = draw(st.lists(st.integers(100, 160), min_size=parts, max_size=parts))
    seed = draw(st.integers(0, 2**32 - 1))
    return parts, counts, np.random.default_rng(seed).integers(60, 120, sum(counts))


def test_balanced_rows_stay():
    assert divided([5, 5, 5, 5], [0, 0, 1, 1], 2) == [0, 0, 1, 1]


def test_the_row_that_brings_balance_moves_and_no_other():
    """Rank 0 has 60 of 80: it may keep 40.8 and must give 20, and the row of 20 is enough."""
    assert divided([20, 30, 10, 20], [0, 0, 0, 1], 2) == [1, 0, 0, 1]


def test_of_rows_with_the_same_work_the_one_with_fewest_bytes_moves():
    parts = divided([10, 10, 10, 10], [0, 0, 0, 1], 2, sizes=[9, 2, 9, 9])
    assert parts == [0, 1, 0, 1]


def test_a_row_without_a_rank_goes_to_the_rank_with_the_least_work():
    assert divided([9, 5, 4], [0, 1, NOWHERE], 2) == [0, 1, 1]
    assert divided([9, 5, 4], [0, 1, 7], 2) == [0, 1, 1]  # rank 7 gets no part


def test_equal_counts_move_the_rows_that_are_too_many():
    """Four rows for two ranks, three of them with rank 0; two of 9 and 1 make 10 on both sides."""
    parts = divided([9, 1, 9, 1], [0, 0, 0, 1], 2, equal_counts=True)
    assert parts.count(0) == 2 and loads(parts, [9, 1, 9, 1], 2).tolist() == [10, 10]


def test_without_rows_nothing_is_divided():
    assert divided([], [], 3) == []


def test_one_row_heavier_than_the_mean_is_the_bound():
    assert largest_load(numbers([90, 1, 1]), parts=3) == 90
    assert divided([90, 1, 1], [0, 0, 0], 3)[0] == 0


@pytest.mark.parametrize(
    ("need", "chosen"),
    [
        (5, [0]),  # 5 alone
        (11, [1, 2]),  # 6 and 10 would be 16; 5 and 6 are 11
        (21, [0, 1, 2]),
    ],
)
def test_fewest_bytes_by_hand(need, chosen):
    work = numbers([5, 6, 10]) if need != 11 else numbers([10, 5, 6])
    assert sorted(fewest_bytes(work, work, need=need)) == chosen


@given(many_rows())
@settings(max_examples=60, deadline=None)
def test_no_rank_has_more_than_two_percent_above_the_mean(rows):
    parts, counts, work = rows
    part_N = divided(work, np.repeat(np.arange(parts), counts), parts)
    assert len(part_N) == len(work) and set(part_N) <= set(range(parts))
    assert loads(part_N, work, parts).max() <= work.sum() / parts * (1 + TOLERANCE)


@given(many_rows())
@settings(max_examples=60, deadline=None)
def test_the_surplus_moves_and_at_most_a_fifth_more(rows):
    """Any plan must take the surplus of each rank away, whole rows of at least 60."""
    parts, counts, work = rows
    home = np.repeat(np.arange(parts), counts)
    moved = work[divided(work, home, parts) != home].sum()
    surplus = np.maximum(0, loads(home, work, parts) - largest_load(work, parts=parts))
    must = np.where(surplus > 0, np.maximum(surplus, 60), 0).sum()
    # one row of an overloaded rank may be up to twice the smallest; with little surplus that shows
    assert moved <= 1.2 * must or moved - must <= 60 * np.count_nonzero(surplus)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(-1, 4)), max_size=40),
    st.integers(1, 4),
    st.booleans(),
)
@settings(deadline=None)
def test_the_heaviest_rank_is_never_worse_than_needed(rows, parts, equal_counts):
    """Within 2 % of the mean (or a single row's work), or no heavier than Karmarkar and Karp's."""
    rows = rows[: len(rows) // parts * parts] if equal_counts else rows
    work, home = [row[0] for row in rows], [row[1] for row in rows]
    part_N = divided(work, home, parts, equal_counts=equal_counts)
    assert set(part_N) <= set(range(parts))
    best = get_seqlen_balanced_partitions(work, parts, equal_counts)
    heaviest_of_best = max(sum(work[row] for row in part) for part in best)
    bound = max(heaviest_of_best, largest_load(numbers(work), parts=parts))
    assert loads(part_N, work, parts).max() <= bound
    if equal_counts:
        assert len(set(np.bincount(part_N, minlength=parts))) <= 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.data())
def test_the_rows_given_away_are_enough_and_less_than_a_row_too_many(work, data):
    """And no more than any one or two rows that are enough."""
    need = data.draw(st.integers(1, sum(work)))
    chosen = fewest_bytes(numbers(work), numbers(work), need=need).tolist()
    given = sum(work[row] for row in chosen)
    assert len(set(chosen)) == len(chosen)
    assert need <= given < need + max(work)
    sets = [rows for size in (1, 2) for rows in combinations(work, size) if sum(rows) >= need]
    assert given <= min(map(sum, sets), default=given)
