"""Prompts from files: both forms, by parts, and an error with file, row and remedy for everything
that is wrong.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from envs import parquet_prompts
from envs.prompt_files import open_prompts, write_prompts
from envs.prompt_rows import PromptRow, require_truth
from envs.text import message

DAMAGED = Path(__file__).parent / "damaged_parquet"
READ_AND_TELL = """
import pyarrow
from envs.prompt_files import open_prompts
try:
    file = open_prompts('{path}')
    {read}
except ValueError as error:
    print(error)
print(pyarrow.default_memory_pool().max_memory())
"""


def row(number, **changes):
    return PromptRow(
        data_source=f"source {number % 2}",
        prompt=(message("system", "Be brief."), message("user", f"What is {number} + 1?")),
        ground_truth=str(number + 1),
        **changes,
    )


def columns(**changes):
    return row(1).as_columns() | changes


def write(path, entries):
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(entries), path)
    else:
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_written_prompts_are_read_back(tmp_path, name):
    rows = [row(number, extra_info={"level": number}) for number in range(5)]
    write_prompts(tmp_path / name, rows)
    file = open_prompts(tmp_path / name)
    assert len(file) == 5
    assert file.rows(0, 5) == rows
    assert file.row(3) == rows[3]
    assert file.data_sources() == ["source 0", "source 1", "source 0", "source 1", "source 0"]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
@given(start=st.integers(0, 12), stop=st.integers(0, 12))
@settings(
    derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_any_part_can_be_read_alone(tmp_path_factory, name, start, stop):
    path = tmp_path_factory.getbasetemp() / name
    rows = [row(number) for number in range(10)]
    if not path.exists():
        entries = [entry.as_columns() | {"extra_info": None} for entry in rows]
        if path.suffix == ".parquet":
            parquet.write_table(pyarrow.Table.from_pylist(entries), path, row_group_size=4)
        else:
            write(path, entries)
    assert open_prompts(path).rows(start, stop) == rows[start:stop]


def test_a_part_of_parquet_is_read_without_its_other_row_groups(tmp_path):
    entries = [columns(extra_info=None), columns(extra_info=None, data_source=None)]
    parquet.write_table(
        pyarrow.Table.from_pylist(entries), tmp_path / "rows.parquet", row_group_size=1
    )
    assert len(open_prompts(tmp_path / "rows.parquet").rows(0, 1)) == 1


def test_gsm8k_is_read_as_it_ships(tmp_path):
    path = write(
        tmp_path / "train.jsonl",
        [{"question": "How many?", "answer": "1000 + 80 = <<1000+80=1080>>1080\n#### 1,080"}],
    )
    (read,) = open_prompts(path, gsm8k_instruction="Answer after ####.").rows(0, 1)
    assert read.data_source == "openai/gsm8k"
    assert read.prompt == (message("user", "How many?\nAnswer after ####."),)
    assert (read.ground_truth, read.style) == ("1,080", "rule")
    assert read.extra_info["solution"].endswith("1080")


def test_gsm8k_in_parquet_is_the_same_as_in_jsonl(tmp_path):
    rows = [{"question": "How many?", "answer": "three\n#### 3", "other": 1}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    in_parquet, in_jsonl = (
        open_prompts(file)
        for file in (tmp_path / "train.parquet", write(tmp_path / "train.jsonl", rows))
    )
    assert in_parquet.rows(0, 1) == in_jsonl.rows(0, 1)
    assert in_parquet.data_sources() == in_jsonl.data_sources()


def test_blank_lines_are_skipped_and_lines_still_numbered_as_in_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + json.dumps(columns()) + "\n\n" + json.dumps(columns(prompt=[])) + "\n")
    file = open_prompts(path)
    assert len(file) == 2
    with pytest.raises(ValueError, match="line 4: prompt must be a list"):
        file.rows(1, 2)


def test_ability_and_extra_info_may_be_missing(tmp_path):
    entry = columns()
    del entry["ability"], entry["extra_info"]
    (read,) = open_prompts(write(tmp_path / "rows.jsonl", [entry])).rows(0, 1)
    assert (read.ability, read.extra_info) == ("math", {})


def test_columns_that_are_not_read_are_logged(tmp_path, caplog):
    open_prompts(write(tmp_path / "rows.parquet", [columns(extra_info=None) | {"difficulty": 3}]))
    assert "columns that are not read: difficulty" in caplog.text


def test_number_as_ground_truth_is_accepted(tmp_path):
    path = write(
        tmp_path / "rows.parquet",
        [columns(extra_info=None, reward_model={"style": "rule", "ground_truth": 46})],
    )
    assert open_prompts(path).row(0).ground_truth == "46"


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"reward_model": {"style": "rule", "ground_truth": ["46"]}},
            "reward_model.ground_truth must be text or a finite number, got ",
        ),
        (
            {"reward_model": {"style": "rule", "ground_truth": float("nan")}},
            "ground_truth must be text or a finite number, got nan",
        ),
        ({"reward_model": "46"}, r"reward_model must be \{style, ground_truth\}, got '46'"),
        ({"prompt": "What is 1 + 1?"}, "prompt must be a list of at least one chat message"),
        (
            {"prompt": [{"role": "robot", "content": "x"}]},
            "entry 0 has the role 'robot'; known: system, user, assistant, tool",
        ),
        ({"prompt": [{"role": "user", "content": None}]}, "entry 0 must be a chat message"),
        ({"data_source": None}, "data_source must be text, got None"),
        ({"extra_info": 3}, "extra_info must be values by name, got 3"),
    ],
)
def test_wrong_row_is_reported_with_file_place_and_remedy(tmp_path, name, changes, sentence):
    path = write(tmp_path / name, [columns(extra_info=None) | changes])
    with pytest.raises(
        ValueError,
        match=rf"{name}, (row 0|line 1): .*{sentence}.*Correct or remove the row\.",
    ):
        open_prompts(path).rows(0, 1)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
@pytest.mark.parametrize(
    "truth", [{"ground_truth": None}, {}, {"ground_truth": " "}], ids=["null", "left out", "blank"]
)
def test_a_row_may_lack_the_truth_and_a_grader_that_needs_it_refuses(tmp_path, name, truth):
    row = open_prompts(
        write(tmp_path / name, [columns(extra_info=None, reward_model={"style": "model", **truth})])
    ).row(0)
    assert (row.style, row.ground_truth) == ("model", truth.get("ground_truth"))
    with pytest.raises(
        ValueError, match=r"reward_model.ground_truth must be text or a finite number, got"
    ):
        require_truth(row.ground_truth)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_missing_column_is_reported_with_the_present_ones(tmp_path, name):
    entry = columns(extra_info=None)
    entry["prompts"] = entry.pop("prompt")
    with pytest.raises(
        ValueError,
        match=rf"{name} has no column 'prompt'\. Did you mean 'prompts'\? It has: .*prompts",
    ):
        open_prompts(write(tmp_path / name, [entry]))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_foreign_columns_are_reported_with_the_two_forms(tmp_path, name):
    with pytest.raises(
        ValueError,
        match=r"has no column 'data_source', 'prompt', 'reward_model'\. It has: text, label\. Prompts need",
    ):
        open_prompts(write(tmp_path / name, [{"text": "a", "label": 1}]))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("rows.jsonl", b"", r"rows\.jsonl has no rows"),
        ("rows.jsonl", b"\n \n", r"rows\.jsonl has no rows"),
        ("rows.parquet", b"", r"rows\.parquet is not a readable parquet file"),
        ("rows.parquet", b"PAR1 broken", r"rows\.parquet is not a readable parquet file"),
        ("rows.jsonl", b"{broken", r"rows\.jsonl, line 1: not JSON"),
        ("rows.jsonl", b'"\xff\xfe"', r"rows\.jsonl, line 1: not JSON"),
        ("rows.jsonl", b"[" * 200_000, r"rows\.jsonl, line 1: not JSON"),
        ("rows.jsonl", rb'{"prompt": "\ud800"}', r"line 1: a text has half of a surrogate pair"),
        ("rows.jsonl", b"[1, 2]", r"line 1: a JSON object is expected, got \[1, 2\]"),
        (
            "rows.csv",
            b"a,b",
            r"read from a \.parquet file, or a \.jsonl file.*rows\.csv ends in \.csv",
        ),
    ],
)
def test_broken_file_is_reported(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        open_prompts(tmp_path / name)


@pytest.mark.parametrize("what", [OSError("page header"), pyarrow.ArrowInvalid("a\nb")])
def test_parquet_whose_pages_are_damaged_is_reported(tmp_path, what):
    path = write(tmp_path / "rows.parquet", [columns(extra_info=None)])
    prompts = open_prompts(path)

    class Damaged:
        def iter_batches(self, *arguments, **keywords):
            raise what

    prompts._file = Damaged()
    with pytest.raises(
        ValueError, match=r"rows\.parquet is not a readable parquet file \((page|a b)"
    ):
        prompts.rows(0, 1)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ends_its_reader", "the process that read its footer failed .it was ended by SIGABRT"),
        ("lacks_rows", "row group 0 has 0 rows, but its footer says 40"),
        ("index_beyond_its_dictionary", "Value at position 12 out of bounds: 63"),
    ],
)
def test_parquet_with_changed_bytes_is_reported(name, sentence):
    """40 rows, of which one to three bytes were changed at random."""
    with pytest.raises(ValueError, match=rf"{name}\.parquet.*{sentence}"):
        list(open_prompts(DAMAGED / f"{name}.parquet").select(range(40)))


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    table = pyarrow.Table.from_pylist([columns(extra_info=None)])
    names = [*table.column_names, "prompt"]
    twice = pyarrow.Table.from_arrays([*table.columns, table.column("prompt")], names=names)
    parquet.write_table(twice, tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"rows\.parquet has the column 'prompt' more than once"):
        open_prompts(tmp_path / "rows.parquet")


def test_a_value_that_python_cannot_hold_is_refused_with_its_file(tmp_path):
    table = pyarrow.Table.from_pylist([columns(extra_info=None)])
    times = pyarrow.array([1], pyarrow.timestamp("ns"))  # a time of Python has microseconds
    place = table.column_names.index("extra_info")
    parquet.write_table(table.set_column(place, "extra_info", times), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"rows\.parquet"):
        open_prompts(tmp_path / "rows.parquet").rows(0, 1)


def test_parquet_without_rows_is_reported(tmp_path):
    table = pyarrow.Table.from_pylist([columns(extra_info=None)])
    parquet.write_table(table.slice(0, 0), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="has no rows"):
        open_prompts(tmp_path / "rows.parquet")


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.parquet to read prompts from"):
        open_prompts(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (
            {"question": "How many?", "answer": "It is 46."},
            r"line 2: 'answer' must end in a line `#### x`, got 'It is 46\.'",
        ),
        ({"question": "How many?", "answer": "So\n#### "}, "line 2: 'answer' must end in a line"),
        ({"question": None, "answer": "#### 1"}, "line 2: 'question' must be text, got None"),
        ({"answer": "#### 1"}, "line 2: 'question' must be text, got None"),
    ],
)
def test_wrong_line_of_gsm8k_is_reported(tmp_path, entry, sentence):
    path = write(tmp_path / "train.jsonl", [{"question": "How many?", "answer": "#### 1"}, entry])
    with pytest.raises(ValueError, match=sentence):
        open_prompts(path).rows(0, 2)


def test_a_long_line_is_refused_before_it_is_read_whole(tmp_path):
    """3 GB without a newline, which take no room on the disk; 16 MiB of them are read."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(columns()) + "\n")
    os.truncate(path, 3 << 30)
    with pytest.raises(
        ValueError,
        match=r"rows\.jsonl, line 2: more than 16 MiB, the bound of a row\. Shorten or remove",
    ):
        open_prompts(path)


