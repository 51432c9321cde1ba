"""Trajectory reward: points on a line, whose distance to success is known."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from vjepa.reward import RewardOutput, TrajectoryReward, srpo_failure_reward, standardise
from vjepa.reward_settings import TrajectoryRewardConfig

CONFIG = TrajectoryRewardConfig()


def score(
    reward: TrajectoryReward,
    positions: list[float],
    successes: list[bool],
    tasks: list[str] | None = None,
) -> RewardOutput:
    """Score trajectories whose embedding is one number; every task is a group."""
    tasks = tasks or ["open"] * len(positions)
    groups = [sorted(set(tasks)).index(task) for task in tasks]
    return reward.score(
        embeddings_BD=np.array(positions)[:, None],
        success_B=np.array(successes, dtype=bool),
        tasks_B=tasks,
        group_B=np.array(groups),
    )


def test_success_is_worth_one_and_failures_fall_with_distance() -> None:
    output = score(TrajectoryReward(CONFIG), [0.0, 1.0, 2.0, 3.0], [True, False, False, False])
    # distances 1, 2, 3: mean 2, deviation sqrt(2/3); z = -1.2247, 0, 1.2247
    expected = [1.0, *(0.8 * expit(np.array([1.5**0.5, 0.0, -(1.5**0.5)])))]
    np.testing.assert_allclose(output.reward_B, expected, rtol=1e-6)
    assert output.reward_B.dtype == np.float32


def test_once_the_window_is_full_a_failures_reward_does_not_depend_on_the_other_rows() -> None:
    reward = TrajectoryReward(TrajectoryRewardConfig(min_failure_window=3, success_bank_size=1))
    score(reward, [0.0, 1.0, 2.0, 3.0], [True, False, False, False])
    state = reward.state_dict()
    alone = score(reward, [2.0], [False]).reward_B[0]
    reward.load_state_dict(state)
    among_bad_ones = score(reward, [2.0, 50.0, 90.0], [False, False, False]).reward_B[0]
    assert alone == among_bad_ones == np.float32(0.4)


def test_the_window_is_frozen_for_the_step_and_grows_after_it() -> None:
    reward = TrajectoryReward(TrajectoryRewardConfig(min_failure_window=2))
    score(reward, [0.0, 1.0, 3.0], [True, False, False])
    assert score(reward, [4.0, 2.0], [False, False]).z_B.tolist() == [
        2.0,
        0.0,
    ]  # mean 2 and deviation 1 of the first step
    # now 1, 3, 4, 2: mean 2.5, deviation sqrt(1.25)
    np.testing.assert_allclose(score(reward, [2.5], [False]).z_B, [0.0])


def test_one_failure_alone_has_z_zero() -> None:
    assert score(TrajectoryReward(CONFIG), [0.0, 7.0], [True, False]).z_B[1] == 0.0


def test_float_noise_between_equal_failures_is_not_amplified() -> None:
    distance = np.array([1.0, 1.0 + 1e-9])
    assert np.abs(standardise(distance=distance, window=distance)).max() < 1e-5


def test_without_any_success_failures_are_undefined_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        output = score(TrajectoryReward(CONFIG), [1.0, 2.0], [False, False])
    assert output.reward_B.tolist() == [0.0, 0.0] and output.defined_B.tolist() == [False, False]
    assert np.isnan(output.distance_B).all()
    assert output.metrics["reward/undefined"] == 2.0 and "'open'" in caplog.text
    assert np.isfinite(list(output.metrics.values())).all()


def test_a_success_of_an_earlier_step_serves_as_reference() -> None:
    reward = TrajectoryReward(CONFIG)
    score(reward, [0.0], [True])
    output = score(reward, [1.0, 2.0], [False, False])
    assert output.defined_B.all() and output.distance_B.tolist() == [1.0, 2.0]


def test_demonstrations_serve_as_references_and_are_never_forgotten() -> None:
    reward = TrajectoryReward(
        TrajectoryRewardConfig(success_bank_size=0), demonstrations={"open": np.array([[0.0]])}
    )
    for _ in range(2):
        assert score(reward, [3.0], [False]).distance_B.tolist() == [3.0]


def test_the_bank_and_the_window_are_bounded_and_keep_the_newest() -> None:
    reward = TrajectoryReward(TrajectoryRewardConfig(success_bank_size=2, failure_window=3))
    for position in range(5):
        score(reward, [float(position), 10.0 + position], [True, False])
    assert reward.bank["open"].tolist() == [[3.0], [4.0]]
    assert reward.failures["open"].tolist() == [[12.0], [13.0], [14.0]]


def test_a_step_larger_than_the_bank_leaves_evenly_spaced_successes() -> None:
    reward = TrajectoryReward(TrajectoryRewardConfig(success_bank_size=3))
    score(reward, [4.0, 0.0, 2.0, 1.0, 3.0], [True] * 5)
    assert reward.bank["open"].tolist() == [[0.0], [2.0], [4.0]]


def test_tasks_do_not_mix() -> None:
    alone = score(TrajectoryReward(CONFIG), [0.0, 1.0, 4.0], [True, False, False])
    tasks = ["open", "open", "open", "push", "push"]
    together = score(
        TrajectoryReward(CONFIG),
        [0.0, 1.0, 4.0, 1.0, 0.5],
        [True, False, False, False, False],
        tasks,
    )
    np.testing.assert_array_equal(together.reward_B[:3], alone.reward_B)
    assert together.defined_B.tolist() == [True, True, True, False, False]


def test_metrics_count_what_happened() -> None:
    metrics = score(
        TrajectoryReward(CONFIG), [0.0, 0.1, 1.0, 3.0], [True, True, False, False]
    ).metrics
    assert (
        metrics["reward/successes"],
        metrics["reward/failures"],
        metrics["reward/clusters"],
    ) == (2.0, 2.0, 1.0)
    assert metrics["reward/success_rate"] == 0.5
    assert metrics["reward/failure_distance_mean"] == pytest.approx(1.95)
    assert (
        metrics["reward/failure_q00"]
        < metrics["reward/failure_q50"]
        < metrics["reward/failure_q100"]
        < 0.8
    )


def test_an_embedding_that_is_not_finite_is_named() -> None:
    with pytest.raises(ValueError, match=r"Row 1 \(task 'push'\)"):
        score(TrajectoryReward(CONFIG), [0.0, np.nan], [True, False], ["open", "push"])


def test_a_group_has_one_task() -> None:
    with pytest.raises(ValueError, match="Group 7 has the tasks 'open' and 'push'"):
        TrajectoryReward(CONFIG).score(
            embeddings_BD=np.zeros((2, 1)),
            success_B=np.array([True, False]),
            tasks_B=["open", "push"],
            group_B=np.array([7, 7]),
        )


def test_embeddings_of_another_encoder_are_refused() -> None:
    reward = TrajectoryReward(CONFIG)
    score(reward, [0.0], [True])
    with pytest.raises(ValueError, match="another encoder"):
        reward.score(
            embeddings_BD=np.zeros((1, 5)),
            success_B=np.array([False]),
            tasks_B=["open"],
            group_B=np.array([0]),
        )


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="'tasks': 1"):
        TrajectoryReward(CONFIG).score(
            embeddings_BD=np.zeros((2, 1)),
            success_B=np.array([True, False]),
            tasks_B=["open"],
            group_B=np.array([0, 0]),
        )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha": 1.5}, "alpha must be at most 1"),
        ({"alpha": float("nan")}, "alpha must be above 0"),
        ({"dbscan_eps_scale": 0.0}, "dbscan_eps_scale must be above 0"),
        ({"failure_window": -1}, "failure_window must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrajectoryRewardConfig(**setting)  # type: ignore[arg-type]


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['bank', 'failures'\]"):
        TrajectoryReward(CONFIG).load_state_dict({"weights": {}})


def test_resumed_equals_uninterrupted_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    steps = [(rng.normal(size=(12, 6)), rng.random(12) < 0.3) for _ in range(6)]
    columns = {"tasks_B": ["open"] * 6 + ["push"] * 6, "group_B": np.arange(12) // 3}
    whole, first, second = (
        TrajectoryReward(TrajectoryRewardConfig(success_bank_size=4, failure_window=10))
        for _ in range(3)
    )
    expected = [whole.score(embeddings_BD=e, success_B=s, **columns).reward_B for e, s in steps]
    for embeddings, success in steps[:3]:
        first.score(embeddings_BD=embeddings, success_B=success, **columns)
    second.load_state_dict(first.state_dict())
    for (embeddings, success), wanted in zip(steps[3:], expected[3:], strict=True):
        np.testing.assert_array_equal(
            second.score(embeddings_BD=embeddings, success_B=success, **columns).reward_B, wanted
        )


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.floats(0.01, 1.0))
def test_reward_falls_with_distance_and_stays_below_alpha(
    distances: list[float], alpha: float
) -> None:
    distance = np.sort(np.abs(distances))
    rewards = srpo_failure_reward(z=standardise(distance=distance, window=distance), alpha=alpha)
    assert (np.diff(rewards) <= 0).all() and (rewards >= 0).all() and (rewards <= alpha).all()


def _random_step(seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    tasks = rng.choice(["open", "push", "close"], size=6).tolist()
    return {
        "embeddings_BD": np.repeat(rng.normal(size=(6, 5)), 4, axis=0) + rng.normal(size=(24, 5)),
        "success_B": rng.random(24) < 0.3,
        "tasks_B": [task for task in tasks for _ in range(4)],
        "group_B": np.repeat(np.arange(6), 4),
    }


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_the_order_in_which_ranks_hand_rows_in_does_not_matter(seed: int) -> None:
    order = np.random.default_rng(seed).permutation(24)
    straight, permuted = (
        TrajectoryReward(TrajectoryRewardConfig(success_bank_size=3)),
        TrajectoryReward(TrajectoryRewardConfig(success_bank_size=3)),
    )
    for step in range(3):
        rows = _random_step(seed % 1000 + step)
        shuffled = {name: [column[i] for i in order] for name, column in rows.items()}  # type: ignore[index]
        expected = straight.score(**rows)  # type: ignore[arg-type]
        found = permuted.score(**{**shuffled, "embeddings_BD": np.array(shuffled["embeddings_BD"])})  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.reward_B, expected.reward_B[order])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(-10, 10))
def test_scaling_all_embeddings_changes_no_reward(seed: int, exponent: int) -> None:
    plain, scaled = TrajectoryReward(CONFIG), TrajectoryReward(CONFIG)
    for step in range(2):
        rows = _random_step(seed % 1000 + step)
        bigger = {**rows, "embeddings_BD": rows["embeddings_BD"] * 2.0**exponent}  # type: ignore[operator]
        np.testing.assert_array_equal(plain.score(**rows).reward_B, scaled.score(**bigger).reward_B)  # type: ignore[arg-type]
