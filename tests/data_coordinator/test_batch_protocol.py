"""Operations on whole batches."""

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from siirl.data_coordinator.protocol.batch import (
    check_unique_uids,
    concat,
    long_columns,
    select_rows,
)
from siirl.errors import InvariantError


def batch(uids, responses):
    return TensorDict(
        {
            "uid": NonTensorStack(*uids),
            "responses": torch.tensor(responses),
            "index": torch.arange(len(uids)),
        },
        batch_size=[len(uids)],
    )


def test_rows_are_chosen_by_position_in_the_order_given():
    chosen = select_rows(batch("abc", [[1], [2], [3]]), [2, 0])
    assert list(chosen["uid"]) == ["c", "a"]
    assert chosen["responses"].tolist() == [[3], [1]]


def test_rows_are_chosen_by_a_mask():
    assert list(
        select_rows(batch("abc", [[1], [2], [3]]), torch.tensor([True, False, True]))["uid"]
    ) == ["a", "c"]


def test_chosen_rows_have_memory_of_their_own():
    whole = batch("ab", [[1], [2]])
    select_rows(whole, [0])["responses"][0, 0] = 9
    assert whole["responses"].tolist() == [[1], [2]]


def test_no_rows_still_have_columns():
    none = select_rows(batch("ab", [[1], [2]]), [])
    assert set(none.keys()) == {"uid", "responses", "index"}
    assert none.batch_size == torch.Size([0])
    assert none["responses"].shape == (0, 1)


def test_batches_of_different_padding_are_joined():
    joined = concat([batch("a", [[1, 2, 3]]), batch("b", [[4]])])
    assert joined["responses"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert list(joined["uid"]) == ["a", "b"]


def test_an_empty_batch_joins():
    joined = concat([select_rows(batch("ab", [[1, 2], [3, 4]]), []), batch("c", [[5]])])
    assert joined["responses"].tolist() == [[5, 0]]
    assert list(joined["uid"]) == ["c"]


def test_batches_with_other_columns_do_not_join():
    with pytest.raises(InvariantError, match=r"differ in \['index'\]"):
        concat([batch("a", [[1]]), batch("b", [[1]]).exclude("index")])


def test_joining_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one batch"):
        concat([])


def test_prompts_meet_responses_when_joined():
    def text(prompt, response):
        ids = torch.tensor([prompt + response])
        return TensorDict(
            {
                "prompts": torch.tensor([prompt]),
                "responses": torch.tensor([response]),
                "input_ids": ids,
            },
            batch_size=[1],
        )

    joined = concat([text([1], [2, 3]), text([4, 5], [6])])
    assert np.array_equal(joined["input_ids"], [[0, 1, 2, 3], [4, 5, 6, 0]])


def test_repeated_ids_are_named():
    check_unique_uids(batch("ab", [[1], [2]]))
    with pytest.raises(InvariantError, match="first 'a'"):
        check_unique_uids(batch("aba", [[1], [2], [3]]))


def test_a_column_of_another_length_than_the_batch_is_a_sentence_with_its_line():
    rows = TensorDict({"uid": torch.zeros(8)}, batch_size=[8])
    sentence = (
        r"^Node 'brevity' sets column 'brevity' to a tensor of shape \[3\], but the batch has 8 rows: "
        r"give it one entry per row \(.*test_batch_protocol\.py, line \d+\)\.$"
    )
    with pytest.raises(InvariantError, match=sentence), long_columns("node 'brevity'"):
        rows["brevity"] = torch.ones(3)
    with pytest.raises(RuntimeError, match="another error"), long_columns("node 'brevity'"):
        raise RuntimeError("another error")


def test_the_line_of_a_column_is_the_users_also_in_a_folder_named_after_the_library():
    rows = TensorDict({"uid": torch.zeros(8)}, batch_size=[8])
    own = compile("rows['brevity'] = column", "/home/me/tensordict_trials/own.py", "exec")
    place = r"\(/home/me/tensordict_trials/own\.py, line 1\)\.$"
    with pytest.raises(InvariantError, match=place), long_columns("node 'brevity'"):
        exec(own, {"rows": rows, "column": torch.ones(3)})
