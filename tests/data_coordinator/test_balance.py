"""Partitions: every row once, sums nearly equal, sizes equal where asked for, and fast."""

import heapq
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siirl.data_coordinator.balance import (
    get_seqlen_balanced_partitions,
    micro_batches_by_budget,
    spread,
)
from siirl.errors import ConfigError

LENGTHS = st.lists(st.integers(0, 5000), max_size=60)


def plain_karmarkar_karp(lengths, count):
    """The textbook k-way method on full tuples of sums, for comparison: spread of the result."""
    heap = [(-length, index, [0] * (count - 1) + [length]) for index, length in enumerate(lengths)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, index, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        sums = sorted(light + heavy for light, heavy in zip(one, reversed(other), strict=True))
        heapq.heappush(heap, (sums[0] - sums[-1], index, sums))
    return -heap[0][0]


def test_the_only_even_cut_of_five_lengths_is_found():
    """8+7 against 6+5+4 is the only even cut of 30 into two."""
    assert get_seqlen_balanced_partitions([8, 7, 6, 5, 4], 2, equal_size=False) == [
        [0, 1],
        [2, 3, 4],
    ]


def test_parts_of_equal_size_pair_long_with_short():
    parts = get_seqlen_balanced_partitions([10, 1, 9, 2], 2, equal_size=True)
    assert parts == [[0, 1], [2, 3]]


def test_equal_lengths_are_dealt_evenly():
    parts = get_seqlen_balanced_partitions([100] * 12, 4, equal_size=False)
    assert [len(part) for part in parts] == [3, 3, 3, 3]


def test_fewer_rows_than_parts_leave_some_empty():
    assert get_seqlen_balanced_partitions([5, 7], 4, equal_size=False) == [[0], [1], [], []]


def test_no_rows_make_empty_parts():
    assert get_seqlen_balanced_partitions([], 3, equal_size=True) == [[], [], []]


@given(LENGTHS, st.integers(1, 12))
def test_every_row_is_in_one_part(lengths, count):
    parts = get_seqlen_balanced_partitions(lengths, count, equal_size=False)
    assert len(parts) == count
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))


@given(st.integers(1, 8), st.integers(0, 8), st.data())
def test_equal_sizes_are_equal(count, size, data):
    lengths = data.draw(
        st.lists(st.integers(0, 5000), min_size=count * size, max_size=count * size)
    )
    parts = get_seqlen_balanced_partitions(lengths, count, equal_size=True)
    assert [len(part) for part in parts] == [size] * count
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 12))
def test_the_heaviest_part_is_bounded(lengths, count):
    """No part exceeds the mean by more than the longest row."""
    parts = get_seqlen_balanced_partitions(lengths, count, equal_size=False)
    assert max(sum(lengths[row] for row in part) for part in parts) <= sum(lengths) / count + max(
        lengths
    )


@pytest.mark.parametrize("seed", range(20))
def test_spread_is_no_worse_than_karmarkar_karp(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 17))
    lengths = (
        np.clip(generator.lognormal(6, 1, int(generator.integers(count, 300))), 1, 8192)
        .astype(int)
        .tolist()
    )
    parts = get_seqlen_balanced_partitions(lengths, count, equal_size=False)
    assert spread(parts, lengths) <= plain_karmarkar_karp(lengths, count)


def test_same_lengths_give_the_same_parts():
    lengths = np.random.default_rng(0).integers(1, 4096, 500).tolist()
    assert get_seqlen_balanced_partitions(lengths, 7, False) == get_seqlen_balanced_partitions(
        list(lengths), 7, False
    )


@pytest.mark.parametrize(("rows", "count", "limit_s"), [(99_328, 1024, 2.0), (4_992, 64, 0.25)])
@pytest.mark.parametrize("equal_size", [False, True])
def test_large_batches_are_divided_quickly(rows, count, limit_s, equal_size):
    """Processor time, and the best of up to five tries, so that other work on the machine counts
    little.
    """
    lengths = np.clip(np.random.default_rng(0).lognormal(6, 1, rows), 1, 8192).astype(int).tolist()
    seconds = []
    while len(seconds) < 5 and min(seconds, default=limit_s) >= limit_s:
        start = time.process_time()
        parts = get_seqlen_balanced_partitions(lengths, count, equal_size=equal_size)
        seconds.append(time.process_time() - start)
    assert min(seconds) < limit_s
    assert spread(parts, lengths) <= 3


@pytest.mark.parametrize(
    ("lengths", "count", "equal_size", "message"),
    [
        ([1, 2, 3], 0, False, "k_partitions=0"),
        ([1, -2], 1, False, "the smallest is -2"),
        ([1, 2, 3], 2, True, "3 rows cannot be divided into 2 parts of equal size. Leave 1 out"),
    ],
)
def test_impossible_requests_are_refused(lengths, count, equal_size, message):
    with pytest.raises(ConfigError, match=message):
        get_seqlen_balanced_partitions(lengths, count, equal_size)


# Micro-batches


def test_micro_batches_by_hand():
    """15 tokens at 8 a micro-batch: two are enough."""
    assert micro_batches_by_budget([5, 4, 3, 3], 8) == [[0, 3], [1, 2]]


@given(st.lists(st.integers(0, 100), max_size=40), st.integers(100, 300), st.integers(1, 4))
@settings(max_examples=60)
def test_micro_batches_keep_the_budget_and_the_divisor(lengths, budget, divisor):
    batches = micro_batches_by_budget(lengths, budget, num_batches_divided_by=divisor)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in batch) <= budget for batch in batches)
    assert len(batches) % divisor == 0


def test_three_micro_batches_become_four_for_groups_of_two():
    batches = micro_batches_by_budget([8, 8, 8], 8, num_batches_divided_by=2)
    assert sorted(map(len, batches)) == [0, 1, 1, 1]


def test_groups_of_no_micro_batches_are_refused():
    with pytest.raises(ConfigError, match="num_batches_divided_by=0 must be at least 1"):
        micro_batches_by_budget([1], 8, num_batches_divided_by=0)


def test_row_above_the_budget_is_refused():
    with pytest.raises(ConfigError, match="A row of 9 tokens exceeds the budget of 8"):
        micro_batches_by_budget([1, 9], 8)
