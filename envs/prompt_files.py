"""Reads prompts from files; a row has a prompt, its source and its ground truth.

There are two forms, distinguished by their columns:

- **Prompt columns**, parquet or jsonl: `data_source`, `prompt` (chat messages) and `reward_model`
  ({style, ground_truth}); `ability`, `extra_info` and `images` (`envs.question_pictures`) are
  optional. Other columns are ignored, with a log message.
- **GSM8K**, jsonl as its authors ship it (https://github.com/openai/grade-school-math) or parquet
  as on the Hub (openai/gsm8k): `question` and `answer`, with the solution and, in its last line,
  `#### x`.

Opening a file reads only its index, and a rank reads its own rows (`rows(start, stop)`). Every
fault raises a ValueError with file, row and remedy. Left out: shuffling, sharding and chat
templates, which belong to the data loader.
"""

import array
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.prompt_rows import (
    COLUMNS,
    GSM8K_COLUMNS,
    GSM8K_INSTRUCTION,
    GSM8K_SOURCE,
    IMAGES,
    MAX_ROW_BYTES,
    REQUIRED,
    PromptFile,
    PromptRow,
    check_columns,
    check_not_empty,
    error_of_length,
    json_object,
    of_row,
    row_reader,
    source_of,
)

logger = logging.getLogger(__name__)

READABLE = "a .parquet file, or a .jsonl file with one JSON object per line"


def open_prompts(path: str | Path, *, gsm8k_instruction: str = GSM8K_INSTRUCTION) -> PromptFile:
    """Open a file of prompts.

    Args:
        path: Parquet or jsonl; see the module docstring.
        gsm8k_instruction: Appended to GSM8K questions, which do not state the form of the answer.

    Raises:
        FileNotFoundError: No such file.
        ValueError: An unknown file ending, an empty or broken file, or columns of neither form.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} to read prompts from.")
    if path.suffix == ".parquet":
        from envs.parquet_prompts import ParquetPrompts  # pyarrow takes 35 MB

        return ParquetPrompts(path, gsm8k_instruction=gsm8k_instruction)
    if path.suffix == ".jsonl":
        return JsonLinesPrompts(path, gsm8k_instruction=gsm8k_instruction)
    raise ValueError(
        f"Prompts are read from {READABLE}; {path} ends in {path.suffix or 'nothing'}."
    )


def write_prompts(path: str | Path, rows: Sequence[PromptRow]) -> None:
    """Write `rows` as parquet or jsonl, by the ending of `path`; `open_prompts` reads it."""
    path, columns = Path(path), [row.as_columns() for row in rows]
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        for entry in columns:
            entry["extra_info"] = entry["extra_info"] or None  # parquet cannot store an empty dict
        for entry, row in zip(columns, rows, strict=True):
            if row.images:
                entry[IMAGES] = [{"bytes": one.data, "path": one.path} for one in row.images]
        parquet.write_table(pyarrow.Table.from_pylist(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(entry) + "\n" for entry in columns))
    else:
        raise ValueError(
            f"Prompts are written to {READABLE}; {path} ends in {path.suffix or 'nothing'}."
        )


class JsonLinesPrompts(PromptFile):
    """Prompt columns or GSM8K, one JSON object per line; blank lines are skipped."""

    def __init__(self, path: Path, *, gsm8k_instruction: str) -> None:
        self.path = path
        # Number (from 1) and position of every nonblank line.
        self._numbers, self._positions = array.array("q"), array.array("q")
        position = 0
        with path.open("rb") as stream:
            for number, line in enumerate(
                iter(lambda: stream.readline(MAX_ROW_BYTES + 1), b""), start=1
            ):
                if len(line) > MAX_ROW_BYTES:
                    raise error_of_length(path, f"line {number}")
                if line.strip():
                    self._numbers.append(number)
                    self._positions.append(position)
                position += len(line)
        check_not_empty(len(self), path)
        names = list(next(self._objects(range(1))))
        self._is_gsm8k = set(GSM8K_COLUMNS) <= set(names)
        if not self._is_gsm8k:
            check_columns(names, required=REQUIRED, known=COLUMNS, path=path)
        self._reader = row_reader(path, instruction=gsm8k_instruction if self._is_gsm8k else None)

    def __len__(self) -> int:
        return len(self._numbers)

    def data_sources(self) -> list[str]:
        """See `PromptFile.data_sources`."""
        if self._is_gsm8k:
            return [GSM8K_SOURCE] * len(self)
        return [
            self._read(source_of, entry, row)
            for row, entry in enumerate(self._objects(range(len(self))))
        ]

    def place(self, row: int) -> str:
        """See `PromptFile.place`; lines are counted from 1, including blank ones."""
        return f"line {self._numbers[row]}"

    def rows(self, start: int, stop: int) -> list[PromptRow]:
        """See `PromptFile.rows`."""
        return list(self.select(range(len(self))[start:stop]))

    def select(self, rows: Sequence[int]) -> Iterator[PromptRow]:
        """See `PromptFile.select`."""
        for row, entry in zip(rows, self._objects(rows), strict=True):
            yield self._read(self._reader, entry, row)

    def _read(self, read: Any, entry: Mapping[str, Any], row: int) -> Any:
        return of_row(read, entry, path=self.path, place=self.place(row))

    def _objects(self, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as stream:
            for row in rows:
                stream.seek(self._positions[row])
                yield json_object(stream.readline(), place=f"{self.path}, {self.place(row)}")
