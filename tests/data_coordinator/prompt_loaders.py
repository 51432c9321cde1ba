"""Prompt files of tests, and loaders that read them."""

from pathlib import Path

import pyarrow
from pyarrow import parquet

from envs.prompt_files import write_prompts
from envs.prompt_rows import PromptRow
from envs.registry import env_spec
from envs.text import message
from siirl.data_coordinator.prompts import PromptLoader
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


def write_files(folder: Path) -> Path:
    """The same 23 rows as jsonl, and as parquet in row groups of 5."""
    write_prompts(folder / "train.jsonl", rows())
    table = pyarrow.Table.from_pylist(
        [{**entry.as_columns(), "extra_info": {"n": 1}} for entry in rows()]
    )
    parquet.write_table(table, folder / "train.parquet", row_group_size=5)
    return folder
