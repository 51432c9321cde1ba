"""Trajectory rewards of a step, over all ranks."""

import numpy as np
import pytest

from siirl.dag_worker.plain_state import read_state, write_state
from siirl.engine.reward_manager import (
    EpisodeOutcomes,
    Memoryless,
    check_own_manager,
    make_reward_manager,
    pooling_of,
)
from siirl.errors import ConfigError, UnknownNameError
from siirl.params import RewardArguments
from vjepa.pooling import MOMENTS, OVER_TIME


def outcomes(
    complete, *, embedding=None, oracle=None, env_return=None, tasks=None
) -> EpisodeOutcomes:
    count = len(complete)
    return EpisodeOutcomes(
        uid_B=[str(i) for i in range(count)],
        task_name_B=tasks or ["door-open"] * count,
        index_B=np.arange(count) // 4,
        complete_B=np.array(complete, bool),
        env_return_B=np.array(
            env_return if env_return is not None else np.zeros(count), np.float32
        ),
        video_embedding_BD=None if embedding is None else np.array(embedding, np.float32),
        oracle_distance_B=None if oracle is None else np.array(oracle, np.float32),
    )


def manager(name: str):
    return make_reward_manager(RewardArguments(name=name), demonstrations={}, tasks=("door-open",))


def test_success_is_one_and_failure_zero():
    assert manager("success").score(outcomes([True, False])).reward_B.tolist() == [1.0, 0.0]


def test_return_is_the_environments_own_sum():
    scores = manager("return").score(outcomes([False, False], env_return=[2.5, -1.0]))
    assert scores.reward_B.tolist() == [2.5, -1.0]
    assert scores.env_weight_B.tolist() == [1.0, 1.0]  # all of it is at the tokens that earned it


def test_srpo_gives_a_failure_near_the_successes_more_than_one_far_away():
    embedding = [[0.0, 0.0], [0.1, 0.0], [1.0, 0.0], [5.0, 0.0]]
    reward_B = (
        manager("srpo").score(outcomes([True, True, False, False], embedding=embedding)).reward_B
    )
    assert reward_B[:2].tolist() == [1.0, 1.0]
    assert 0.8 > reward_B[2] > reward_B[3] > 0.0


def test_srpo_has_a_reference_once_it_saw_a_success():
    srpo = manager("srpo")
    assert not srpo.has_reference("door-open")
    srpo.score(outcomes([True, False], embedding=[[0.0], [1.0]]))
    assert srpo.has_reference("door-open")


def test_the_memory_of_srpo_survives_a_checkpoint():
    one, other = manager("srpo"), manager("srpo")
    one.score(outcomes([True, False, False], embedding=[[0.0], [1.0], [2.0]]))
    other.load_state_dict(one.state_dict())
    step = outcomes([False, False], embedding=[[0.5], [3.0]])
    assert one.score(step).reward_B.tolist() == other.score(step).reward_B.tolist()


def test_the_oracle_ranks_failures_by_true_distance_and_reports_the_correlation():
    scores = manager("oracle").score(outcomes([False] * 5, oracle=[0.3, 0.1, 0.4, 0.2, 0.5]))
    assert np.argsort(-scores.reward_B).tolist() == [1, 3, 0, 2, 4]
    assert scores.metrics["reward/oracle_rank_correlation"] == pytest.approx(1.0)


def test_failures_are_ranked_against_the_oracle_within_their_own_task():
    near_and_far = [0.01, 0.02, 0.03, 0.04, 0.05, 1.0, 2.0, 3.0, 4.0, 5.0]
    # reversed if computed over all tasks
    videos = [[distance] for distance in [1, 2, 3, 4, 5, 0.1, 0.2, 0.3, 0.4, 0.5]]
    step = outcomes(
        [True, True] + [False] * 10,
        embedding=[[0.0], [0.0], *videos],
        oracle=[0.0, 0.0, *near_and_far],
        tasks=["door-open", "push"] + ["door-open"] * 5 + ["push"] * 5,
    )
    step.index_B[:] = np.array([0, 1] + [0] * 5 + [1] * 5)
    assert manager("srpo").score(step).metrics["reward/oracle_rank_correlation"] == pytest.approx(
        1.0
    )


