"""Text rewards without functions: the environment's own, DAPO's penalty, and checks of a score."""

from decimal import Decimal

import numpy as np
import pytest
import torch

from siirl.engine.reward_manager import (
    RewardManager,
    make_reward_manager,
)
from siirl.engine.reward_worker import checked, judged
from siirl.errors import ConfigError
from siirl.params import RewardArguments, SiiRLArguments
from siirl.params.algorithm_args import OverlongArguments
from tests.engine.text_managers import text_manager
from tests.engine.text_outcomes import outcomes

# Without functions


def text_config(**options) -> SiiRLArguments:
    return SiiRLArguments(**{"reward": RewardArguments(), **options})


@pytest.mark.parametrize(("name", "expected"), [("success", [1.0, 0.0]), ("return", [0.25, 0.25])])
def test_the_environments_own_reward_needs_no_texts_and_no_process(name, expected):
    manager = text_manager(text_config(reward=RewardArguments(name=name)))
    step = outcomes("a", "b", success=[True, False])
    step.texts_B.clear()
    assert manager.score(step).reward_B.tolist() == expected


def test_no_episodes_give_no_rewards():
    assert text_manager(text_config()).score(outcomes()).reward_B.tolist() == []


def test_text_managers_score_their_own_rank_and_trajectory_rewards_all():
    assert text_manager(text_config()).looks_at_all_ranks is False
    assert (
        make_reward_manager(RewardArguments(), demonstrations={}, tasks=("t",)).looks_at_all_ranks
        is True
    )


def test_both_kinds_of_manager_keep_the_protocol():
    for manager in (
        text_manager(text_config()),
        make_reward_manager(RewardArguments(), demonstrations={}, tasks=("t",)),
    ):
        assert isinstance(manager, RewardManager)


# DAPO's penalty: none up to 80 of 100 tokens, half at 90, all of it at 100


def dapo_config(
    *, penalty: float, buffer: int | None = None, manager: str = "dapo"
) -> SiiRLArguments:
    config = SiiRLArguments(reward=RewardArguments(name="return", manager=manager))
    config.data.max_response_length = 100
    config.algorithm.overlong = OverlongArguments(penalty=penalty, buffer=buffer)
    return config


def test_dapo_subtracts_a_penalty_for_long_responses_outside_the_score():
    scores = text_manager(dapo_config(penalty=1.0)).score(
        outcomes("a", "b", "c", lengths=[80, 90, 100])
    )
    assert scores.penalty_B.tolist() == [0.0, -0.5, -1.0]
    assert scores.reward_B.tolist() == [0.25, 0.25, 0.25]


def test_the_penalty_grows_linearly_from_its_start():
    scores = text_manager(dapo_config(penalty=2.0, buffer=50)).score(
        outcomes("a", "b", lengths=[60, 75])
    )
    assert scores.penalty_B.tolist() == pytest.approx([-0.4, -1.0])


def test_the_penalty_belongs_to_the_algorithm_and_not_to_how_functions_run():
    scores = text_manager(dapo_config(penalty=1.0, manager="naive")).score(
        outcomes("a", lengths=[100])
    )
    assert scores.penalty_B.tolist() == [-1.0]


def test_dapo_without_a_penalty_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"algorithm.overlong.penalty=0 disables it: set the key \(pipeline=dapo sets 1\)",
    ):
        text_manager(dapo_config(penalty=0.0))


def test_a_penalty_that_grows_over_more_than_the_response_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"algorithm.overlong.buffer=101 is more than data.max_response_length=100",
    ):
        text_manager(dapo_config(penalty=1.0, buffer=101))


# Checks in the worker process


class Stubborn(float):
    """A user's number that cannot be converted."""

    def __float__(self) -> float:
        raise KeyError("not now")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        *((True, 1.0), (np.True_, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (Decimal("0.5"), 0.5)),
        *((torch.tensor(2), 2.0), (np.array(2.0), 2.0), ({"score": np.int64(2)}, 2.0)),
    ],
)
def test_every_kind_of_real_number_is_a_score(result, expected):
    assert checked(result) == {"score": expected}


def test_a_further_part_that_is_not_finite_is_left_out_of_the_logs():
    assert judged({"score": 1.0, "margin": float("nan")}) == {"score": 1.0}


@pytest.mark.parametrize(
    "part",
    [None, "eighteen", np.str_("1"), [1.0], np.ones(2), torch.ones(2), 1j, 10**400, Stubborn(1.0)],
    ids=lambda part: type(part).__name__,
)
def test_no_value_of_a_further_part_makes_the_score_fail(part):
    assert judged({"score": 1.0, "part": part, "share": torch.tensor(0.5)}) == {
        "score": 1.0,
        "share": 0.5,
    }


@pytest.mark.parametrize(
    "score",
    [
        *(None, "1", [1.0], 1j, torch.ones(2), 10**400, Stubborn(1.0)),
        *(np.complex64(1), np.bytes_(b"1"), Decimal("sNaN")),
    ],
)
def test_anything_but_a_number_is_not_a_score(score):
    assert "it returned" in judged({"score": score})["failed"]


def test_a_score_whose_square_exceeds_float32_is_not_a_score():
    assert "but a score must be finite" in judged(1e300)["failed"]
    assert judged(-1e15) == {"score": -1e15}


def test_a_score_below_the_range_of_floats_is_described_with_its_sign():
    assert judged(-(10**400)) == {
        "failed": "it returned -inf, but a score must be finite and at most 1e+15 in size"
    }


def test_a_user_class_that_is_not_a_reward_manager_is_refused():
    with pytest.raises(
        ConfigError, match="made a dict, which lacks ranks_failures, looks_at_all_ranks, score"
    ):
        make_reward_manager(
            RewardArguments(name="halving_reward:no_manager"), demonstrations={}, tasks=("t",)
        )
