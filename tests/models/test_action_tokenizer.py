"""Actions to tokens and back."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.models import ActionTokenizer, ContinuousActions

UNIT = ActionTokenizer(bins=5, low=(-1.0, 0.0), high=(1.0, 4.0))


def test_tokens_stand_for_evenly_spread_values_that_include_both_ends():
    np.testing.assert_allclose(UNIT.decode(np.array([0, 0, 2, 2, 4, 4])), [[-1, 0], [0, 2], [1, 4]])


def test_encoding_takes_the_nearest_bin_and_clips():
    assert UNIT.encode(np.array([[-0.3, 1.4], [9.0, -9.0]])).tolist() == [1, 1, 4, 0]


@given(st.lists(st.integers(0, 255), min_size=8, max_size=8), st.integers(2, 256))
def test_every_token_survives_the_round_trip(tokens, bins):
    tokenizer = ActionTokenizer(bins=bins, low=(-1.0,) * 4, high=(1.0,) * 4)
    tokens = np.array(tokens) % bins
    assert tokenizer.encode(tokenizer.decode(tokens)).tolist() == tokens.tolist()


def test_a_discrete_space_is_its_own_tokenizer():
    tokenizer = ActionTokenizer.for_space(gymnasium.spaces.Discrete(3), bins=64)
    assert (tokenizer.bins, tokenizer.dimensions) == (3, 1)
    assert tokenizer.decode(np.array([2, 0])).tolist() == [2, 0]


def test_an_unbounded_space_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="control_policy, as in trainer=mujoco_control"):
        ActionTokenizer.for_space(gymnasium.spaces.Box(-np.inf, np.inf, (2,)), bins=8)


def test_a_space_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="neither Discrete nor"):
        ActionTokenizer.for_space(gymnasium.spaces.MultiBinary(2), bins=8)


def test_numbers_reach_every_action_of_a_space_without_bounds():
    inf = np.inf
    low, high = np.array([-1, -inf, 5, -inf, 0]), np.array([3, inf, inf, -5, 10])
    space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))
    actions = ContinuousActions.for_space(space)
    numbers = np.array([[-1.0] * 5, [1.0] * 5, [-4.0] * 5, [4.0] * 5], np.float32)
    expected = [
        [-1, -1, 5, -7, 0],  # the number -1: the lower bound, or itself
        [3, 1, 7, -5, 10],
        [-1, -4, 5, -10, 0],
        [3, 4, 10, -5, 10],
    ]
    assert actions.decode(numbers.reshape(-1)).tolist() == expected
    assert all(space.contains(action) for action in actions.decode(numbers.reshape(-1)))
    again = actions.encode(np.array(expected)).reshape(4, 5)
    assert again[:, 1].tolist() == [-1, 1, -4, 4]
    assert again[:, 0].tolist() == [-1, 1, -1, 1]


def test_a_space_of_whole_numbers_is_refused_with_the_remedy():
    space = gymnasium.spaces.Box(0, 5, (2,), np.int64)
    with pytest.raises(ValueError, match="whole numbers, but policies output float32: make it"):
        ActionTokenizer.for_space(space, bins=8)
