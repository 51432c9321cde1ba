"""The parts of the data plane's benchmark: a wrong bound would give a wrong ratio."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data_plane import (
    ROWS,
    LockedList,
    Queue,
    Rows,
    bytes_moved,
    coordinator_step,
    fewest_units,
    microseconds,
)


def rows(units: list[int]) -> Rows:
    """Rows of ten bytes a unit, whose work is their size."""
    return Rows(np.array(units), 10, np.array(units, float))


@pytest.mark.parametrize(("need", "units"), [(-1, 0), (0, 0), (3, 3), (4, 5), (6, 8), (8, 8)])
def test_the_smallest_rows_with_enough_work_by_hand(need, units):
    assert fewest_units(rows([3, 5]), need=need, enough=8) == units


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 10))
def test_no_set_of_rows_with_enough_work_is_smaller(units, tenths):
    need = tenths * sum(units) / 10  # exact where it is whole: the planner tolerates rounding
    sets = (chosen for size in range(len(units) + 1) for chosen in combinations(units, size))
    smallest = min(sum(chosen) for chosen in sets if sum(chosen) >= need)
    assert fewest_units(rows(units), need=need, enough=sum(units)) == smallest


def test_two_of_six_rows_move_where_the_other_rank_has_two():
    """60 and 20 units: the busiest rank may have 40.8, so 20 of 80 have to move."""
    run = bytes_moved([rows([10] * 6), rows([10] * 2)])
    assert run["moved"] == run["fewest"] == 0.25 and run["over_fewest"] == 1.0
    assert run["busiest_rank_bytes"] == 200 and run["controller_bytes"] == 1600
    assert run["imbalance_before"] == 0.5 and run["imbalance"] == 0.0


@pytest.mark.parametrize("kind", ROWS)
def test_little_more_than_the_fewest_bytes_move(kind):
    random = np.random.default_rng(5)
    run = bytes_moved([ROWS[kind](random, 64) for _ in range(8)])
    assert run["over_fewest"] <= 1.2 and run["imbalance"] <= 0.02 + 1e-6
    assert run["by_work_only"] > 0.5


def test_a_simulated_step_gives_every_rank_its_share():
    assert coordinator_step([rows([3, 1, 2]) for _ in range(4)], seed=0) > 0


def test_both_queues_give_the_sample_that_the_filter_accepts():
    for queue in (LockedList(), Queue()):
        assert microseconds(queue, waiting=5, turns=3) > 0
