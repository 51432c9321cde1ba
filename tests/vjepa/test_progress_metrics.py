"""Measures of progress with numbers that can be checked by hand."""

import numpy as np
import pytest

from vjepa.progress_metrics import (
    bootstrap_interval,
    grouped_interval,
    grouped_rank_correlation,
    histogram_divergence,
    mean_discrepancy,
    monotonicity,
    progress_correlation,
    rank_correlation,
    separation_auc,
)

LINE = np.arange(5.0)


def test_rank_correlation_ignores_the_scale() -> None:
    assert rank_correlation(LINE, np.exp(LINE)) == pytest.approx(1.0)
    assert rank_correlation(LINE, -LINE) == pytest.approx(-1.0)


def test_rank_correlation_of_a_constant_is_unknown() -> None:
    assert np.isnan(rank_correlation(LINE, np.ones(5)))


def test_grouped_rank_correlation_ignores_differences_between_groups() -> None:
    left, groups = np.array([1.0, 2.0, 11.0, 12.0]), np.array([0, 0, 1, 1])
    assert grouped_rank_correlation(
        left, np.array([2.0, 1.0, 12.0, 11.0]), groups
    ) == pytest.approx(-1.0)  # +0.6 over all four


def test_grouped_rank_correlation_weighs_groups_by_what_they_rank() -> None:
    # centred ranks (-1, 0, 1), (-0.5, 0.5) and (0) against the same, but the pair the other way
    # round: (2 - 0.5) / 2.5
    left, right = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 9.0]), np.array([5.0, 6.0, 7.0, 8.0, 7.0, 0.0])
    assert grouped_rank_correlation(left, right, np.array([0, 0, 0, 1, 1, 2])) == pytest.approx(0.6)


def test_the_interval_of_equal_groups_is_their_correlation() -> None:
    """Groups of three with the ranks 1, 2, 3 and 1, 3, 2: ab = 1, aa = bb = 2 in each."""
    left, right = np.tile([1.0, 2.0, 3.0], 5), np.tile([1.0, 3.0, 2.0], 5)
    groups = np.repeat(np.arange(5), 3)
    assert grouped_rank_correlation(left, right, groups) == pytest.approx(0.5)
    assert grouped_interval(left, right, groups) == pytest.approx((0.5, 0.5))


def test_the_interval_of_opposite_groups_holds_both() -> None:
    """Some draws have only the first group, some only the second."""
    left, right = np.array([1.0, 2.0, 1.0, 2.0]), np.array([1.0, 2.0, 2.0, 1.0])
    low, high = grouped_interval(left, right, np.array([0, 0, 1, 1]))
    assert (low, high) == pytest.approx((-1.0, 1.0))


def test_grouped_rank_correlation_of_groups_of_one_is_unknown() -> None:
    assert np.isnan(grouped_rank_correlation(LINE, LINE, np.arange(5)))


def test_progress_correlation_is_the_mean_over_clips() -> None:
    assert progress_correlation(np.stack((LINE, -LINE)), LINE) == pytest.approx(0.0)


def test_monotonicity_is_the_share_of_steps_that_do_not_fall() -> None:
    assert monotonicity(np.array([[0.0, 1.0, 1.0, 0.5], [0.0, 1.0, 2.0, 3.0]])) == pytest.approx(
        5 / 6
    )


def test_auc_counts_ties_half() -> None:
    # pairs: 3>1, 3>2, 2>1, 2=2
    assert separation_auc(np.array([3.0, 2.0]), np.array([1.0, 2.0])) == pytest.approx(3.5 / 4)


def test_equal_samples_have_no_discrepancy_and_no_divergence() -> None:
    assert mean_discrepancy(LINE, LINE) == 0.0
    assert histogram_divergence(LINE, LINE) == 0.0
    assert histogram_divergence(np.ones(3), np.ones(4)) == 0.0


def test_disjoint_samples_diverge_by_one_bit() -> None:
    assert histogram_divergence(LINE, LINE + 100.0) == pytest.approx(1.0)
    assert mean_discrepancy(np.zeros(50), np.ones(50)) == pytest.approx(
        np.sqrt(2 - 2 * np.exp(-0.5))
    )


def test_the_interval_of_a_constant_is_a_point() -> None:
    assert bootstrap_interval(np.full(10, 2.0)) == (2.0, 2.0)


def test_the_interval_of_a_fair_coin_holds_a_half() -> None:
    low, high = bootstrap_interval(np.tile([0.0, 1.0], 50))
    assert 0.38 < low < 0.45 and 0.55 < high < 0.62
