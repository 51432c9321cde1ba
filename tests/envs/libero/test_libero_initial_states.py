"""Initial states: read without torch, only arrays unpickled, and divided into training and
evaluation.
"""

import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.libero.initial_states import held_out, read_initial_states, state_number
from envs.libero.suites import suite_tasks
from envs.seeds import FIRST_TRAINING_SEED


def saved(path, content):
    """A file as `torch.save` writes it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return path


def test_a_task_has_fifty_states_of_time_positions_and_velocities():
    # object/4: 7 + 2 joints of the robot and 7 free objects: 1 + (9 + 7 * 7) + (9 + 7 * 6)
    assert read_initial_states(suite_tasks("object")[4].initial_states).shape == (50, 1 + 58 + 51)


def test_array_is_read_as_it_was_saved(tmp_path):
    states = np.arange(6.0).reshape(2, 3)
    assert (
        read_initial_states(saved(tmp_path / "states", pickle.dumps(states))).tolist()
        == states.tolist()
    )


def test_file_that_would_run_code_is_refused(tmp_path):
    with pytest.raises(ValueError, match="only arrays are read"):
        read_initial_states(saved(tmp_path / "states", pickle.dumps(io.BytesIO)))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (pickle.dumps([1.0, 2.0]), "does not hold an array of initial states, but list"),
        (pickle.dumps(np.array([[np.nan]])), "are not finite"),
        (b"", "cannot be read"),
        (b"cnumpy\nndarray\n)R.", "cannot be read"),  # an array without a shape
    ],
)
def test_file_without_states_is_refused(tmp_path, content, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_initial_states(saved(tmp_path / "states", content))


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"reinstall hf-libero==0\.1\.4"):
        read_initial_states(tmp_path / "none")
    (tmp_path / "damaged").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="cannot be read"):
        read_initial_states(tmp_path / "damaged")


def test_every_fifth_state_is_held_out():
    assert held_out(50) == (4, 9, 14, 19, 24, 29, 34, 39, 44, 49)


def test_first_seeds_of_evaluation_and_training():
    assert [state_number(seed, count=50, states="split") for seed in (0, 1, 10)] == [4, 9, 4]
    assert [
        state_number(FIRST_TRAINING_SEED + k, count=50, states="split") for k in (0, 4, 40)
    ] == [0, 5, 0]


def test_published_protocol_takes_the_states_in_order():
    assert [state_number(seed, count=50, states="all") for seed in (0, 1, 49, 50)] == [0, 1, 49, 0]


@settings(derandomize=True, deadline=None)
@given(
    training=st.integers(FIRST_TRAINING_SEED, 2**31 - 1),
    evaluation=st.integers(0, FIRST_TRAINING_SEED - 1),
    count=st.integers(5, 60),
)
def test_training_and_evaluation_never_start_from_the_same_state(training, evaluation, count):
    one, other = (
        state_number(seed, count=count, states="split") for seed in (training, evaluation)
    )
    assert one != other
    assert 0 <= one < count and 0 <= other < count


def test_states_above_the_bound_are_refused_before_they_are_looked_at(tmp_path):
    """A pickle of a hundred bytes that asks for an array of 80 GB, which the system would hand out
    page by page.
    """
    huge = b"cnumpy\nndarray\n((I100000\nI100000\nttR."
    with pytest.raises(
        ValueError,
        match=r"are an array of 80000000000 bytes; at most 16777216 are taken|cannot be read",
    ):
        read_initial_states(saved(tmp_path / "states", huge))
