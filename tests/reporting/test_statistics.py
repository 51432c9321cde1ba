"""Success rates: the Wilson interval against published values, and its properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.reporting.statistics import evaluations, mean_interval, mean_scores, success_interval

COUNTS = st.integers(1, 500).flatmap(
    lambda episodes: st.tuples(st.integers(0, episodes), st.just(episodes))
)


def test_interval_is_the_published_one() -> None:
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3: 81 of 263 and 15 of 148
    assert (round(success_interval(81, 263).low, 4), round(success_interval(81, 263).high, 4)) == (
        0.2553,
        0.3662,
    )
    assert (round(success_interval(15, 148).low, 4), round(success_interval(15, 148).high, 4)) == (
        0.0624,
        0.1605,
    )


def test_no_success_leaves_room_above_zero() -> None:
    interval = success_interval(0, 20)  # Newcombe 1998: 0 of 20 gives 0.0000 to 0.1611
    assert (interval.low, round(interval.high, 4)) == (0.0, 0.1611)


@given(COUNTS)
def test_interval_holds_the_rate_and_mirrors(counts: tuple[int, int]) -> None:
    successes, episodes = counts
    interval, mirrored = (
        success_interval(successes, episodes),
        success_interval(episodes - successes, episodes),
    )
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
    metrics = {
        f"val/{task}/{what}": count
        for task in ("all", "push")
        for what, count in (("successes", 3.0), ("episodes", 4.0))
    }
    assert {task: (i.successes, i.episodes) for task, i in evaluations(metrics).items()} == {
        "push": (3, 4),
        "all": (3, 4),
    }
    assert list(evaluations(metrics)) == ["push", "all"]
    assert evaluations(metrics, kind="argmax_") == {}


def test_the_interval_of_a_mean_is_students() -> None:
    """1, 2, 3 and 4: mean 2.5, s = sqrt(5/3) = 1.29099; t(0.975, 3) = 3.18245 of Fisher's table;
    3.18245 * 1.29099 / 2 = 2.05426.
    """
    interval = mean_interval(mean=2.5, std=math.sqrt(5 / 3), episodes=4)
    assert (interval.low, interval.high) == (
        pytest.approx(0.44574, abs=1e-5),
        pytest.approx(4.55426, abs=1e-5),
    )
    assert str(interval) == "2.5 [0.446, 4.55] (n=4)"


@pytest.mark.parametrize(
    ("std", "episodes", "words"), [(None, 1, "0.5 (n=1)"), (0.0, 9, "0.5 (n=9)")]
)
def test_a_mean_without_a_spread_has_no_interval(
    std: float | None, episodes: int, words: str
) -> None:
    interval = mean_interval(mean=0.5, std=std, episodes=episodes)
    assert (interval.low, interval.high, str(interval)) == (None, None, words)


def test_mean_scores_are_read_by_task_and_way_of_acting_with_all_last() -> None:
    metrics = {"val/all/mean_score": 0.25, "val/all/score_std": 0.5, "val/all/scored_episodes": 4.0}
    metrics |= {
        "val/judged/mean_score": 1.0,
        "val/judged/scored_episodes": 1.0,
        "val/judged/return": 0.0,
    }
    metrics |= {"val/judged/argmax_mean_score": 0.0, "val/judged/argmax_scored_episodes": 1.0}
    found = mean_scores(metrics)
    assert {task: (score.mean, score.episodes) for task, score in found.items()} == {
        "judged": (1.0, 1),
        "all": (0.25, 4),
    }
    assert list(found) == ["judged", "all"]
    assert {task: score.mean for task, score in mean_scores(metrics, kind="argmax_").items()} == {
        "judged": 0.0
    }


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((0.0, 0.1), (1.0, 0.1), "+1, intervals are apart"),
        ((0.0, 1.0), (0.5, 1.0), "+0.5, intervals overlap"),
        ((1.0, 0.0), (0.5, 1.0), "-0.5"),
    ],
)
def test_the_change_of_a_mean_states_whether_intervals_overlap(before, after, words) -> None:
    first, last = (mean_interval(mean=mean, std=std, episodes=20) for mean, std in (before, after))
    assert last.change_since(first) == words
