"""Prompts that are left out by length, and prompts that are held out."""

import json
from collections import Counter

import pytest

from envs.math.question_sources import FileQuestions
from siirl.data_coordinator.prompts import check_lengths
from siirl.errors import ConfigError
from tests.data_coordinator.prompt_loaders import ROWS, loader, row, rows, written

# Lengths and splits


@pytest.fixture
def uneven(tmp_path):
    return written(tmp_path, [row("x" * length) for length in (3, 5, 8, 13)])


def test_prompts_over_length_are_left_out_and_counted(uneven):
    stream = loader(uneven, max_prompt_length=5)
    assert sorted(prompt.trial_id for prompt in stream.draw(2)) == [0, 1]
    assert stream.metrics() == {
        "data/prompts": 2.0,
        "data/prompts_too_long": 2.0,
        "data/heldout_prompts_too_long": 0.0,
        "data/prompts_also_held_out": 0.0,
        "data/prompts_nearly_held_out": 0.0,
        "data/epoch": 1.0,
    }


def test_prompts_over_length_may_be_kept_for_cutting_and_are_counted(uneven):
    stream = loader(uneven, max_prompt_length=5, overlong_prompts="cut")
    assert stream.metrics()["data/prompts"] == 4.0
    assert stream.metrics()["data/prompts_too_long"] == 2.0


def test_prompts_that_are_left_out_are_reported(uneven, caplog):
    loader(uneven, max_prompt_length=5)
    assert caplog.messages == [
        "2 prompts to train on, 0 held out; 2 training and 0 held-out prompts of more than "
        "data.max_prompt_length=5 tokens are left out."
    ]


def test_no_prompt_short_enough_is_refused_with_the_shortest(uneven):
    with pytest.raises(
        ConfigError,
        match=r"longer than data.max_prompt_length=2 tokens \(the shortest has 3\): raise it",
    ):
        loader(uneven, max_prompt_length=2)


def test_prompts_and_responses_that_the_model_cannot_hold_are_refused():
    check_lengths(max_prompt_length=100, max_response_length=28, model_length=128)
    with pytest.raises(
        ConfigError,
        match=r"=101 \+ data.max_response_length=28 = 129 tokens, but the model's context has 128: reduce them by 1",
    ):
        check_lengths(max_prompt_length=101, max_response_length=28, model_length=128)


def test_the_held_out_share_is_that_of_env_math(files):
    stream = loader(files / "train.jsonl", heldout_share=0.3)
    held = {
        json.loads(p.prompt_row)["prompt"][0]["content"]
        for p in stream.evaluation_prompts(prompts_per_source=ROWS)
    }
    questions = FileQuestions([str(files / "train.jsonl")], tasks=None, heldout_share=0.3)
    theirs = {
        questions.draw("sums", split="heldout", seed=seed).prompt[0]["content"]
        for seed in range(200)
    }
    trained = {
        json.loads(p.prompt_row)["prompt"][0]["content"] for p in stream.draw(len(stream.dataset))
    }
    assert held == theirs
    assert held and not held & trained
    assert len(held | trained) == ROWS


def test_a_question_of_the_validation_files_is_not_trained_on(tmp_path):
    train = written(tmp_path, [row("asked twice"), row("asked once")])
    val = written(tmp_path, [row("asked twice"), row("held out")], name="val.jsonl")
    stream = loader(train, val=[val])
    assert stream.metrics()["data/prompts_also_held_out"] == 1.0
    assert [json.loads(prompt.prompt_row)["prompt"][0]["content"] for prompt in stream.draw(1)] == [
        "asked once"
    ]
    assert len(stream.evaluation_prompts(prompts_per_source=10)) == 2


def test_training_prompts_that_differ_from_a_held_out_one_in_case_or_blanks_are_counted(tmp_path):
    train = written(
        tmp_path, [row("How  many Eggs?"), row("How many legs?"), row("3-2"), row("how many eggs?")]
    )
    val = written(tmp_path, [row("how many eggs?"), row("3+2")], name="val.jsonl")
    counts = loader(train, val=[val]).metrics()
    assert (counts["data/prompts_also_held_out"], counts["data/prompts_nearly_held_out"]) == (
        1.0,
        1.0,
    )


def test_nothing_left_to_train_on_is_refused(tmp_path):
    train = written(tmp_path, [row("asked twice")])
    with pytest.raises(
        ConfigError,
        match=r"The only prompt of data.train_files is also in data.val_files: give other files\.$",
    ):
        loader(train, val=[written(tmp_path, [row("asked twice")], name="val.jsonl")])


def test_held_out_prompts_that_are_all_too_long_are_named_as_such(tmp_path):
    train = written(tmp_path, [row("1+1"), row("2+2")])
    val = written(tmp_path, [row("x" * 500)], name="val.jsonl")
    stream = loader(train, val=[val], max_prompt_length=100)
    with pytest.raises(ConfigError, match=r"every held-out prompt is longer than data.max_prompt"):
        stream.evaluation_prompts(prompts_per_source=1)


def test_evaluation_asks_the_same_prompts_of_each_source_on_every_rank(tmp_path):
    train = written(tmp_path, [row("train")])
    val = written(
        tmp_path,
        [*rows(9, source="a"), *(row(f"other {n}", source="b") for n in range(2))],
        name="val.jsonl",
    )
    alone = loader(train, val=[val]).evaluation_prompts(prompts_per_source=3)
    assert Counter(prompt.task for prompt in alone) == {"a": 3, "b": 2}
    shared_out = [
        loader(train, val=[val], seed=9).evaluation_prompts(
            prompts_per_source=3, rank=rank, ranks=2
        )
        for rank in range(2)
    ]
    assert sorted((p for part in shared_out for p in part), key=lambda p: p.group_id) == alone
    assert [prompt.seed for prompt in alone] == [0, 1, 2, 3, 4]


def test_an_evaluation_without_held_out_prompts_is_refused(files):
    with pytest.raises(
        ConfigError,
        match=r"no prompt is held out: give data.val_files, a larger data.heldout_share",
    ):
        loader(files / "train.jsonl").evaluation_prompts(prompts_per_source=3)


def test_a_single_prompt_is_counted_as_one_and_no_larger_share_is_advised(tmp_path, caplog):
    stream = loader(written(tmp_path, [row("alone")]), train_batch_size=1)
    assert caplog.messages == ["1 prompt to train on, 0 held out."]
    with pytest.raises(ConfigError, match=r"give data.val_files, or trainer.val_episodes=0\.$"):
        stream.evaluation_prompts(prompts_per_source=3)