def test_a_small_parquet_that_unpacks_to_long_rows_is_refused_before_they_are_all_unpacked(
    tmp_path,
):
    """60 equal prompts of 20 MB are one value of a dictionary; 51 of them fit into what is decoded
    at a time.
    """
    path = tmp_path / "rows.parquet"
    entry = columns(prompt=[message("user", "x" * 20_000_000)], extra_info=None)
    table = pyarrow.concat_tables(
        [pyarrow.Table.from_pylist([columns(extra_info=None)])]
        + 60 * [pyarrow.Table.from_pylist([entry])]
    )
    parquet.write_table(table.combine_chunks(), path, compression="zstd", use_dictionary=True)
    assert path.stat().st_size < 10_000
    del table
    for read in ("file.rows(0, 61)", "file.row(0)", "list(file.select([0, 60]))"):
        done = subprocess.run(
            [sys.executable, "-c", READ_AND_TELL.format(path=path, read=read)],
            capture_output=True,
            text=True,
            check=True,
        )
        message_, peak = done.stdout.splitlines()
        assert (
            "rows.parquet, row 1: more than 16 MiB, the bound of a row. Shorten or remove "
            "the row." in message_
        )
        assert int(peak) < 1100 << 20


def test_many_messages_of_one_text_are_refused_before_they_are_unpacked(tmp_path):
    """2000 messages of one text of 1 MB are one value of a dictionary: a row of 2 GB in a file of
    50 KB.
    """
    path = tmp_path / "rows.parquet"
    places = pyarrow.array([0] * 6000, pyarrow.int32())
    texts = [
        pyarrow.DictionaryArray.from_arrays(places, pyarrow.array([text]))
        for text in ("user", "x" * 1_000_000)
    ]
    messages = pyarrow.StructArray.from_arrays(texts, ["role", "content"])
    prompt = pyarrow.ListArray.from_arrays(
        pyarrow.array([0, 2000, 4000, 6000], pyarrow.int32()), messages
    )
    entry = columns(extra_info=None)
    table = {
        "data_source": [entry["data_source"]] * 3,
        "prompt": prompt,
        "reward_model": [entry["reward_model"]] * 3,
    }
    parquet.write_table(pyarrow.table(table), path)
    assert path.stat().st_size < 100_000
    for read in ("file.rows(0, 3)", "file.row(2)", "list(file.select([1]))"):
        done = subprocess.run(
            [sys.executable, "-c", READ_AND_TELL.format(path=path, read=read)],
            capture_output=True,
            text=True,
            check=True,
        )
        message_, peak = done.stdout.splitlines()
        assert "rows.parquet, row 0: more than 16 MiB, the bound of a row." in message_
        assert int(peak) < 300 << 20