def episodes_along_a_line(seed: int, count: int = 32) -> EpisodeOutcomes:
    """Episodes that move from 0 to an end, in groups of four; from 1 on they succeed."""
    ends = np.random.default_rng(seed).uniform(0, 1.4, count)
    embedding = np.linspace(0, ends, MOMENTS, axis=1)
    return outcomes(ends >= 1, embedding=embedding, oracle=np.maximum(1 - ends, 0))


def test_video_value_ranks_failures_after_it_has_learned_from_earlier_steps():
    value = manager("video_value")
    assert not value.has_reference("door-open")
    for seed in range(3):
        scores = value.score(episodes_along_a_line(seed))
    assert value.has_reference("door-open")
    assert scores.metrics["reward/oracle_rank_correlation"] > 0.9


def test_video_value_learns_from_dropped_episodes_too():
    seen, dropped = manager("video_value"), manager("video_value")
    seen.score(episodes_along_a_line(0))
    dropped.remember(episodes_along_a_line(0))
    for value in (seen, dropped):
        value.score(episodes_along_a_line(1))
    learnt, also_learnt = (value.state_dict()["door-open"] for value in (seen, dropped))
    for kind in ("successes_NF", "failures_NF"):
        assert np.array_equal(learnt[kind], also_learnt[kind]) and len(learnt[kind]) > 0


def test_the_memory_of_video_value_survives_a_checkpoint(tmp_path):
    one, other = manager("video_value"), manager("video_value")
    one.score(episodes_along_a_line(0))
    write_state(tmp_path / "state.pt", one.state_dict())
    other.load_state_dict(read_state(tmp_path / "state.pt"))
    step = episodes_along_a_line(1)
    assert one.score(step).reward_B.tolist() == other.score(step).reward_B.tolist()


@pytest.mark.parametrize("name", ["srpo", "srpo_released", "video_value"])
def test_a_reward_of_videos_without_an_encoder_is_refused_by_its_own_name(name):
    with pytest.raises(ConfigError, match=f"^reward.name={name} needs the column video_embedding"):
        manager(name).score(outcomes([True]))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("json:dumps", r"is called with \(config.reward\), and raised TypeError: .*serializable"),
        ("builtins:str", "made a str, which lacks ranks_failures"),
        ("json:nothing", "module 'json' has no 'nothing'"),
    ],
)
def test_a_reward_that_makes_no_manager_is_refused_with_its_key(reference, message):
    with pytest.raises(ConfigError, match=f"reward.name={reference}.*{message}"):
        manager(reference)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "json:dumps",
            "and raised TypeError: .*serializable.* must make a reward manager, derived",
        ),
        ("builtins:id", "made a int, which lacks ranks_failures"),
        ("json:JSONEncoder", r"which its signature .* does not take"),
        ("collections:Counter", "is a class, which lacks score, remember, .*: derive it from"),
        ("os:sep", "is of type str and cannot be called"),
    ],
)
def test_a_reference_to_something_else_than_a_reward_is_refused_before_the_start(
    reference, message
):
    with pytest.raises(ConfigError, match=f"reward.name={reference} .*{message}"):
        check_own_manager(RewardArguments(name=reference))


class Heavy(Memoryless):
    """A reward that loads a large model."""

    ranks_failures = True

    def __init__(self, config: RewardArguments) -> None:
        raise MemoryError

    def score(self, outcomes):
        raise NotImplementedError


def test_a_class_is_judged_without_an_instance():
    check_own_manager(RewardArguments(name=f"{__name__}:Heavy"))
    check_own_manager(RewardArguments(name="srpo"))


def test_an_unknown_reward_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="srpo_released"):
        manager("srpoo")


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("video_value", OVER_TIME),
        ("siirl.engine.reward_manager.embodied_rewards:VideoValueReward", OVER_TIME),
        ("benchmarks.reward_alone:ValueAlone", OVER_TIME),
        ("benchmarks.reward_alone:VideoAlone", None),
        ("srpo", None),
        ("siirl.engine.reward_manager.embodied_rewards:make_reward_manager", None),
    ],
)
def test_a_value_of_frames_and_classes_derived_from_it_get_the_moments(name, pooling):
    assert pooling_of(name) == pooling
