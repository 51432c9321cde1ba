"""Cluster centres of successes: hand-made points in the plane."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vjepa.clustering import Clusters, cluster, nearest_centre_distance, scale_free_radius

TWO_BLOBS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [10.0, 10.0], [11.0, 10.0], [10.0, 11.0]])


def test_two_blobs_have_two_centres() -> None:
    found = cluster(references_ND=TWO_BLOBS, min_samples=2, eps_scale=2.0)
    np.testing.assert_allclose(
        sorted(found.centres_KD.tolist()), [[1 / 3, 1 / 3], [31 / 3, 31 / 3]]
    )
    assert (found.num_references, found.noise_share) == (6, 0.0)


def test_a_lone_point_is_noise_and_no_centre() -> None:
    found = cluster(
        references_ND=np.vstack((TWO_BLOBS, [[100.0, 0.0]])), min_samples=2, eps_scale=2.0
    )
    assert len(found.centres_KD) == 2
    assert found.noise_share == pytest.approx(1 / 7)


def test_the_radius_is_a_multiple_of_the_median_neighbour_distance() -> None:
    distances = np.abs(np.subtract.outer(line := np.array([0.0, 1.0, 3.0, 7.0]), line))
    # nearest other point of each: 1, 1, 2, 4; median 1.5
    assert scale_free_radius(distances_NN=distances, min_samples=1, eps_scale=2.0) == 3.0
    # second nearest other point: 3, 2, 3, 6; median 3
    assert scale_free_radius(distances_NN=distances, min_samples=2, eps_scale=1.0) == 3.0


def test_one_reference_is_its_own_centre() -> None:
    found = cluster(references_ND=np.array([[3.0, 4.0]]), min_samples=2, eps_scale=2.0)
    assert nearest_centre_distance(embeddings_BD=np.zeros((1, 2)), clusters=found).tolist() == [5.0]


def test_identical_references_are_one_cluster() -> None:
    found = cluster(references_ND=np.ones((5, 3)), min_samples=2, eps_scale=2.0)
    assert found.centres_KD.tolist() == [[1.0, 1.0, 1.0]]


def test_two_points_of_three_duplicates_each_are_two_centres() -> None:
    # the second nearest other point of each is at distance 0
    points = np.array([[1.0, 2.0], [0.0, 3.0]] * 3)
    found = cluster(references_ND=points, min_samples=2, eps_scale=2.0)
    assert found.centres_KD.tolist() == [[0.0, 3.0], [1.0, 2.0]]
    assert (found.num_references, found.noise_share, found.radius) == (6, 0.0, 0.0)


def test_scattered_references_are_each_a_centre() -> None:
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = cluster(references_ND=corners, min_samples=2, eps_scale=0.5)
    assert len(found.centres_KD) == 4 and found.noise_share == 1.0


def test_a_thousand_channels_still_cluster() -> None:
    rng = np.random.default_rng(0)
    blobs = rng.normal(size=(2, 1, 1408)) * 5 + rng.normal(size=(2, 10, 1408))
    assert (
        len(cluster(references_ND=blobs.reshape(20, -1), min_samples=2, eps_scale=1.5).centres_KD)
        == 2
    )


def test_no_reference_is_an_error() -> None:
    with pytest.raises(ValueError, match="No references"):
        cluster(references_ND=np.zeros((0, 2)), min_samples=2, eps_scale=1.0)


def test_distances_are_to_the_nearest_centre() -> None:
    clusters = Clusters(np.array([[0.0, 0.0], [10.0, 0.0]]), num_references=2)
    distances = nearest_centre_distance(
        embeddings_BD=np.array([[3.0, 4.0], [10.0, 2.0]]), clusters=clusters
    )
    assert distances.tolist() == [5.0, 2.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(-20, 20))
def test_order_and_power_of_two_scale_do_not_matter(seed: int, count: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 4)) + 5 * rng.integers(0, 2, size=(count, 1))
    found = cluster(references_ND=points, min_samples=2, eps_scale=1.5)
    shuffled = cluster(references_ND=rng.permutation(points), min_samples=2, eps_scale=1.5)
    scaled = cluster(references_ND=points * 2.0**exponent, min_samples=2, eps_scale=1.5)
    np.testing.assert_array_equal(found.centres_KD, shuffled.centres_KD)
    np.testing.assert_array_equal(found.centres_KD * 2.0**exponent, scaled.centres_KD)
