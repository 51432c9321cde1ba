"""Success rates: the Wilson interval against published values, and what always holds of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.dag_worker.statistics import evaluations, success_interval

COUNTS = st.integers(1, 500).flatmap(lambda episodes: st.tuples(st.integers(0, episodes), st.just(episodes)))


def test_interval_is_the_published_one() -> None:
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3: 81 of 263 and 15 of 148
    assert (round(success_interval(81, 263).low, 4), round(success_interval(81, 263).high, 4)) == (0.2553, 0.3662)
    assert (round(success_interval(15, 148).low, 4), round(success_interval(15, 148).high, 4)) == (0.0624, 0.1605)


def test_no_success_leaves_room_above_zero() -> None:
    interval = success_interval(0, 20)  # Newcombe 1998: 0 of 20 gives 0.0000 to 0.1611
    assert (interval.low, round(interval.high, 4)) == (0.0, 0.1611)


@given(COUNTS)
def test_interval_holds_the_rate_and_mirrors(counts: tuple[int, int]) -> None:
    successes, episodes = counts
    interval, mirrored = success_interval(successes, episodes), success_interval(episodes - successes, episodes)
    assert 0.0 <= interval.low <= interval.rate <= interval.high <= 1.0
    assert math.isclose(interval.low, 1.0 - mirrored.high, abs_tol=1e-12)


def test_no_episodes_have_no_rate() -> None:
    interval = success_interval(0, 0)
    assert math.isnan(interval.rate)
    assert (interval.low, interval.high, str(interval)) == (0.0, 1.0, "no episodes")


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 successes of 4 episodes"):
        success_interval(5, 4)


def test_intervals_that_touch_overlap() -> None:
    assert success_interval(40, 100).overlaps(success_interval(50, 100))
    assert not success_interval(40, 100).overlaps(success_interval(65, 100))


def test_text_has_rate_interval_and_counts() -> None:
    assert str(success_interval(43, 100)) == "43.0 % [33.7, 52.8] (43/100)"


def test_evaluations_are_read_from_metrics_with_all_last() -> None:
    metrics = {f"val/{task}/{what}": count for task in ("all", "push") for what, count in (("successes", 3.0), ("episodes", 4.0))}
    assert {task: (i.successes, i.episodes) for task, i in evaluations(metrics).items()} == {"push": (3, 4), "all": (3, 4)}
    assert list(evaluations(metrics)) == ["push", "all"]
    assert evaluations(metrics, kind="argmax_") == {}
