"""Value of frames: a toy task whose arm moves along a line, and success is at 1."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vjepa.pooling import MOMENTS
from vjepa.progress_metrics import rank_correlation
from vjepa.reward import standardise
from vjepa.reward_settings import TrajectoryRewardConfig
from vjepa.success_value import (
    RIDGE,
    SuccessValueReward,
    TaskMemory,
    ValueRegression,
    closeness,
    count_pairs,
    moments_of,
)

CONFIG = TrajectoryRewardConfig()
GROUP = 8


def episode(end: float, *, seed: int) -> np.ndarray:
    """Features of an episode that moves from 0 to `end` in its own scene."""
    rng = np.random.default_rng(seed)
    way = np.linspace(0, end, MOMENTS)[:, None]
    return np.hstack((way, 0.1 * rng.normal(size=(MOMENTS, 1)))).ravel()


def step(seed: int, *, groups: int = 4) -> dict[str, Any]:
    """Columns of a step; ends are drawn, and an episode that reaches 1 succeeds."""
    rng = np.random.default_rng(seed)
    ends = rng.uniform(0, 1.3, size=groups * GROUP)
    return {
        "embeddings_BD": np.stack([episode(end, seed=i) for i, end in enumerate(ends)]),
        "success_B": ends >= 1.0,
        "tasks_B": ["reach"] * len(ends),
        "group_B": np.repeat(np.arange(groups), GROUP),
    }


def trained() -> SuccessValueReward:
    """A reward that has seen three steps."""
    reward = SuccessValueReward(CONFIG)
    for seed in range(3):
        reward.score(**step(seed))
    return reward


def test_the_first_step_is_a_0_1_reward() -> None:
    columns = step(0)
    output = SuccessValueReward(CONFIG).score(**columns)
    assert output.reward_B.tolist() == columns["success_B"].astype(float).tolist()
    assert output.defined_B.tolist() == columns["success_B"].tolist()


def test_later_failures_are_worth_more_the_further_they_came() -> None:
    columns = step(7)
    output = trained().score(**columns)
    failed = ~columns["success_B"]
    ends = columns["embeddings_BD"][failed, -2]
    assert rank_correlation(ends, output.reward_B[failed]) > 0.9
    assert output.metrics["reward/value_skill"] > 0.3
    assert output.metrics["reward/reach/value_skill"] == output.metrics["reward/value_skill"]


def test_no_failure_is_worth_as_much_as_a_success_or_more_than_alpha_times_the_skill() -> None:
    reward, columns = trained(), step(7)
    output = reward.score(**columns)
    failed = output.reward_B[~columns["success_B"]]
    assert (output.reward_B[columns["success_B"]] == 1).all()
    assert failed.min() >= 0 and failed.max() <= CONFIG.alpha * reward.memory["reach"].skill


def test_frames_without_information_leave_a_0_1_reward() -> None:
    reward = SuccessValueReward(CONFIG)
    for seed in range(4):
        columns = step(seed)
        columns["embeddings_BD"] = np.ones_like(columns["embeddings_BD"])
        output = reward.score(**columns)
    assert output.reward_B.tolist() == columns["success_B"].astype(float).tolist()
    assert output.metrics["reward/value_skill"] == 0.0 and not reward.judges("reach")


def test_a_step_is_scored_before_it_is_learnt_from() -> None:
    one, other = trained(), trained()
    columns = step(7)
    apart = [one.score(**{k: v[:GROUP] for k, v in columns.items()}).distance_B]
    together = other.score(**columns).distance_B[:GROUP]
    np.testing.assert_allclose(apart[0], together)


def test_a_task_does_not_affect_another() -> None:
    reward, columns = trained(), step(7)
    output = reward.score(**columns | {"tasks_B": ["pull"] * len(columns["tasks_B"])})
    assert (output.reward_B == columns["success_B"]).all()
    assert reward.judges("reach") and not reward.judges("pull")


def test_frames_of_chance_are_rarely_ranked() -> None:
    """Forty tasks of thirty steps with random frames, of which a skill above 0 would train on."""
    rng = np.random.default_rng(0)
    skills = []
    for _ in range(40):
        memory = TaskMemory()
        for _ in range(30):
            count_pairs(
                memory,
                value_BM=rng.normal(size=(2 * GROUP, MOMENTS)),
                success_B=rng.uniform(size=2 * GROUP) < 0.4,
                group_B=np.repeat([0, 1], GROUP),
            )
            skills.append(memory.skill)
    assert 0.01 < np.mean(np.array(skills) > 0) < 0.1 and np.mean(skills) < 0.01


def test_random_frames_leave_a_0_1_reward_in_nearly_every_step() -> None:
    rng, reward, paid = np.random.default_rng(1), SuccessValueReward(CONFIG), []
    for seed in range(30):
        columns = step(seed)
        columns["embeddings_BD"] = rng.normal(size=columns["embeddings_BD"].shape)
        output = reward.score(**columns)
        paid.append(output.reward_B[~columns["success_B"]].max())
    assert np.mean(np.array(paid) > 0) < 0.2 and max(paid) < 0.2


def ordered(memory: TaskMemory, *, groups: int, successes: int = 4, failures: int = 4) -> None:
    """Count groups in which every success has a higher value than every failure."""
    won = np.tile(np.arange(successes + failures) >= failures, groups)
    values = np.tile(np.arange(float(successes + failures)), groups)
    count_pairs(
        memory,
        value_BM=np.repeat(values[:, None], MOMENTS, axis=1),
        success_B=won,
        group_B=np.repeat(np.arange(groups), successes + failures),
    )


@pytest.mark.parametrize(("groups", "skill"), [(1, 0.0), (2, 0.0), (3, 0.05), (16, 0.589)])
def test_the_more_groups_are_ordered_the_more_skill_is_proved(groups: int, skill: float) -> None:
    memory = TaskMemory()
    ordered(memory, groups=groups)
    assert memory.skill == pytest.approx(skill, abs=1e-3)


def test_a_value_whose_direction_depends_on_the_scene_has_skill_as_rarely_as_one_that_guesses() -> (
    None
):
    """Forty tasks of thirty steps, whose values follow success up or down, by the group."""
    rng, skills = np.random.default_rng(2), []
    for _ in range(40):
        memory = TaskMemory()
        for _ in range(30):
            won = rng.uniform(size=4 * GROUP) < 0.3
            direction = np.repeat(rng.choice([-4.0, 4.0], size=4), GROUP)
            value = rng.normal(size=4 * GROUP) + direction * won
            count_pairs(
                memory,
                value_BM=np.repeat(value[:, None], MOMENTS, axis=1),
                success_B=won,
                group_B=np.repeat(np.arange(4), GROUP),
            )
            skills.append(memory.skill)
    assert np.mean(np.array(skills) > 0) < 0.1


def test_dropped_groups_are_learnt_from_after_the_step_is_scored() -> None:
    one, other = trained(), trained()
    columns, dropped = step(7), step(8)
    one.remember(
        task="reach", embeddings_BF=dropped["embeddings_BD"], success_B=dropped["success_B"]
    )
    assert np.array_equal(one.score(**columns).reward_B, other.score(**columns).reward_B)
    following = step(9)
    assert not np.array_equal(one.score(**following).reward_B, other.score(**following).reward_B)


def test_dropped_groups_that_wait_are_in_the_checkpoint() -> None:
    reward, dropped = trained(), step(8)
    reward.remember(
        task="reach", embeddings_BF=dropped["embeddings_BD"], success_B=dropped["success_B"]
    )
    restored = SuccessValueReward(CONFIG)
    restored.load_state_dict(reward.state_dict())
    for seed in (7, 9):
        assert np.array_equal(
            restored.score(**step(seed)).reward_B, reward.score(**step(seed)).reward_B
        )


def test_a_state_without_the_variance_of_chance_measures_the_skill_again() -> None:
    state = {
        task: {
            name: value
            for name, value in of_task.items()
            if name not in ("variance", "waiting_NF", "waiting_success_N")
        }
        for task, of_task in trained().state_dict().items()
    }
    restored = SuccessValueReward(CONFIG)
    restored.load_state_dict(state)
    assert not restored.judges("reach")
    for seed in range(7, 10):
        restored.score(**step(seed))
    assert restored.judges("reach")


def test_demonstrations_are_successes_from_the_start() -> None:
    clips = np.stack([episode(1.1, seed=i) for i in range(3)])
    reward = SuccessValueReward(CONFIG, demonstrations={"reach": clips})
    assert len(reward.memory["reach"].successes_NF) == 3


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    reward = SuccessValueReward(TrajectoryRewardConfig(success_bank_size=5))
    for seed in range(4):
        reward.score(**step(seed))
    memory = reward.memory["reach"]
    assert len(memory.successes_NF) == len(memory.failures_NF) == 5
    last = step(3)
    newest = last["embeddings_BD"][~last["success_B"]][-5:]
    assert np.array_equal(memory.failures_NF, newest.astype(np.float32))


def test_without_a_memory_it_is_a_0_1_reward() -> None:
    reward = SuccessValueReward(TrajectoryRewardConfig(success_bank_size=0))
    for seed in range(3):
        columns = step(seed)
        assert (reward.score(**columns).reward_B == columns["success_B"]).all()
    assert len(reward.memory["reach"].successes_NF) == 0


def test_without_a_window_a_step_is_standardised_by_itself() -> None:
    reward = SuccessValueReward(TrajectoryRewardConfig(failure_window=0))
    for seed in range(3):
        output = reward.score(**step(seed))
    assert len(reward.memory["reach"].scores_N) == 0
    assert abs(np.nanmean(output.z_B)) < 1e-9


def test_a_restored_reward_continues_bit_for_bit() -> None:
    reward, columns = trained(), step(7)
    restored = SuccessValueReward(CONFIG)
    restored.load_state_dict(reward.state_dict())
    assert np.array_equal(restored.score(**columns).reward_B, reward.score(**columns).reward_B)


def test_another_rewards_state_is_refused() -> None:
    with pytest.raises(ValueError, match="memory has"):
        SuccessValueReward(CONFIG).load_state_dict({"bank": {"reach": np.zeros((2, 3))}})


def test_embeddings_of_another_encoder_are_refused() -> None:
    columns = step(7)
    wider = np.hstack((columns["embeddings_BD"], columns["embeddings_BD"]))
    with pytest.raises(ValueError, match="32 channels, the remembered ones 16"):
        SuccessValueReward(CONFIG, demonstrations={"reach": columns["embeddings_BD"]}).score(
            **columns | {"embeddings_BD": wider}
        )


@given(st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_the_regression_is_the_closed_form(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, target = rng.normal(size=(12, 3)), rng.uniform(size=12)
    regression = ValueRegression(rows_XE=rows, target_X=target)
    squared = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    kernel = np.exp(-squared / np.median(squared))
    weights = np.linalg.solve(kernel + RIDGE * np.eye(12), target)
    np.testing.assert_allclose(regression.values(rows), kernel @ weights)


def test_a_frame_unlike_all_others_is_worth_nothing() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    regression = ValueRegression(rows_XE=rows, target_X=np.ones(3))
    assert regression.values(np.array([[100.0, 100.0]])).tolist() == [0.0]


def test_freezing_at_the_best_moment_earns_no_more_than_the_two_best_moments() -> None:
    value_BM = np.array([[0.1, 0.2, 0.6, 0.4, 0.0, 0.0, 0.0, 0.0]])
    assert closeness(value_BM) == pytest.approx([0.5])
    frozen_BM = np.array([[0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]])
    assert closeness(frozen_BM) == pytest.approx([0.2])


def test_failures_equal_but_for_rounding_get_equal_rewards() -> None:
    scores = np.array([0.3, 0.3 + 1e-9, 0.3 - 1e-9])
    assert np.abs(standardise(distance=-scores, window=-scores)).max() < 1e-3


def test_moments_keep_their_order() -> None:
    rows = np.arange(2 * MOMENTS * 3).reshape(2, -1)
    assert moments_of(rows)[1].tolist() == [3, 4, 5]
    assert moments_of(rows)[MOMENTS].tolist() == [24, 25, 26]
