"""Micro-batches by token budget: their rows, the order of results, and an unchanged gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tiny_text import text_rows, tiny_model
from tiny_training import largest_difference, make_actor, make_engine

from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.batch_cuts import micro_batch_rows, rows_in_order, take_rows
from siirl.errors import ConfigError

LENGTHS = (
    9,
    7,
    3,
    8,
    5,
    6,
)  # of the rows of `text_rows`: prompts 5 1 3 7 2 4, responses 4 6 0 1 3 2


def engine_of(**options):
    return make_engine(module=tiny_model(), scorer=text_scorer, **options)


def counted_engine(**options):
    """An engine, and the number of rows of each of its passes."""
    passes = []

    def scorer(module, micro_batch, temperature):
        passes.append(len(micro_batch))
        return text_scorer(module, micro_batch, temperature)

    return make_engine(module=tiny_model(), scorer=scorer, **options), passes


def test_rows_are_counted_in_their_order_where_there_is_no_budget():
    assert [list(part) for part in micro_batch_rows(text_rows(), rows=4, tokens=None)] == [
        [0, 1, 2, 3],
        [4, 5],
    ]


def test_a_budget_makes_parts_of_equal_weight():
    parts = micro_batch_rows(text_rows(), rows=1, tokens=20)
    assert [sum(LENGTHS[row] for row in part) for part in parts] == [19, 19]
    assert sorted(row for part in parts for row in part) == list(range(6))


def test_rows_without_attention_mask_have_the_length_of_their_responses():
    batch = TensorDict(
        {"response_mask": torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])}, batch_size=[3]
    )
    assert micro_batch_rows(batch, rows=1, tokens=3) == [[0], [1, 2]]


@given(budget=st.integers(9, 60))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_no_micro_batch_exceeds_its_budget_and_no_row_is_lost(budget):
    parts = micro_batch_rows(text_rows(), rows=1, tokens=budget)
    assert all(0 < sum(LENGTHS[row] for row in part) <= budget for part in parts)
    assert sorted(row for part in parts for row in part) == list(range(6))


def test_a_row_longer_than_the_budget_is_refused_with_the_key():
    with pytest.raises(
        ConfigError, match=r"row of 9 tokens exceeds the budget of 8.*actor\.micro_batch_tokens"
    ):
        make_actor(engine_of(micro_batch_tokens=8)).update(text_rows())


def test_a_budget_of_zero_is_refused():
    with pytest.raises(ConfigError, match="micro_batch_tokens=0"):
        engine_of(micro_batch_tokens=0)


def test_an_empty_batch_has_no_micro_batches():
    assert micro_batch_rows(text_rows()[:0], rows=4, tokens=20) == []


def test_neighbouring_rows_are_taken_as_a_view_and_others_as_a_copy():
    batch = text_rows()
    assert take_rows(batch, [2, 3])["input_ids"].data_ptr() == batch["input_ids"][2:].data_ptr()
    assert take_rows(batch, [1, 4])["uid"] == ["001", "004"]


def test_parts_are_returned_in_the_order_of_the_rows():
    kept = [torch.tensor([10, 13]), torch.tensor([11, 12]), torch.tensor([], dtype=torch.long)]
    assert torch.cat(rows_in_order(kept, [[0, 3], [1, 2], ()])).tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize("budget", [9, 15, 20, 1000])
def test_scores_of_each_row_are_its_own_whatever_the_budget(budget):
    batch = text_rows()
    expected = make_actor(engine_of(micro_batch_size=1)).compute_log_prob(batch).log_probs_BT
    found = make_actor(engine_of(micro_batch_tokens=budget)).compute_log_prob(batch).log_probs_BT
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("budget", [9, 20, 1000])
def test_the_gradient_does_not_depend_on_the_budget(budget):
    by_rows, by_tokens = engine_of(micro_batch_size=6), engine_of(micro_batch_tokens=budget)
    metrics = [make_actor(engine).update(text_rows()) for engine in (by_rows, by_tokens)]
    assert largest_difference(by_rows.gradients[0], by_tokens.gradients[0]) < 1e-5
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-4, abs=1e-6)


def test_a_wide_budget_needs_one_pass_where_rows_need_many():
    # One of the six rows has no response token and no gradient.
    for options, expected in (
        ({"micro_batch_tokens": 1000}, [5]),
        ({"micro_batch_size": 1}, [1] * 5),
    ):
        engine, passes = counted_engine(**options)
        make_actor(engine).update(text_rows())
        assert passes == expected
