"""Actions and options: accepted values, and the message for others."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces

from envs.arguments import (
    check_counts,
    check_heldout_share,
    checked_action,
    checked_choice,
    checked_seed,
    read_options,
)
from envs.base import EnvSpec, FrameRequest

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SPEC = EnvSpec("any", ("left", "right"), spaces.Discrete(2), BOX, 5)


def test_box_action_gets_the_dtype_of_its_space():
    action = checked_action([0.5, -1.0], space=BOX)
    assert action.dtype == np.float32
    assert action.tolist() == [0.5, -1.0]


@pytest.mark.parametrize("action", [2, np.int64(2), np.array(2, np.uint8)])
def test_discrete_action_is_any_integer(action):
    assert checked_action(action, space=spaces.Discrete(3)) == 2


def test_discrete_actions_may_start_elsewhere():
    assert checked_action(-1, space=spaces.Discrete(3, start=-1)) == -1
    with pytest.raises(ValueError, match=r"must lie in \[-1, 2\), got 2"):
        checked_action(2, space=spaces.Discrete(3, start=-1))


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ([0.0], r"shape \(2,\), got \(1,\)"),
        ([[0.0, 0.0]], r"shape \(2,\), got \(1, 2\)"),
        ([0, 1], "floating-point numbers, got dtype int64"),
        ([True, False], "floating-point numbers, got dtype bool"),
        (["a", "b"], "floating-point numbers, got dtype <U1"),
        ([np.nan, 0.0], "must be finite"),
        ([np.inf, 0.0], "must be finite"),
        ([1.5, 0.0], "must lie between"),
        (None, r"shape \(2,\), got \(\)"),
    ],
)
def test_bad_box_action_is_named(action, sentence):
    with pytest.raises(ValueError, match=sentence):
        checked_action(action, space=BOX)


@pytest.mark.parametrize("action", [0.5, "0", True, None, [0], 3, -1])
def test_bad_discrete_action_is_refused(action):
    with pytest.raises(ValueError, match="An action must"):
        checked_action(action, space=spaces.Discrete(3))


def test_first_task_and_no_frames_by_default():
    assert read_options(None, spec=SPEC) == ("left", {})


def refuse(row):
    raise ValueError("no rows here")


def test_an_environment_without_rows_refuses_one_with_its_own_sentence():
    without_rows = dataclasses.replace(SPEC, check_row=refuse)
    with pytest.raises(ValueError, match="no rows here"):
        read_options({"row": {"prompt": "1+1="}}, spec=without_rows)
    with pytest.raises(ValueError, match="Unknown reset option 'row'"):
        read_options({"row": {"prompt": "1+1="}}, spec=SPEC)


def test_frames_must_be_requests():
    with pytest.raises(ValueError, match="Frame stream 'video' must be a FrameRequest, got 8"):
        read_options({"frames": {"video": 8}}, spec=SPEC)


@pytest.mark.parametrize("arguments", [(0, 8), (1, 0), (-1, 8)])
def test_frame_request_counts_from_one(arguments):
    with pytest.raises(ValueError, match="must be at least 1"):
        FrameRequest(*arguments)


def test_seed_may_be_numpys():
    assert type(checked_seed(np.int64(3))) is int
    assert checked_seed(None) is None


def test_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        checked_seed(-1)


def test_an_unknown_choice_is_refused_with_the_nearest_name():
    assert checked_choice("split", "train", ("train", "heldout")) == "train"
    with pytest.raises(
        ValueError,
        match=r"Unknown split 'trian'\. Did you mean 'train'\? Known: train, heldout\.",
    ):
        checked_choice("split", "trian", ("train", "heldout"))


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "2"])
def test_a_count_is_a_whole_number_of_at_least_1(count):
    check_counts(max_turns=1, kept=np.int64(2), limit=None)
    with pytest.raises(ValueError, match="max_turns must be a whole number of at least 1, got"):
        check_counts(max_turns=count)


def test_a_share_of_zero_is_refused_where_both_splits_need_questions():
    check_heldout_share(0.0)
    with pytest.raises(ValueError, match=r"must be above 0 and below 1, got 0\.0"):
        check_heldout_share(0.0, may_be_zero=False)
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="must be at least 0 and below 1"):
            check_heldout_share(share)
