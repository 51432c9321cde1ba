"""Rows leave a batch without padding and come back padded to the longest of their new batch."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from siirl.data_coordinator.protocol.batch_columns import Column, Layout, register_column
from siirl.data_coordinator.sample import Dict2Samples, Sample, Samples2Dict
from siirl.errors import ConfigError, InvariantError

TOKENS_PER_CHUNK = 6  # 2 actions of 3 dimensions


def embodied_batch(executed, *, chunks=None, prefix="s"):
    """A batch whose row i executed `executed[i]` tokens; padded to `chunks` chunks."""
    generator = torch.Generator().manual_seed(0)
    rows = len(executed)
    needed = [max(1, -(-count // TOKENS_PER_CHUNK)) for count in executed]
    chunks = chunks or max(needed)
    tokens = chunks * TOKENS_PER_CHUNK
    mask_BT = torch.arange(tokens) < torch.tensor(executed)[:, None]
    inside_BT = torch.arange(tokens) < torch.tensor(needed)[:, None] * TOKENS_PER_CHUNK
    inside_BC = torch.arange(chunks) < torch.tensor(needed)[:, None]
    pixels = torch.randint(
        1, 256, (rows, chunks, 1, 2, 2, 3), generator=generator, dtype=torch.uint8
    )
    return TensorDict(
        {
            "uid": NonTensorStack(*[f"{prefix}{row}" for row in range(rows)]),
            "index": torch.arange(rows),
            "complete": torch.tensor([count % 2 == 0 for count in executed]),
            "instruction_ids": torch.tensor([[4, 5, 0]]).repeat(rows, 1),
            "response_mask": mask_BT.long(),
            "responses": torch.randint(1, 64, (rows, tokens), generator=generator) * inside_BT,
            "rollout_log_probs": -torch.rand(rows, tokens, generator=generator) * inside_BT,
            "pixel_values": pixels * inside_BC[:, :, None, None, None, None],
        },
        batch_size=[rows],
    )


def assert_same(left, right):
    assert set(left.keys()) == set(right.keys())
    for name in left.keys():
        if isinstance(left.get(name), torch.Tensor):
            assert left[name].dtype == right[name].dtype, name
            assert torch.equal(left[name], right[name]), name
        else:
            assert list(left[name]) == list(right[name])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
@settings(max_examples=40)
def test_round_trip_gives_the_batch_back(executed):
    batch = embodied_batch(executed)
    assert_same(Samples2Dict(Dict2Samples(batch)), batch)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=40)
def test_padding_beyond_the_longest_row_is_dropped(executed, surplus):
    tight = embodied_batch(executed)
    chunks = tight["pixel_values"].shape[1] + surplus
    wide = Samples2Dict(
        [
            *Dict2Samples(tight),
            *Dict2Samples(embodied_batch([chunks * TOKENS_PER_CHUNK], prefix="long")),
        ]
    )
    assert wide["responses"].shape[1] == chunks * TOKENS_PER_CHUNK
    rows = Dict2Samples(wide)[: len(executed)]
    assert_same(Samples2Dict(rows), tight)


def test_rows_hold_whole_chunks():
    """Seven executed tokens need two chunks of six."""
    sample = Dict2Samples(embodied_batch([7, 30]))[0]
    assert sample["responses"].shape == (12,)
    assert sample["pixel_values"].shape == (2, 1, 2, 2, 3)
    assert sample["response_mask"].tolist() == [1] * 7 + [0] * 5


def test_instruction_is_not_cut():
    assert Dict2Samples(embodied_batch([1]))[0]["instruction_ids"].tolist() == [4, 5, 0]


def test_a_row_pickles_without_its_neighbours():
    batch = embodied_batch([6] * 200)
    whole, row = len(pickle.dumps(batch)), len(pickle.dumps(Dict2Samples(batch)[0]))
    assert row < whole / 50


def test_metadata_of_a_sample():
    info = Dict2Samples(embodied_batch([7, 30]))[0].info(node_id="machine")
    assert (info.uid, info.sum_tokens, info.prompt_length, info.response_length, info.node_id) == (
        "s0",
        12,
        0,
        12,
        "machine",
    )
    assert info.dict_info == {"uid": "s0", "index": 0, "complete": False}


def test_plain_rows_make_a_batch():
    """Values as a rollout returns them: Python numbers, strings and arrays."""
    rows = [
        {
            "uid": "a",
            "index": 3,
            "complete": True,
            "env_return": 1.5,
            "responses": np.arange(6),
            "pixel_values": np.ones((1, 1, 2, 2, 3), np.uint8),
        },
        {
            "uid": "b",
            "index": 3,
            "complete": False,
            "env_return": 0,
            "responses": np.arange(12),
            "pixel_values": np.ones((2, 1, 2, 2, 3), np.uint8),
        },
    ]
    batch = Samples2Dict([Sample(row) for row in rows])
    assert batch["index"].dtype is torch.int64
    assert batch["env_return"].dtype is torch.float32
    assert batch["complete"].tolist() == [True, False]
    assert batch["responses"][0].tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0]
    assert batch["pixel_values"].dtype is torch.uint8
    assert list(batch["uid"]) == ["a", "b"]


def text_batch():
    """Prompts of 1 and 3 tokens on the left, responses of 2 and 1 on the right."""
    return TensorDict(
        {
            "uid": NonTensorStack("a", "b"),
            "prompts": torch.tensor([[0, 0, 7], [4, 5, 6]]),
            "responses": torch.tensor([[8, 9], [8, 0]]),
            "response_mask": torch.tensor([[1, 1], [1, 0]]),
            "input_ids": torch.tensor([[0, 0, 7, 8, 9], [4, 5, 6, 8, 0]]),
            "attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]),
        },
        batch_size=[2],
    )


def test_prompts_are_cut_on_the_left():
    first, second = Dict2Samples(text_batch())
    assert first["prompts"].tolist() == [7]
    assert first["input_ids"].tolist() == [7, 8, 9]
    assert second["input_ids"].tolist() == [4, 5, 6, 8]
    assert first.info().sum_tokens == 3


def test_prompts_and_responses_meet_again_after_padding():
    assert_same(Samples2Dict(Dict2Samples(text_batch())), text_batch())


def test_wrong_kind_of_number_is_refused():
    sample = Sample({"uid": "a", "pixel_values": np.zeros((1, 1, 2, 2, 3), np.float32)})
    with pytest.raises(ConfigError, match=r"Column 'pixel_values' .* is uint8, but got float32"):
        Samples2Dict([sample])


def test_rows_with_other_columns_are_refused():
    with pytest.raises(InvariantError, match=r"Sample 'b' .* differ in the columns \['seed'\]"):
        Samples2Dict([Sample({"uid": "a", "seed": 1}), Sample({"uid": "b"})])


def test_columns_of_one_axis_must_agree():
    with pytest.raises(InvariantError, match="differ in width"):
        Samples2Dict(
            [Sample({"uid": "a", "responses": np.zeros(4, int), "response_mask": np.zeros(6, int)})]
        )


def test_no_samples_make_a_batch_of_no_rows_and_no_columns():
    batch = Samples2Dict([])
    assert (len(batch), list(batch.keys())) == (0, [])


def test_ragged_column_of_the_users_must_be_registered():
    rows = [
        Sample({"uid": "a", "bonus_of_tokens": np.zeros(4)}),
        Sample({"uid": "b", "bonus_of_tokens": np.zeros(6)}),
    ]
    with pytest.raises(InvariantError, match="register_column"):
        Samples2Dict(rows)
    register_column("bonus_of_tokens", Column(np.float32, "B T", Layout.TOKEN, "a test's own"))
    assert Samples2Dict(rows)["bonus_of_tokens"].shape == (2, 6)


def test_known_column_cannot_be_registered_anew():
    with pytest.raises(ConfigError, match="'advantages' is already B T"):
        register_column("advantages", Column(np.float32, "B", Layout.FIXED, "mine"))


def test_bfloat16_comes_back_as_float32():
    batch = TensorDict(
        {"uid": NonTensorStack("a"), "video_embedding": torch.ones(1, 3, dtype=torch.bfloat16)},
        batch_size=[1],
    )
    assert Samples2Dict(Dict2Samples(batch))["video_embedding"].dtype is torch.float32


def test_a_column_of_other_objects_is_refused_with_its_name():
    samples = [Sample({"uid": name, "notes": {"hint": 3}}) for name in ("a", "b")]
    with pytest.raises(ConfigError, match=r"Column 'notes' has a dict in each row\..*json\.dumps"):
        Samples2Dict(samples)
