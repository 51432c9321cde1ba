"""The record of an episode: its contents, and deviations of a replay."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from envs.replay_samples import SAMPLE_SIZE, difference, sample
from siirl.env_server.slot import EpisodeRecord, how_to_say_unreplayable, own_actions


@given(hnp.arrays(st.sampled_from([np.uint8, np.float32, np.int64]), hnp.array_shapes(max_side=40)))
def test_a_sample_is_small_and_equals_itself(array):
    small = sample(array)
    assert small.size <= SAMPLE_SIZE
    assert difference(small, sample(array.copy())) is None


def test_a_sample_does_not_change_with_what_it_was_taken_from():
    array = np.zeros(3)
    small = sample({"state": array})
    array[:] = 1.0
    assert difference(small, sample({"state": np.zeros(3)})) is None


def test_images_may_differ_by_a_few_levels_and_not_by_more():
    dark = sample(np.full((64, 64, 3), 100, np.uint8))
    assert difference(dark, sample(np.full((64, 64, 3), 108, np.uint8))) is None
    assert difference(dark, sample(np.full((64, 64, 3), 109, np.uint8))) is not None


def test_a_difference_is_named_with_its_place():
    first, second = (
        sample(({"x": np.zeros(2), "text": "a"}, 1.0, False)),
        sample(({"x": np.zeros(2), "text": "b"}, 1.0, False)),
    )
    assert difference(first, second) == "result[0]['text'] was 'a' and is 'b'"
    assert (
        difference(sample((None, 0.5, False)), sample((None, 0.75, False)))
        == "result[1] was 0.5 and is 0.75"
    )
    assert (
        difference(sample((None, 0.5, False)), sample((None, 0.5, True)))
        == "result[2] was False and is True"
    )
    assert difference(sample(np.zeros(2)), sample(np.zeros(3))) is not None


def test_rounding_is_not_a_difference():
    assert difference(0.3, 0.1 + 0.2) is None
    assert difference(np.float32(1.0), np.float32(1.00001)) is None


def test_recorded_actions_are_those_that_were_executed():
    actions = np.zeros((2, 1))
    kept = own_actions(actions)
    actions[:] = 9.0
    assert np.array_equal(kept, [[0.0], [0.0]])


def test_chunks_are_counted_without_the_reset():
    record = EpisodeRecord(seed=0, options={})
    assert record.num_chunks == 0
    record.add("reset", (0, {}), (np.zeros(1), {}))
    record.add("step_chunk", ([1],), (np.zeros(1), 0.0, False, False, {}))
    assert record.num_chunks == 1


def test_a_user_of_gymnasium_is_told_the_flag_of_its_registration() -> None:
    assert how_to_say_unreplayable("gymnasium") == "gymnasium.register(..., nondeterministic=True)"
    assert how_to_say_unreplayable("my_module:MyEnv") == "replayable=False in its EnvSpec"
