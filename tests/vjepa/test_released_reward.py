"""siiRL's published trajectory reward, beside scores that its own code gave.

`siirl_released_scores.json` holds small batches and the scores of siiRL's `compute_embodied_reward`
for them (source and versions in the file).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from vjepa.released_reward import released_failure_reward, score_as_released
from vjepa.reward import RewardOutput

PUBLISHED = json.loads(Path(__file__).with_name("siirl_released_scores.json").read_text())["cases"]


def score(case: dict[str, Any], **changed: Any) -> RewardOutput:
    case = case | changed
    tasks = sorted(set(case["tasks"]))
    return score_as_released(
        embeddings_BD=np.array(case["embeddings"], dtype=np.float32),
        success_B=np.array(case["success"]),
        tasks_B=case["tasks"],
        group_B=np.array([tasks.index(task) for task in case["tasks"]]),
    )


def named(name: str) -> dict[str, Any]:
    return next(case for case in PUBLISHED if case["name"] == name)


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["name"])
def test_scores_equal_those_of_the_published_code(case: dict[str, Any]) -> None:
    np.testing.assert_allclose(score(case).reward_B, case["scores"], atol=1e-6)


def test_the_published_cases_have_clusters_and_have_none() -> None:
    clustered = score(named("one cluster and two stray successes")).metrics
    scattered = score(named("successes in no cluster")).metrics
    assert (clustered["reward/clusters"], clustered["reward/noise_share"]) == (1.0, 2 / 6)
    assert (scattered["reward/clusters"], scattered["reward/noise_share"]) == (1.0, 1.0)


def test_successes_in_no_cluster_are_replaced_by_their_mean() -> None:
    # the successes stand at -1 and 1, the failures at 0.5 and 3: distances 0.5 and 3 from their
    # mean
    far_apart = {
        "embeddings": [[-1.0], [1.0], [0.5], [3.0]],
        "success": [True, True, False, False],
        "tasks": ["open"] * 4,
    }
    assert score(far_apart).distance_B[2:].tolist() == [0.5, 3.0]


def test_the_nearest_failure_of_a_batch_gets_the_same_reward_however_far_it_is() -> None:
    near = released_failure_reward(distance=np.array([1.0, 2.0]))
    far = released_failure_reward(distance=np.array([1000.0, 2000.0]))
    np.testing.assert_allclose(near, 0.6 * expit(np.array([5.0, -5.0])))
    np.testing.assert_array_equal(near, far)


def test_equal_distances_get_half_of_the_ceiling() -> None:
    assert released_failure_reward(distance=np.array([2.0, 2.0])).tolist() == [0.3, 0.3]


def test_failures_of_a_task_without_success_are_undefined() -> None:
    output = score(named("no success"))
    assert not output.defined_B.any() and np.isnan(output.distance_B).all()


def test_an_embedding_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Row 1 .*not finite"):
        score(named("one failure"), embeddings=[[0.0], [np.nan], [1.0], [2.0]])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_reward_falls_with_distance_and_stays_below_its_ceiling(distances: list[float]) -> None:
    rewards = released_failure_reward(distance=np.sort(np.abs(distances)))
    assert (np.diff(rewards) <= 0).all() and (rewards >= 0).all() and (rewards <= 0.6).all()
