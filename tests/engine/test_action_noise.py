"""Noise of actions: uniform, correlated over time as configured, fixed by the seed."""

import math

import numpy as np
import pytest
from scipy.stats import kstest, norm

from siirl.engine.rollout.vla.action_noise import ActionNoise
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.models.action_tokenizer import ActionTokenizer


class Chunks:
    """The part of a policy that gives the number of random numbers per chunk."""

    action_tokenizer = ActionTokenizer(bins=3, low=(-1.0, -1.0), high=(1.0, 1.0))
    chunk_length = 4

    def __init__(self, uniforms_per_chunk=8):
        self.uniforms_per_chunk = uniforms_per_chunk


def noise(*, correlation, seed=(3, 5), numbers=8, greedy=False):
    request = EpisodeRequest(
        **{"uid": "u", "group_id": 0, "task": "push", "task_id": 0, "trial_id": 0, "seed": 0},
        policy_seed=seed,
        noise_correlation=correlation,
        greedy=greedy,
    )
    return ActionNoise(request, Chunks(numbers))


def series(correlation, *, chunks=2_000):
    """Normal quantiles [actions, dimensions] of an episode's numbers."""
    drawn = noise(correlation=correlation)
    return norm.ppf(np.stack([drawn.chunk() for _ in range(chunks)]).reshape(-1, 2))


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_every_number_alone_is_uniform(correlation):
    """A number of each of 2,000 episodes, so that the numbers are independent."""
    drawn = []
    for seed in range(2_000):
        episode = noise(correlation=correlation, seed=(seed,))
        episode.chunk()
        drawn.append(episode.chunk())
    for place in (0, 7):
        assert kstest(np.stack(drawn)[:, place], "uniform").pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 3, 6])
def test_the_correlation_falls_geometrically_within_and_across_chunks(lag):
    z = series(0.8)
    found = [np.corrcoef(z[:-lag, a], z[lag:, a])[0, 1] for a in (0, 1)]
    assert found == pytest.approx([0.8**lag] * 2, abs=0.06)


def test_dimensions_are_independent():
    z = series(0.8)
    assert abs(np.corrcoef(z[:, 0], z[:, 1])[0, 1]) < 0.1


def test_without_correlation_the_numbers_are_the_generators_own():
    expected = np.random.default_rng((3, 5)).random(8, dtype=np.float32)
    assert np.array_equal(noise(correlation=0.0).chunk(), expected)


def test_the_seed_fixes_an_episode_and_another_seed_gives_another():
    one, again, other = (noise(correlation=0.5, seed=(seed,)) for seed in (1, 1, 2))
    for _ in range(3):
        expected = one.chunk()
        assert np.array_equal(again.chunk(), expected)
        assert not np.array_equal(other.chunk(), expected)


def test_several_numbers_of_a_dimension_are_independent_and_a_rest_is_drawn_too():
    """A flow's policy draws first noise, noise of steps, and perhaps the number of a step."""
    drawn = noise(correlation=0.9, numbers=17)
    chunks = np.stack([drawn.chunk() for _ in range(3_000)])
    assert chunks.shape == (3_000, 17)
    assert chunks.dtype == np.float32
    z = norm.ppf(chunks)
    assert abs(np.corrcoef(z[:, 0], z[:, 8])[0, 1]) < 0.2
    assert abs(np.corrcoef(z[:-1, 16], z[1:, 16])[0, 1]) < 0.06


def test_numbers_stay_below_one_however_strong_the_correlation():
    drawn = noise(correlation=0.99)
    drawn.last_JA = np.full((1, 2), math.inf)
    assert drawn.chunk().max() < 1.0


def test_the_mode_draws_no_numbers():
    assert noise(correlation=0.5, greedy=True).chunk() is None
