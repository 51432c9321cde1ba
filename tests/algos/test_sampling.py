"""Drawing tokens by inverse cumulative distribution, with top-k and top-p."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siirl.algos.sampling import Sampling, draw, in_fixed_point, most_likely, nucleus

P = torch.tensor([0.1, 0.4, 0.2, 0.3])
LAST = float(np.nextafter(np.float32(1), np.float32(0)))


def drawn(uniforms: list[float], **sampling) -> list[int]:
    return draw(
        P.expand(len(uniforms), -1), torch.tensor(uniforms), sampling=Sampling(**sampling)
    ).tolist()


def test_a_number_draws_the_token_in_whose_part_of_the_cumulative_distribution_it_lies():
    assert drawn([0.0, 0.05, 0.15, 0.45, 0.55, 0.65, 0.75, LAST]) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]  # borders 0.1, 0.5, 0.7


def test_top_k_leaves_the_most_likely_tokens_in_proportion():
    assert most_likely(P, top_k=2).tolist() == pytest.approx([0.0, 4 / 7, 0.0, 3 / 7])
    assert drawn([0.0, 0.56, 0.58, LAST], top_k=2) == [1, 1, 3, 3]


def test_top_p_leaves_the_smallest_set_that_reaches_it():
    assert nucleus(P, top_p=0.7).tolist() == pytest.approx([0.0, 0.4, 0.0, 0.3])
    assert nucleus(P, top_p=0.71).tolist() == pytest.approx([0.0, 0.4, 0.2, 0.3])


def test_top_p_is_a_share_of_what_top_k_leaves():
    # 0.4, 0.3 and 0.2 are left, of 0.9: the first two reach 0.77 of it, and 0.7 of the whole.
    assert drawn([0.0, LAST], top_k=3, top_p=0.75) == [1, 3]


def test_top_k_beyond_the_vocabulary_changes_nothing():
    assert most_likely(P, top_k=100) is P


def test_leading_axes_are_kept():
    probabilities = P.expand(2, 3, -1)
    assert draw(probabilities, torch.zeros(2, 3), sampling=Sampling()).shape == (2, 3)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    weights=st.lists(st.floats(0.0, 1.0, width=32), min_size=2, max_size=20).filter(
        lambda values: sum(values) > 0.01
    ),
    number=st.floats(0.0, LAST, width=32),
    top_k=st.none() | st.integers(1, 20),
    top_p=st.floats(0.05, 1.0),
)
def test_a_token_without_probability_is_never_drawn(weights, number, top_k, top_p):
    probabilities = torch.tensor(weights) / sum(weights)
    token = int(
        draw(
            probabilities[None], torch.tensor([number]), sampling=Sampling(top_k=top_k, top_p=top_p)
        )
    )
    assert probabilities[token] > 0


@settings(max_examples=50, derandomize=True, deadline=None)
@given(weights=st.lists(st.floats(0.1, 1.0), min_size=2, max_size=8))
def test_evenly_spread_numbers_draw_tokens_as_often_as_they_are_likely(weights):
    probabilities = torch.tensor(weights) / sum(weights)
    numbers = (torch.arange(1000) + 0.5) / 1000
    tokens = draw(probabilities.expand(1000, -1), numbers, sampling=Sampling())
    shares = torch.bincount(tokens, minlength=len(weights)) / 1000
    assert torch.allclose(shares, probabilities, atol=1.1e-3)


def test_running_sums_of_integers_are_those_of_floats_and_leave_out_what_has_no_probability():
    probabilities_NV = torch.tensor([[0.0, 0.25, 0.0, 0.75], [0.5, 1e-6, 0.0, 0.499999]])
    found_NV = in_fixed_point(probabilities_NV)
    torch.testing.assert_close(found_NV, probabilities_NV.double().cumsum(-1), rtol=0, atol=1e-11)
    assert found_NV[0].tolist() == [0.0, 0.25, 0.25, 1.0]
    assert found_NV[1, 1] == found_NV[1, 2]
