"""How successes end: a toy task whose arm moves along a line, and success is at 1."""

import copy
from typing import Any

import numpy as np
import pytest

from vjepa.pooling import MOMENTS
from vjepa.progress_metrics import rank_correlation
from vjepa.reward import standardise
from vjepa.reward_settings import TrajectoryRewardConfig
from vjepa.success_value import Ends, SuccessValueReward, moments_of, whitening

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
    skill = reward.memory["reach"].skill
    output = reward.score(**columns)
    failed = output.reward_B[~columns["success_B"]]
    assert (output.reward_B[columns["success_B"]] == 1).all()
    assert failed.min() >= 0 and 0 < failed.max() <= CONFIG.alpha * skill


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
    assert trained().score(**columns).reward_B.tolist() == reward.score(**columns).reward_B.tolist()


@pytest.mark.parametrize(("successes", "failures"), [(10, 50), (40, 64)])
def test_random_frames_rarely_have_skill(successes: int, failures: int) -> None:
    skills = []
    for seed in range(60):
        rows = np.random.default_rng(seed).normal(size=(successes + failures, 2 * MOMENTS))
        ends = Ends(successes_NF=rows[:successes], failures_NF=rows[successes:])
        skills.append(ends.skill)
    assert np.mean(np.array(skills) > 0) < 0.15 and np.mean(skills) < 0.02


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


def test_a_memory_of_an_earlier_version_keeps_its_episodes() -> None:
    """Whose scores had another scale."""
    state = trained().state_dict()
    older = {name: state["reach"][name] for name in ("successes_NF", "failures_NF", "scores_N")}
    restored = SuccessValueReward(CONFIG)
    restored.load_state_dict({"reach": older | {"won": 9.0, "pairs": 9.0}})
    assert restored.judges("reach") and len(restored.memory["reach"].scores_N) == 0
    restored.score(**step(7))


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
    with pytest.raises(ValueError, match="memory of 'bank' has successes_NF"):
        SuccessValueReward(CONFIG).load_state_dict({"bank": {"reach": np.zeros((2, 3))}})


def test_embeddings_of_another_encoder_are_refused() -> None:
    columns = step(7)
    wider = np.hstack((columns["embeddings_BD"], columns["embeddings_BD"]))
    with pytest.raises(ValueError, match="32 channels, the remembered ones 16"):
        SuccessValueReward(CONFIG, demonstrations={"reach": columns["embeddings_BD"]}).score(
            **columns | {"embeddings_BD": wider}
        )


def ends_of(successes: list[float], failures: list[float]) -> Ends:
    """Of episodes that move to these places."""
    return Ends(
        successes_NF=np.stack([episode(end, seed=i) for i, end in enumerate(successes)]),
        failures_NF=np.stack([episode(end, seed=50 + i) for i, end in enumerate(failures)]),
    )


FAR = [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65]
WON = [1.0, 1.05, 1.1, 1.15, 1.2]


def test_closeness_is_the_log_ratio_of_the_densities() -> None:
    """By loops over the whitened ends."""
    ends = ends_of(WON, FAR)
    features = episode(0.8, seed=99)[None]
    point = (moments_of(features)[-1] - ends.mean_E) @ ends.whitening_EP

    def density(places: np.ndarray) -> float:
        return float(np.mean([np.exp(-((point - one) ** 2).sum() / ends.width) for one in places]))

    against = density(ends.lost_NP) + density(ends.starts_NP) + np.exp(ends.floor)
    expected = np.log(density(ends.won_NP) / against)
    assert ends.closeness(features) == pytest.approx([expected])


def test_an_end_that_is_further_than_failures_end_is_closer() -> None:
    ends = ends_of(WON, FAR)
    places = np.stack([episode(end, seed=7) for end in (0.4, 0.7, 0.8, 0.9, 1.0)])
    assert (np.diff(ends.closeness(places)) > 0).all()


