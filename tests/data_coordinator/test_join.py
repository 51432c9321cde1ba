"""Batches of the same samples are joined by uid, prompts by index."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from siirl.data_coordinator.protocol.batch import texts
from siirl.data_coordinator.protocol.join import join_batches, positions_in
from siirl.errors import InvariantError


def samples(uids, **columns):
    return TensorDict(
        {
            "uid": NonTensorStack(*uids),
            **{name: torch.tensor(values) for name, values in columns.items()},
        },
        batch_size=[len(uids)],
    )


def prompts(index, **columns):
    return TensorDict(
        {
            "index": torch.tensor(index),
            **{name: torch.tensor(values) for name, values in columns.items()},
        },
        batch_size=[len(index)],
    )


def test_rows_are_matched_by_uid_and_columns_united():
    joined = join_batches(
        [samples("abc", x=[1, 2, 3]), samples("cab", y=[30, 10, 20])],
        source={"uid": 0, "x": 0, "y": 1},
    )
    assert texts(joined, "uid") == ["a", "b", "c"]
    assert joined["x"].tolist() == [1, 2, 3]
    assert joined["y"].tolist() == [10, 20, 30]


def test_a_row_that_one_batch_lacks_is_in_none_of_the_joined_rows():
    joined = join_batches(
        [samples("abc", x=[1, 2, 3]), samples("ca", y=[30, 10])], source={"uid": 0, "x": 0, "y": 1}
    )
    assert texts(joined, "uid") == ["a", "c"]
    assert joined["y"].tolist() == [10, 30]


def test_batches_with_the_same_rows_are_not_copied():
    first, second = samples("ab", x=[1, 2]), samples("ab", y=[3, 4])
    joined = join_batches([first, second], source={"uid": 0, "x": 0, "y": 1})
    assert joined["x"] is first["x"]
    assert joined["y"] is second["y"]


def test_a_prompt_is_joined_with_all_samples_of_its_group():
    rolled_out = samples(["p0/0", "p0/1", "p1/0"], index=[0, 0, 1])
    joined = join_batches(
        [prompts([1, 0], baseline=[0.1, 0.0]), rolled_out],
        source={"uid": 1, "index": 1, "baseline": 0},
    )
    assert texts(joined, "uid") == ["p0/0", "p0/1", "p1/0"]
    assert joined["baseline"].tolist() == pytest.approx([0.0, 0.0, 0.1])


def test_prompts_alone_are_joined_by_index():
    joined = join_batches(
        [prompts([0, 1], x=[1, 2]), prompts([1], y=[3])], source={"index": 0, "x": 0, "y": 1}
    )
    assert joined["index"].tolist() == [1]


def test_columns_of_batches_with_different_padding_get_the_wider_one():
    narrow = samples("ab", response_mask=[[1, 1], [1, 0]])
    wide = samples("ab", advantages=[[0.5, 0.5, 0.0], [0.25, 0.0, 0.0]])
    joined = join_batches([narrow, wide], source={"uid": 0, "response_mask": 0, "advantages": 1})
    assert joined["response_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert joined["advantages"].tolist() == [[0.5, 0.5, 0.0], [0.25, 0.0, 0.0]]


def test_two_rows_of_one_id_are_refused():
    with pytest.raises(InvariantError, match="2 rows of a branch have uid='a'"):
        join_batches([samples("aa"), samples("ab")], source={"uid": 0})


def test_a_batch_without_ids_is_refused():
    with pytest.raises(InvariantError, match=r"neither. It has \['x'\]"):
        join_batches(
            [samples("a"), TensorDict({"x": torch.zeros(1)}, batch_size=[1])], source={"x": 1}
        )


def test_a_join_without_common_rows_is_empty():
    joined = join_batches([samples("a", x=[1]), samples("b", y=[2])], source={"x": 0, "y": 1})
    assert len(joined) == 0
    assert joined["x"].shape == (0,)


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.permutations("abcdefgh"))
def test_the_join_is_the_intersection_in_the_order_of_the_first(first, second):
    one = samples(first, x=list(range(len(first))))
    other = samples(second[:5], y=list(range(5)))
    joined = join_batches([one, other], source={"x": 0, "y": 1})
    expected = [uid for uid in first if uid in second[:5]]
    assert [first[number] for number in joined["x"].tolist()] == expected
    assert [second[number] for number in joined["y"].tolist()] == expected


def test_positions_tell_where_rows_came_from_and_nothing_where_one_is_new():
    assert positions_in(samples("abc"), of=samples("cb")) == [2, 1]
    assert positions_in(samples("abc"), of=samples("cx")) is None
