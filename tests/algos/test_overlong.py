"""The penalty on responses that come near the length limit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import QUICK

from siirl.algos.overlong import overlong_penalty
from siirl.errors import ConfigError, TensorError


def penalty_loop(length, *, max_length, buffer):
    """DAPO, equation 13, case by case."""
    if length <= max_length - buffer:
        return 0.0
    if length <= max_length:
        return ((max_length - buffer) - length) / buffer
    return -1.0


def test_the_penalty_falls_over_the_buffer():
    lengths = torch.tensor([0, 80, 90, 95, 100, 120])
    assert overlong_penalty(length_B=lengths, max_length=100, buffer=20).tolist() == [
        0.0,
        0.0,
        -0.5,
        -0.75,
        -1.0,
        -1.0,
    ]


def test_the_factor_is_the_penalty_at_the_limit():
    assert overlong_penalty(
        length_B=torch.tensor([90, 100]), max_length=100, buffer=20, factor=0.5
    ).tolist() == [-0.25, -0.5]


@QUICK
@given(length=st.integers(0, 300), max_length=st.integers(1, 200), share=st.floats(0, 1))
def test_the_penalty_is_that_of_the_paper(length, max_length, share):
    buffer = max(1, round(share * max_length))
    found = overlong_penalty(length_B=torch.tensor([length]), max_length=max_length, buffer=buffer)
    assert found.item() == pytest.approx(
        penalty_loop(length, max_length=max_length, buffer=buffer), abs=1e-12
    )


@QUICK
@given(length=st.integers(0, 300), max_length=st.integers(1, 200), share=st.floats(0, 1))
def test_a_longer_response_never_pays_less(length, max_length, share):
    shorter, longer = overlong_penalty(
        length_B=torch.tensor([length, length + 1]),
        max_length=max_length,
        buffer=max(1, round(share * max_length)),
    ).tolist()
    assert -1.0 <= longer <= shorter <= 0.0


@pytest.mark.parametrize("buffer", [0, 101])
def test_a_buffer_that_does_not_fit_is_refused(buffer):
    with pytest.raises(ConfigError, match=f"buffer={buffer}: .* 1 to max_length=100"):
        overlong_penalty(length_B=torch.tensor([1]), max_length=100, buffer=buffer)


def test_a_negative_factor_is_refused():
    with pytest.raises(ConfigError, match="factor=-1"):
        overlong_penalty(length_B=torch.tensor([1]), max_length=100, buffer=20, factor=-1.0)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(torch.nan, "length is nan in row 1"), (-1.0, r"length is -1\.0 in row 1")],
)
def test_an_invalid_length_is_refused_with_its_row(length, expected):
    with pytest.raises(TensorError, match=expected):
        overlong_penalty(length_B=torch.tensor([1.0, length]), max_length=100, buffer=20)


def test_lengths_of_more_axes_are_refused():
    with pytest.raises(TensorError, match=r"length has shape \[1, 1\]"):
        overlong_penalty(length_B=torch.tensor([[1]]), max_length=100, buffer=20)
