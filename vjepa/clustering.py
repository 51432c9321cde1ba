"""Cluster centres of successful trajectories, by DBSCAN with a scale-free radius from the data.

In a thousand dimensions a fixed radius clusters nothing (every pair is farther apart than 0.5) or
everything. Here the radius is a multiple of the median distance from a success to its
`min_samples`-th nearest other success. So multiplying all embeddings by a constant changes nothing.
Left out: choosing the number of clusters, soft assignments.
"""

# Axes: N reference, K cluster, D channel.

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN


@dataclass(frozen=True)
class Clusters:
    """Centres of `num_references` successes. `noise_share` is the share of successes in no cluster,
    `radius` is DBSCAN's.
    """

    centres_KD: NDArray[np.float64]
    num_references: int
    noise_share: float = 0.0
    radius: float = 0.0


def canonical_order(embeddings_ND: NDArray[np.floating]) -> NDArray[np.int64]:
    """Sorting order of the rows, so that results do not depend on the order of ranks."""
    return np.lexsort(embeddings_ND.T[::-1]).astype(np.int64)


def scale_free_radius(
    *, distances_NN: NDArray[np.float64], min_samples: int, eps_scale: float
) -> float:
    """`eps_scale` times the median distance to the `min_samples`-th nearest other point.

    The median is over positive distances. 0 if there is none: all points coincide, or each has at
    least `min_samples` duplicates.
    """
    kth = np.sort(distances_NN, axis=1)[:, min(min_samples, len(distances_NN) - 1)]
    positive = kth[kth > 0]
    return float(eps_scale * np.median(positive)) if len(positive) else 0.0


def cluster(*, references_ND: NDArray[np.floating], min_samples: int, eps_scale: float) -> Clusters:
    """Centres of the clusters of `references_ND`.

    With fewer than `min_samples` references, or if DBSCAN labels all of them noise, each reference
    is its own centre. A few scattered successes are then the best available estimate. If the radius
    is 0, each distinct reference is a centre.

    Raises:
        ValueError: No references; the caller decides what that means.
    """
    if len(references_ND) == 0:
        raise ValueError(
            "No references to cluster: a task without a success has no distance to success."
        )
    points_ND = np.asarray(references_ND, dtype=np.float64)[canonical_order(references_ND)]
    if len(points_ND) < max(min_samples, 2):
        return Clusters(points_ND, len(points_ND))
    distances_NN = cdist(points_ND, points_ND)
    radius = scale_free_radius(
        distances_NN=distances_NN, min_samples=min_samples, eps_scale=eps_scale
    )
    if radius == 0.0:
        first_equal_N = (distances_NN == 0.0).argmax(axis=1)
        return Clusters(points_ND[first_equal_N == np.arange(len(points_ND))], len(points_ND))
    labels_N = (
        DBSCAN(eps=radius, min_samples=min_samples, metric="precomputed").fit(distances_NN).labels_
    )
    noise_share = float(np.mean(labels_N < 0))
    if labels_N.max() < 0:
        return Clusters(points_ND, len(points_ND), noise_share, radius)
    centres = [points_ND[labels_N == label].mean(axis=0) for label in range(labels_N.max() + 1)]
    return Clusters(np.stack(centres), len(points_ND), noise_share, radius)


def nearest_centre_distance(
    *, embeddings_BD: NDArray[np.floating], clusters: Clusters
) -> NDArray[np.float64]:
    """Euclidean distance [B] of each embedding to the nearest centre; rows are independent."""
    if len(embeddings_BD) == 0:
        return np.zeros(0)
    return cdist(np.asarray(embeddings_BD, dtype=np.float64), clusters.centres_KD).min(axis=1)
