"""Measures a progress score: rank correlation, monotonicity, separation of successes and failures.

The measures are those of SRPO's reward study (arXiv 2511.15605, section on progress rewards). Left
out: plots and protocols (benchmarks/reward_progress.py).
"""

# Axes: N sample, G group, C clip, K cut of a clip (later ones show more of it).

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr

HISTOGRAM_BINS = 20  # of the scores' common range, for the Jensen-Shannon divergence


def rank_correlation(a_N: NDArray[np.floating], b_N: NDArray[np.floating]) -> float:
    """Spearman's rho; NaN if either side is constant or has fewer than three samples."""
    if len(a_N) < 3 or np.ptp(a_N) == 0 or np.ptp(b_N) == 0:
        return float("nan")
    return float(spearmanr(a_N, b_N).statistic)


def grouped_rank_correlation(
    a_N: NDArray[np.floating], b_N: NDArray[np.floating], group_N: NDArray[Any]
) -> float:
    """Correlation of ranks within groups, each group's ranks centred; NaN if no group has any
    order.

    It measures how useful a score is for an advantage within groups, where differences between
    groups do not count.
    """
    return float(_correlation(_rank_products(a_N, b_N, group_N).sum(0)))


def grouped_interval(
    a_N: NDArray[np.floating],
    b_N: NDArray[np.floating],
    group_N: NDArray[Any],
    *,
    seed: int = 0,
    draws: int = 2000,
) -> tuple[float, float]:
    """95 % interval of `grouped_rank_correlation` by resampling groups; NaN in the same cases."""
    products_G3 = _rank_products(a_N, b_N, group_N)
    drawn = np.random.default_rng(seed).integers(len(products_G3), size=(draws, len(products_G3)))
    low, high = np.nanquantile(_correlation(products_G3[drawn].sum(1)), (0.025, 0.975))
    return float(low), float(high)


def _rank_products(
    a_N: NDArray[np.floating], b_N: NDArray[np.floating], group_N: NDArray[Any]
) -> NDArray[np.float64]:
    """Each group's sums of ab, aa and bb over its centred ranks: [G, 3]."""
    products = []
    for group in np.unique(group_N):
        rows = group_N == group
        a, b = (rankdata(side[rows]) - (rows.sum() + 1) / 2 for side in (a_N, b_N))
        products.append((a @ b, a @ a, b @ b))
    return np.array(products)


def _correlation(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlations [...] of sums [..., 3]; NaN if a side is constant."""
    scale = np.sqrt(products[..., 1] * products[..., 2])
    known = scale > 0
    return np.where(known, products[..., 0] / np.where(known, scale, 1.0), np.nan)


def progress_correlation(
    scores_CK: NDArray[np.floating], fractions_K: NDArray[np.floating]
) -> float:
    """Spearman's rho of score and progress, within each clip, averaged over clips."""
    return float(np.nanmean([rank_correlation(row, fractions_K) for row in scores_CK]))


def monotonicity(scores_CK: NDArray[np.floating]) -> float:
    """Share of neighbouring cuts of a clip at which the score does not fall."""
    return float(np.mean(np.diff(scores_CK, axis=1) >= 0))


def separation_auc(positive_N: NDArray[np.floating], negative_N: NDArray[np.floating]) -> float:
    """Probability that a success scores higher than a failure; ties count half."""
    ranks = rankdata(np.concatenate((positive_N, negative_N)))
    wins = ranks[: len(positive_N)].sum() - len(positive_N) * (len(positive_N) + 1) / 2
    return float(wins / (len(positive_N) * len(negative_N)))


def mean_discrepancy(positive_N: NDArray[np.floating], negative_N: NDArray[np.floating]) -> float:
    """Maximum mean discrepancy (biased, Gaussian kernel, median heuristic) between two samples of
    scores; 0 for equal samples.
    """
    both = np.concatenate((positive_N, negative_N))
    gaps = np.abs(np.subtract.outer(both, both))
    bandwidth = np.median(gaps[gaps > 0]) if (gaps > 0).any() else 1.0
    kernel = np.exp(-(gaps**2) / (2 * bandwidth**2))
    split = len(positive_N)
    squared = (
        kernel[:split, :split].mean()
        + kernel[split:, split:].mean()
        - 2 * kernel[:split, split:].mean()
    )
    return float(np.sqrt(max(0.0, squared)))


def histogram_divergence(
    positive_N: NDArray[np.floating], negative_N: NDArray[np.floating]
) -> float:
    """Jensen-Shannon divergence in bits between the histograms of two samples: 0 for equal ones, 1
    for disjoint ones.
    """
    both = np.concatenate((positive_N, negative_N))
    edges = (
        np.linspace(both.min(), both.max(), HISTOGRAM_BINS + 1)
        if np.ptp(both) > 0
        else np.array([0.0, 1.0]) + both[0] - 0.5
    )
    p, q = (
        np.histogram(sample, bins=edges)[0] / len(sample) for sample in (positive_N, negative_N)
    )
    middle = (p + q) / 2
    return float(
        sum(
            0.5 * np.sum(side[side > 0] * np.log2(side[side > 0] / middle[side > 0]))
            for side in (p, q)
        )
    )


def bootstrap_interval(
    values_N: NDArray[np.floating], *, seed: int = 0, draws: int = 2000
) -> tuple[float, float]:
    """95 % interval of the mean of `values_N` by resampling."""
    rng = np.random.default_rng(seed)
    means = rng.choice(values_N, size=(draws, len(values_N))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
