"""The trajectory reward that siiRL published, with its flaws, for comparison with `vjepa.reward`.

A success gets 1, a failure 0.6 * sigmoid(10 * (0.5 - d)). d is the distance to the nearest cluster
centre of the task's successes in the batch. It is scaled to 0 for the batch's nearest failure and 1
for its farthest. Source: `compute_embodied_reward` in siirl/utils/reward_score/embodied.py of
github.com/sii-research/siiRL, commit af00a77.

The flaws are kept on purpose:
- the nearest failure of a batch gets 0.596 however far away it is, and a trajectory's reward
  depends on the other trajectories of the batch;
- DBSCAN's radius of 0.5 on standardised channels finds no cluster in high dimensions, so the only
  centre is the mean of all successes, which need not be a success;
- a task without a success in the batch gives its failures 0, even after earlier successes;
- an embedding of zeros, which siiRL's encoder returns on failure, gets 0 even for a success.

Embeddings are float32, as the encoder returns them.

Left out: the bank, the window and the demonstrations of `vjepa.reward`. This reward has no memory.
"""

# Axes: B trajectory, N success, K cluster, D channel.

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import expit
from sklearn.cluster import DBSCAN
from sklearn.preprocessing import StandardScaler

from vjepa.clustering import Clusters
from vjepa.reward import RewardOutput, check_rows, cluster_metrics, finite_rows, reward_metrics

CEILING = 0.6
STEEPNESS = 10.0
OFFSET = 0.5
RADIUS, MIN_SAMPLES = 0.5, 2  # DBSCAN's, on standardised channels
LEAST_RANGE = 1e-6  # if distances differ by less than this, all count as the middle


def score_as_released(
    *,
    embeddings_BD: NDArray[Any],
    success_B: NDArray[Any],
    tasks_B: Sequence[str],
    group_B: NDArray[Any],
) -> RewardOutput:
    """Reward the trajectories of one batch; the arguments are those of `TrajectoryReward.score`.

    Rows with an embedding of zeros and failures of a task without success are undefined (reward 0).

    Raises:
        ValueError: An embedding that is not finite, columns of different lengths, or a group with
            two tasks.
    """
    embeddings_BD = finite_rows(embeddings_BD, what="embeddings", tasks=tasks_B)
    success_B, group_B = np.asarray(success_B, dtype=bool), np.asarray(group_B)
    check_rows(embeddings_BD=embeddings_BD, success_B=success_B, tasks_B=tasks_B, group_B=group_B)
    encoded_B = embeddings_BD.any(axis=1)
    task_B = np.asarray(tasks_B, dtype=str)
    reward_B = (success_B & encoded_B).astype(np.float64)
    distance_B = np.full(len(success_B), np.nan)
    clusters: dict[str, Clusters] = {}
    for task in sorted(set(tasks_B)):
        succeeded_B = (task_B == task) & encoded_B & success_B
        failed_B = (task_B == task) & encoded_B & ~success_B
        if not (succeeded_B.any() and failed_B.any()):
            continue
        clusters[task] = released_clusters(embeddings_BD[succeeded_B])
        distance_B[failed_B] = cdist(embeddings_BD[failed_B], clusters[task].centres_KD).min(axis=1)
        reward_B[failed_B] = released_failure_reward(distance=distance_B[failed_B])
    defined_B = encoded_B & (success_B | np.isfinite(distance_B))
    metrics = reward_metrics(
        reward_B=reward_B,
        success_B=success_B,
        defined_B=defined_B,
        distance_B=distance_B,
        group_B=group_B,
    )
    z_B = np.full_like(distance_B, np.nan)
    return RewardOutput(
        reward_B.astype(np.float32), defined_B, distance_B, z_B, metrics | cluster_metrics(clusters)
    )


def released_clusters(successes_ND: NDArray[np.float32]) -> Clusters:
    """Cluster centres of the successes; their mean if DBSCAN labels all of them noise."""
    scaler = StandardScaler()
    scaled_ND = scaler.fit_transform(successes_ND)
    labels_N = DBSCAN(eps=RADIUS, min_samples=MIN_SAMPLES).fit(scaled_ND).labels_
    noise_share = float(np.mean(labels_N < 0))
    if labels_N.max() < 0:
        mean_1D = successes_ND.mean(axis=0, keepdims=True)
        return Clusters(mean_1D, len(successes_ND), noise_share, RADIUS)
    centres = [scaled_ND[labels_N == label].mean(axis=0) for label in range(labels_N.max() + 1)]
    centres_KD = scaler.inverse_transform(np.stack(centres))
    return Clusters(centres_KD, len(successes_ND), noise_share, RADIUS)


def released_failure_reward(*, distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """0.6 * sigmoid(10 * (0.5 - d)), d the distance scaled to the range of the batch."""
    spread = distance.max() - distance.min()
    if spread < LEAST_RANGE:
        return np.full_like(distance, CEILING * expit(0.0))
    scaled = (distance - distance.min()) / spread
    return CEILING * expit(STEEPNESS * (OFFSET - scaled))
