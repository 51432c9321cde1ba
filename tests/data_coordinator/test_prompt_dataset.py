"""Prompts from files: the rows of each rank, their order, left-out rows, and resumed runs."""

import json
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

from siirl.data_coordinator.prompts import (
    PartitionedRLHFDataset,
    PromptLoader,
    build_index,
    open_prompt_files,
)
from siirl.data_coordinator.prompts.dataset import Prompts
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.errors import ConfigError
from tests.data_coordinator.prompt_loaders import ROWS, encode, loader, row, rows, written

# The stream


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet"])
def test_an_epoch_draws_every_prompt_once(files, name):
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


@settings(derandomize=True, deadline=None)  # on a busy machine reading files takes any time
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
        match=r"line 4: reward_model.ground_truth must be text or a finite number, got None. Correct or remove the row",
    ):
        build_index(opened, encode=encode, rank=0, ranks=2, gather=lambda part: parts)


def test_fewer_prompts_a_step_than_ranks_are_refused(shared):
    with pytest.raises(
        ConfigError,
        match=r"data.train_batch_size=3 leaves some of the 4 ranks without a prompt. Use at least 4",
    ):
        at(shared, rank=0, ranks=4, batch=3)


def test_a_rank_out_of_range_is_refused(shared):
    with pytest.raises(ConfigError, match="rank 2 of 2; ranks count from 0"):
        at(shared, rank=2, ranks=2, batch=4)


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
    # MiB more than before, of 191 MiB of text; measured: 29 and 68
    assert float(answer.stdout) < 100


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
