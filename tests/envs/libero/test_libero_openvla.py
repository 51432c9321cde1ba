"""OpenVLA-OFT's conventions, with numbers that can be checked by hand."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.libero import openvla_conventions
from envs.libero.openvla_conventions import (
    Quantiles,
    action_tokens,
    action_values,
    environment_actions,
    normalised_actions,
    policy_image,
    published_image,
    read_statistics,
)

SIX_AND_GRIPPER = Quantiles(
    low=np.array([-0.5] * 6 + [0.0]),
    high=np.array([0.5] * 6 + [1.0]),
    mask=np.array([True] * 6 + [False]),
)


def test_image_is_liberos_turned_by_180_degrees():
    upright = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    liberos = upright[::-1]  # OpenGL's first row is the lowest
    assert np.array_equal(published_image(upright), liberos[::-1, ::-1])


@pytest.mark.parametrize("size", [64, 128, 224, 256])
def test_flat_image_is_unchanged(size):
    seen = policy_image(np.full((size, size, 3), 128, np.uint8))
    assert (seen.shape, seen.dtype) == ((224, 224, 3), np.uint8)
    assert np.abs(seen.astype(int) - 128).max() <= 1


def test_actions_are_un_normalised_by_the_quantiles():
    [action] = environment_actions(
        np.array([[-1, 1, 0, 0.5, 0, 0, 1.0]]), quantiles=SIX_AND_GRIPPER
    )
    assert action[:6] == pytest.approx([-0.5, 0.5, 0.0, 0.25, 0.0, 0.0], abs=1e-6)


@settings(derandomize=True, deadline=None)
@given(
    motion=st.lists(st.floats(-0.5, 0.5), min_size=6, max_size=6),
    fingers=st.sampled_from([-1.0, 1.0]),
)
def test_actions_of_the_environment_come_back_from_what_the_network_learns(motion, fingers):
    action = np.array([[*motion, fingers]])
    assert environment_actions(
        normalised_actions(action, quantiles=SIX_AND_GRIPPER), quantiles=SIX_AND_GRIPPER
    ) == pytest.approx(action, abs=1e-6)


@pytest.mark.parametrize(("theirs", "ours"), [(1.0, -1.0), (0.9, -1.0), (0.1, 1.0), (0.0, 1.0)])
def test_their_open_gripper_is_one_and_ours_minus_one(theirs, ours):
    [action] = environment_actions(
        np.array([[0, 0, 0, 0, 0, 0, theirs]]), quantiles=SIX_AND_GRIPPER
    )
    assert action[6] == ours


def test_proprioception_is_clipped_to_the_quantiles():
    quantiles = Quantiles(
        low=np.array([0.0, 0.0]), high=np.array([2.0, 2.0]), mask=np.array([True, True])
    )
    assert quantiles.normalise(np.array([1.0, 5.0])) == pytest.approx([0.0, 1.0], abs=1e-6)


def test_bins_are_counted_down_from_the_end_of_the_vocabulary():
    assert action_tokens(np.array([-1.0, 1.0])).tolist() == [31999, 31744]


def test_tokens_stand_for_the_middles_of_255_bins():
    assert action_values(np.array([31999, 31745, 31744])) == pytest.approx(
        [-1 + 1 / 255, 1 - 1 / 255, 1 - 1 / 255]
    )


@settings(derandomize=True, deadline=None)
@given(value=st.floats(-1, 1))
def test_value_comes_back_to_within_half_a_bin(value):
    assert action_values(action_tokens(np.array([value])))[0] == pytest.approx(
        value, abs=1 / 255 + 1e-9
    )


@settings(derandomize=True, deadline=None)
@given(value=st.floats(-0.5, 0.5))
def test_normalising_undoes_un_normalising(value):
    assert SIX_AND_GRIPPER.unnormalise(SIX_AND_GRIPPER.normalise(np.full(7, value)))[
        :6
    ] == pytest.approx(value, abs=1e-6)


def test_statistics_of_a_checkpoint_are_read_by_suite(tmp_path):
    action = {"q01": [0.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}
    proprioception = {"q01": [0.0] * 8, "q99": [2.0] * 8}
    content = {
        "libero_goal_no_noops": {"action": action, "proprio": proprioception},
        "libero_object": {"action": action},
    }
    (tmp_path / openvla_conventions.STATISTICS_FILE).write_text(json.dumps(content))
    actions, felt = read_statistics(tmp_path, data="goal")
    assert (actions.mask.tolist(), felt.high.tolist()) == ([True] * 6 + [False], [2.0] * 8)
    assert read_statistics(tmp_path, data="object")[1] is None
    with pytest.raises(
        ValueError,
        match=r"statistics of several data sets, libero_goal_no_noops, libero_object: name one",
    ):
        read_statistics(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"knows libero_goal_no_noops, libero_object, but none of 10, libero_10_no_noops",
    ):
        read_statistics(tmp_path, data="10")


def test_statistics_may_lie_in_the_configuration(tmp_path):
    action = {"q01": [0.0] * 7, "q99": [1.0] * 7}
    (tmp_path / "config.json").write_text(
        json.dumps({"norm_stats": {"bridge_orig": {"action": action}}})
    )
    assert read_statistics(tmp_path)[0].high.tolist() == [1.0] * 7


def test_checkpoint_without_statistics_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no dataset_statistics\.json"):
        read_statistics(tmp_path, data="goal")


def test_damaged_statistics_are_named(tmp_path):
    (tmp_path / openvla_conventions.STATISTICS_FILE).write_text('{"libero_goal": ')
    with pytest.raises(
        ValueError, match=r"dataset_statistics\.json is damaged \(Expecting value: line 1 column 17"
    ):
        read_statistics(tmp_path, data="goal")


def test_question_has_the_instruction_in_small_letters():
    assert (
        openvla_conventions.prompt("Turn on the stove")
        == "In: What action should the robot take to turn on the stove?\nOut:"
    )
