"""Prompts from files: the rows of each rank, their order, left-out rows, and resumed runs."""

import dataclasses
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from envs.math.question_sources import FileQuestions
from envs.prompt_files import write_prompts
from envs.prompt_rows import PromptRow
from envs.registry import env_spec
from envs.text import message
from siirl.data_coordinator.prompts import (
    PartitionedRLHFDataset,
    PromptLoader,
    build_index,
    check_lengths,
    open_prompt_files,
)
from siirl.data_coordinator.prompts.dataset import Prompts, task_name
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.errors import CheckpointError, ConfigError, InvariantError, MissingAssetError
from siirl.params import DataArguments

ROWS = 23


def encode(messages):
    """One token per character: lengths can be counted by eye."""
    return tuple("".join(entry["content"] for entry in messages).encode())


def row(text: str, *, source: str = "sums", truth: str = "1", **extra) -> PromptRow:
    return PromptRow(
        data_source=source, prompt=(message("user", text),), ground_truth=truth, extra_info=extra
    )


def rows(count: int = ROWS, **options) -> list[PromptRow]:
    return [row(f"question {number:03d}", truth=str(number), **options) for number in range(count)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same 23 rows as jsonl, and as parquet in row groups of 5."""
    folder = tmp_path_factory.mktemp("prompts")
    write_prompts(folder / "train.jsonl", rows())
    table = pyarrow.Table.from_pylist(
        [{**entry.as_columns(), "extra_info": {"n": 1}} for entry in rows()]
    )
    parquet.write_table(table, folder / "train.parquet", row_group_size=5)
    return folder


def arguments(*train, val=(), **options) -> DataArguments:
    defaults = {"train_batch_size": 6, "max_prompt_length": 100, "heldout_share": 0.0, "seed": 3}
    return DataArguments(
        train_files=tuple(map(str, train)),
        val_files=tuple(map(str, val)),
        **{**defaults, **options},
    )


def loader(*train, **options) -> PromptLoader:
    return PromptLoader.of(arguments(*train, **options), encode=encode)


def written(tmp_path, content, name="train.jsonl"):
    write_prompts(tmp_path / name, content)
    return tmp_path / name


def loader_for(env: str, path: Path) -> PromptLoader:
    return PromptLoader.of(arguments(path), encode=encode, check=env_spec(env).check_row)


@pytest.mark.parametrize(
    ("env", "bad", "told"),
    [
        ("math", {"style": "model"}, "reward_model.style 'model' is not graded here"),
        ("tools", {"style": "countdown", "ground_truth": "24"}, "countdown"),
        (
            "sandbox",
            {"ground_truth": "not tests"},
            "reward_model.ground_truth must be the tests as JSON",
        ),
    ],
)
@pytest.mark.parametrize(("name", "place"), [("train.jsonl", "line 2"), ("train.parquet", "row 1")])
def test_a_row_that_the_environment_cannot_ask_is_refused_with_its_place(
    tmp_path, env, bad, told, name, place
):
    tests = json.dumps({"inputs": ["1", "2"], "outputs": ["1", "2"]})
    right = row("right", truth=tests if env == "sandbox" else "1")
    path = written(tmp_path, [right, dataclasses.replace(right, **bad)], name=name)
    with pytest.raises(
        ConfigError,
        match=(
            f"{re.escape(str(path))}, {place}: .*{re.escape(told)}.*Correct the row, or take it out"
        ),
    ):
        loader_for(env, path)
    assert len(loader_for(env, written(tmp_path, [right], name=f"right_{name}")).draw(1)) == 1


# The stream


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet"])
def test_an_epoch_asks_every_prompt_once(files, name):
    prompts = loader(files / name).draw(ROWS)
    assert sorted(prompt.trial_id for prompt in prompts) == list(range(ROWS))
    assert [
        json.loads(prompt.prompt_row)["reward_model"]["ground_truth"] for prompt in prompts
    ] == [str(p.trial_id) for p in prompts]


def test_each_epoch_has_its_own_order(files):
    stream = loader(files / "train.jsonl")
    first, second = ([prompt.trial_id for prompt in stream.draw(ROWS)] for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)


def test_jsonl_and_parquet_are_one_stream(files):
    one, other = loader(files / "train.jsonl").draw(40), loader(files / "train.parquet").draw(40)
    assert [prompt.trial_id for prompt in one] == [prompt.trial_id for prompt in other]


def test_another_seed_is_another_order(files):
    one, other = (loader(files / "train.jsonl", seed=seed).draw(ROWS) for seed in (1, 2))
    assert [prompt.trial_id for prompt in one] != [prompt.trial_id for prompt in other]


def test_groups_are_numbered_and_seeded_through_all_epochs(files):
    prompts = loader(files / "train.jsonl").draw(3 * ROWS)
    assert [prompt.group_id for prompt in prompts] == list(range(3 * ROWS))
    assert len({prompt.seed for prompt in prompts}) == 3 * ROWS


def test_prompts_become_a_batch_with_their_row_as_text(files):
    batch = Samples2Dict(
        [Sample(prompt.columns()) for prompt in loader(files / "train.jsonl").draw(8)]
    )
    assert set(batch.keys()) == {"index", "task_name", "task_id", "trial_id", "seed", "prompt_row"}
    assert json.loads(batch["prompt_row"][0])["data_source"] == "sums"


def test_processes_that_read_ahead_read_the_same(files):
    ahead = loader(files / "train.parquet", num_loader_workers=1)
    assert ahead.draw(50) == loader(files / "train.parquet").draw(50)
    ahead.close()


def test_several_files_are_one(files, tmp_path):
    more = written(tmp_path, [row("another question", source="other/source")])
    stream = loader(files / "train.parquet", more)
    assert Counter(prompt.task for prompt in stream.draw(ROWS + 1)) == {
        "sums": ROWS,
        "other_source": 1,
    }


def test_reading_takes_no_number_from_torchs_own_generator(files):
    torch.manual_seed(0)
    loader(files / "train.jsonl").draw(8)
    after = torch.rand(1).item()
    torch.manual_seed(0)
    assert after == torch.rand(1).item()


# Ranks


def prompts_of(files) -> Prompts:
    opened = open_prompt_files([str(files / "train.jsonl")], key="data.train_files")
    return Prompts.of(opened, build_index(opened, encode=encode), np.arange(ROWS))


def at(prompts: Prompts, *, rank: int, ranks: int, batch: int) -> PromptLoader:
    return PromptLoader(
        PartitionedRLHFDataset(prompts, seed=3, rank=rank, ranks=ranks), prompts_per_step=batch
    )


@settings(
    derandomize=True, deadline=None
)  # it reads files, which takes as long as the machine lets it
@given(
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    batch=st.integers(5, 30),
    other_batch=st.integers(5, 30),
    draws=st.lists(st.integers(1, 40), max_size=4),
)
def test_resumed_at_another_number_of_ranks_the_order_is_that_of_an_uninterrupted_run(
    shared, before, after, batch, other_batch, draws
):
    taken: list[tuple[int, int]] = []

    def draw(loaders, count):
        parts = [each.draw(count or each.prompts_per_step) for each in loaders]
        taken.extend(
            sorted((prompt.group_id, prompt.trial_id) for part in parts for prompt in part)
        )
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    loaders = [at(shared, rank=rank, ranks=before, batch=batch) for rank in range(before)]
    for count in (0, *draws):
        draw(loaders, count)
    states = [each.state_dict() for each in loaders]
    assert all(state == states[0] for state in states)
    resumed = [at(shared, rank=rank, ranks=after, batch=other_batch) for rank in range(after)]
    for each in resumed:
        each.load_state_dict(json.loads(json.dumps(states[0])))
    for count in (0, 7, 0):
        draw(resumed, count)
    alone = at(shared, rank=0, ranks=1, batch=1).draw(len(taken))
    assert taken == [(prompt.group_id, prompt.trial_id) for prompt in alone]


@pytest.fixture(scope="module")
def shared(files):
    return prompts_of(files)


def test_a_rank_reads_its_own_rows_alone(shared, monkeypatch):
    read: list[int] = []
    original = shared.files.read
    monkeypatch.setattr(
        shared.files, "read", lambda numbers: read.extend(numbers) or original(numbers)
    )
    own = at(shared, rank=1, ranks=4, batch=8).draw(8)
    assert [prompt.group_id for prompt in own] == [1, 5]
    assert len(read) == -(-ROWS // 4)  # its quarter of the epoch, ahead of what it was asked for


def test_ranks_share_the_reading_and_know_the_same(files):
    opened = open_prompt_files([str(files / "train.parquet")], key="data.train_files")
    parts: list = []
    for rank in range(3):
        build_index(
            opened,
            encode=encode,
            rank=rank,
            ranks=3,
            gather=lambda part: parts.append(part) or [part],
        )
    assert [len(part.lengths) for part in parts] == [7, 8, 8]
    together = build_index(opened, encode=encode, rank=2, ranks=3, gather=lambda part: parts)
    alone = build_index(opened, encode=encode)
    assert together.question_N.tolist() == alone.question_N.tolist()
    assert together.length_N.tolist() == alone.length_N.tolist() == [12] * ROWS


def test_a_bad_row_of_one_rank_stops_every_rank_with_the_same_words(tmp_path):
    lines = [json.dumps(entry.as_columns()) for entry in rows(4)]
    broken = json.loads(lines[3])
    broken["reward_model"]["ground_truth"] = None
    (tmp_path / "train.jsonl").write_text("\n".join([*lines[:3], json.dumps(broken)]))
    opened = open_prompt_files([str(tmp_path / "train.jsonl")], key="data.train_files")
    parts: list = []
    build_index(
        opened, encode=encode, rank=0, ranks=2, gather=lambda part: parts.append(part) or [part]
    )
    with pytest.raises(ConfigError, match="ground_truth"):
        build_index(
            opened, encode=encode, rank=1, ranks=2, gather=lambda part: parts.append(part) or [part]
        )
    with pytest.raises(
        ConfigError,
        match=r"line 4: reward_model.ground_truth must be text or a finite number, got None. Correct the row",
    ):
        build_index(opened, encode=encode, rank=0, ranks=2, gather=lambda part: parts)


def test_fewer_prompts_a_step_than_ranks_are_refused(shared):
    with pytest.raises(
        ConfigError,
        match=r"data.train_batch_size=3 gives some of the 4 ranks no prompt. Use at least 4",
    ):
        at(shared, rank=0, ranks=4, batch=3)


def test_a_rank_out_of_range_is_refused(shared):
    with pytest.raises(ConfigError, match="rank 2 of 2; ranks count from 0"):
        at(shared, rank=2, ranks=2, batch=4)


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


def test_or_kept_to_be_cut_and_counted_as_well(uneven):
    stream = loader(uneven, max_prompt_length=5, overlong_prompts="cut")
    assert stream.metrics()["data/prompts"] == 4.0
    assert stream.metrics()["data/prompts_too_long"] == 2.0


def test_what_is_left_out_is_said(uneven, caplog):
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
        match=r"=101 \+ data.max_response_length=28 = 129 tokens, and the model holds 128: make them smaller by 1",
    ):
        check_lengths(max_prompt_length=101, max_response_length=28, model_length=128)


def test_the_share_that_is_held_out_is_the_one_of_env_math(files):
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
    with pytest.raises(ConfigError, match=r"All 1 prompts of data.train_files are held out"):
        loader(train, val=[written(tmp_path, [row("asked twice")], name="val.jsonl")])


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


# Bad input


def test_no_file_is_refused():
    with pytest.raises(ConfigError, match=r"data.train_files=\[\] names no file"):
        loader()


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(
        MissingAssetError,
        match=r"^data.train_files: There is no file .*no_such.parquet to read prompts from",
    ):
        loader("no_such.parquet")


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / "train.jsonl").symlink_to("train.jsonl")
    with pytest.raises(MissingAssetError, match=r"There is no file .*train\.jsonl"):
        loader(tmp_path / "train.jsonl")


def test_a_file_named_twice_is_refused(files):
    with pytest.raises(ConfigError, match=r"data.train_files names .*train.jsonl more than once"):
        loader(files / "train.jsonl", files / "train.jsonl")


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.parquet"])
def test_an_empty_file_is_refused(tmp_path, name):
    if name.endswith("parquet"):
        parquet.write_table(
            pyarrow.Table.from_pylist(
                [entry.as_columns() | {"extra_info": None} for entry in rows(1)]
            ).slice(0, 0),
            tmp_path / name,
        )
    else:
        (tmp_path / name).write_text("\n")
    with pytest.raises(
        ConfigError, match=f"{name} has no rows. Remove it from the list, or fill it"
    ):
        loader(tmp_path / name)


def test_a_missing_column_is_refused_with_those_that_are_there(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        json.dumps({"data_sources": "a", "prompt": [], "reward_model": {}})
    )
    with pytest.raises(
        ConfigError,
        match=r"has no column 'data_source'. Did you mean 'data_sources'\? It has: data_sources, prompt",
    ):
        loader(tmp_path / "train.jsonl")


def test_foreign_columns_are_named_and_not_read(tmp_path, caplog):
    (tmp_path / "train.jsonl").write_text(json.dumps({**rows(1)[0].as_columns(), "embedding": [1]}))
    assert "embedding" not in json.loads(loader(tmp_path / "train.jsonl").draw(1)[0].prompt_row)
    assert "columns that are not read: embedding" in caplog.text


def test_errors_of_held_out_files_name_their_own_key(files, tmp_path):
    right, broken = files / "train.jsonl", tmp_path / "broken.jsonl"
    broken.write_text("no JSON")
    with pytest.raises(ConfigError, match=rf"^data.val_files: {broken}, line 1: not JSON"):
        loader(right, val=[broken])
    with pytest.raises(MissingAssetError, match=r"^data.val_files: There is no file .*none.jsonl"):
        loader(right, val=[tmp_path / "none.jsonl"])
    unanswered = written(
        tmp_path,
        [row("one"), dataclasses.replace(row("two"), ground_truth=None)],
        name="unanswered.jsonl",
    )
    with pytest.raises(
        ConfigError,
        match=rf"^data.val_files: {unanswered}, line 2: reward_model.ground_truth must be text",
    ):
        loader(right, val=[unanswered])


def test_a_ground_truth_that_is_none_is_refused_with_its_row(tmp_path):
    content = [entry.as_columns() | {"extra_info": None} for entry in rows(3)]
    content[1]["reward_model"]["ground_truth"] = None
    parquet.write_table(pyarrow.Table.from_pylist(content), tmp_path / "train.parquet")
    with pytest.raises(
        ConfigError,
        match=r"^data.train_files: .*train.parquet, row 1: reward_model.ground_truth must be text or a .*, got None",
    ):
        loader(tmp_path / "train.parquet")


def test_sources_that_metrics_cannot_tell_apart_are_refused(tmp_path):
    train = written(tmp_path, [row("one", source="open/ai"), row("two", source="open_ai")])
    with pytest.raises(
        ConfigError, match=r"'open/ai' and 'open_ai' would both be called 'open_ai'"
    ):
        loader(train)
    assert task_name("openai/gsm8k") == "openai_gsm8k"


def test_a_file_that_changes_while_the_run_lasts_stops_it(tmp_path):
    train = written(tmp_path, rows(4))
    stream = loader(train)
    train.write_text(train.read_text().replace("question 002", "question 999"))
    with pytest.raises(
        InvariantError,
        match=r"data.train_files: row 2 of .*train.jsonl differs from the question at the start of the run",
    ):
        stream.draw(4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "seed=3, and this run has 4"),
        ({"heldout_share": 0.3}, "prompts=23, and this run has"),
    ],
)
def test_a_checkpoint_of_another_stream_is_refused(files, change, named):
    state = loader(files / "train.jsonl").state_dict()
    with pytest.raises(CheckpointError, match=named):
        loader(files / "train.jsonl", **change).load_state_dict(state)


def test_a_checkpoint_of_other_questions_is_refused(files, tmp_path):
    other = written(
        tmp_path,
        [
            dataclasses.replace(entry, prompt=(message("user", f"no {n}"),))
            for n, entry in enumerate(rows())
        ],
    )
    with pytest.raises(CheckpointError, match="questions="):
        loader(other).load_state_dict(loader(files / "train.jsonl").state_dict())


# Memory


MEASURE = """
import resource, sys
from siirl.data_coordinator.prompts import PromptLoader
from siirl.params import DataArguments

def encode(messages):
    return tuple(messages[0]["content"].encode())

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = DataArguments(train_files=(sys.argv[1],), train_batch_size=64, max_prompt_length=4096, heldout_share=0.0)
loader = PromptLoader.of(data, encode=encode)
for _ in range(20):
    loader.draw(64)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow  # writes and reads 200,000 rows: a minute
@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet"])
def test_a_big_file_is_never_in_memory(tmp_path, name):
    write_big_file(tmp_path / name, count=200_000, characters=1000)
    command, root = [sys.executable, "-c", MEASURE, str(tmp_path / name)], Path(__file__).parents[2]
    answer = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    assert (
        float(answer.stdout) < 100
    )  # MiB more than before, of 191 MiB of text; measured: 29 and 68


def write_big_file(path, *, count: int, characters: int) -> None:
    """One row group of text that does not compress, written piece by piece."""
    generator = np.random.default_rng(0)
    pieces = (
        [
            row(generator.bytes(characters // 2).hex()).as_columns() | {"extra_info": None}
            for _ in range(1000)
        ]
        for _ in range(count // 1000)
    )
    if path.suffix == ".jsonl":
        with path.open("w") as stream:
            stream.writelines(json.dumps(entry) + "\n" for piece in pieces for entry in piece)
        return
    writer = None
    for piece in pieces:
        table = pyarrow.Table.from_pylist(piece)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=count)
    writer.close()