def test_rows_of_one_text_are_unpacked_a_few_at_a_time(tmp_path):
    """100 rows of 10 MB each are within their bound, and a gigabyte together."""
    path = tmp_path / "rows.parquet"
    entry = columns(prompt=[message("user", "x" * 10_000_000)], extra_info=None)
    table = pyarrow.Table.from_pylist([entry])
    parquet.write_table(
        pyarrow.concat_tables([table] * 100).combine_chunks(), path, compression="zstd"
    )
    program = "from envs.prompt_files import open_prompts; " + (
        "assert sum(len(row.prompt[0]['content']) for row in "
        f"open_prompts('{path}').select(range(100))) == 10**9; "
        "print(next(line.split()[1] for line in open('/proc/self/status') if "
        "line.startswith('VmHWM')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 600_000  # KiB


def test_a_row_group_that_declares_more_than_its_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_prompts, "MAX_GROUP_BYTES", 1 << 20)
    rows = [row(number, extra_info={"text": f"{number}" * 1000}) for number in range(1000)]
    write_prompts(tmp_path / "rows.parquet", rows)
    with pytest.raises(
        ValueError,
        match=r"row group 0 \(from row 0\) declares more than 1 MiB\. Write the file with fewer rows",
    ):
        open_prompts(tmp_path / "rows.parquet")