@pytest.mark.parametrize("value", [0.0, -50.0])
def test_a_video_that_shows_none_of_it_is_farther_than_every_failure(value: float) -> None:
    """Nothing moves, or the camera is covered."""
    ends = ends_of(WON, FAR)
    idle = np.tile([value, 0.0], MOMENTS)[None]
    failures = np.stack([episode(end, seed=60 + i) for i, end in enumerate(FAR)])
    assert ends.closeness(idle)[0] < ends.closeness(failures).max()
    assert ends.strange(np.full_like(idle, value - 50.0)).all()
    assert not ends.strange(failures).any()


def test_the_skill_leaves_out_the_episodes_that_it_compares() -> None:
    """Every success has a scene of its own, unlike all failures, and shows no way to success."""
    rng = np.random.default_rng(5)
    scenes = [rng.normal(size=12) for _ in range(20)]
    rows = np.stack([np.tile(scene, MOMENTS) for scene in scenes])
    assert Ends(successes_NF=rows[:8], failures_NF=rows[8:]).skill == 0.0
    assert ends_of(WON, FAR).skill > 0.5


def test_demonstrations_rank_the_failures_of_a_policy_that_never_succeeds() -> None:
    """Whose groups are all dropped until the reward judges the task."""
    demonstrations = np.stack([episode(1.1, seed=i) for i in range(8)])
    reward = SuccessValueReward(CONFIG, demonstrations={"reach": demonstrations})
    dropped = np.stack([episode(end, seed=20 + i) for i, end in enumerate(FAR)])
    reward.remember(task="reach", embeddings_BF=dropped, success_B=np.zeros(len(FAR), bool))
    assert not reward.judges("reach")
    nothing = {name: column[:0] for name, column in step(7).items()}
    assert "reward/reach/value_skill" not in reward.score(**nothing).metrics
    assert reward.judges("reach")
    columns = step(7)
    columns["success_B"] = np.zeros_like(columns["success_B"])
    assert len(set(reward.score(**columns).reward_B.tolist())) > 20


@pytest.mark.parametrize("place", [3.0, -3.0, 50.0])
def test_an_end_unlike_all_others_earns_nothing(place: float) -> None:
    """Every time, though failures are far from success themselves; others' rewards stay."""
    reward = SuccessValueReward(
        CONFIG, demonstrations={"reach": np.stack([episode(20.0, seed=i) for i in range(6)])}
    )
    columns = step(7)
    columns["success_B"] = np.zeros_like(columns["success_B"])
    reward.score(**columns)
    for seed in range(8, 11):
        columns = step(seed)
        columns["success_B"] = np.zeros_like(columns["success_B"])
        uncovered = copy.deepcopy(reward).score(**columns).reward_B
        columns["embeddings_BD"][:6] = np.tile([0.0, place], MOMENTS)
        paid = reward.score(**columns).reward_B
        assert (paid[:6] == 0).all() and paid[6:].min() > 0
        assert paid[6:].std() > 0.5 * uncovered[6:].std()


def test_few_successes_have_no_skill() -> None:
    reward = SuccessValueReward(
        CONFIG, demonstrations={"reach": np.stack([episode(1.1, seed=i) for i in range(4)])}
    )
    columns = step(7)
    columns["success_B"] = np.zeros_like(columns["success_B"])
    for _ in range(2):
        output = reward.score(**columns)
        assert not output.reward_B.any()
        assert output.metrics["reward/reach/value_skill"] == 0.0  # so that the run says so
    assert not reward.judges("reach")


def test_whitened_rows_have_unit_variance_in_the_first_components() -> None:
    rows = np.random.default_rng(3).normal(size=(50, 6)) * [9, 4, 1, 0.1, 0, 0]
    centred = rows - rows.mean(0)
    white = centred @ whitening(centred)
    assert white.shape == (50, 4)
    np.testing.assert_allclose(white.T @ white / 50, np.eye(4), atol=1e-9)


def test_failures_equal_but_for_rounding_get_equal_rewards() -> None:
    scores = np.array([0.3, 0.3 + 1e-9, 0.3 - 1e-9])
    assert np.abs(standardise(distance=-scores, window=-scores)).max() < 1e-3


def test_moments_keep_their_order() -> None:
    rows = np.arange(2 * MOMENTS * 3).reshape(2, -1)
    assert moments_of(rows)[1].tolist() == [3, 4, 5]
    assert moments_of(rows)[MOMENTS].tolist() == [24, 25, 26]
