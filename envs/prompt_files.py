"""Reads prompts from files: one row has a prompt, its source and its ground truth.

Two forms, distinguished by their columns:

- **Prompt columns**, parquet or jsonl: `data_source`, `prompt` (chat messages) and `reward_model`
  ({style, ground_truth}); `ability`, `extra_info` and `images` (`envs.question_pictures`) are optional.
    Other columns are ignored, with a log message.
- **GSM8K**, jsonl as its authors ship it (https://github.com/openai/grade-school-math) or parquet
  as on the Hub (openai/gsm8k): `question` and `answer`, with the solution and, in its last line,
  `#### x`.

Opening a file reads only its index; a rank reads its own rows (`rows(start, stop)`). Every fault is
a ValueError with file, row and remedy. Left out: shuffling, sharding and chat templates, which
belong to the data loader.
"""

import abc
import array
import bisect
import functools
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from envs.names import nearest
from envs.question_pictures import PictureSource, picture_sources
from envs.text import Message, checked_messages, message, shortened
from envs.unpacked_size import BYTES_OF_A_VALUE, text_columns, unpacked_bytes

logger = logging.getLogger(__name__)

REQUIRED = ("data_source", "prompt", "reward_model")
IMAGES = "images"
COLUMNS = ("data_source", "prompt", "reward_model", "ability", "extra_info", IMAGES)
GSM8K_COLUMNS = ("question", "answer")
GSM8K_SOURCE = "openai/gsm8k"  # the name of the data set on the hub
GSM8K_INSTRUCTION = "Think step by step, and write the final answer as a number after ####."
READABLE = "a .parquet file, or a .jsonl file with one JSON object a line"
_TRUTH = "reward_model.ground_truth must be text or a finite number"
ROWS_AT_ONCE = 512  # decoded at a time in a full pass: about a megabyte of text
MAX_ROW_BYTES = 16 << 20  # of one unpacked row or line: more text than any model takes
MAX_PIECE_BYTES = 64 << 20  # of rows unpacked at a time
MAX_GROUP_BYTES = (
    1 << 30
)  # of one parquet row group in pyarrow's compact form, which stores a recurring text once


@dataclass(frozen=True)
class PromptRow:
    """One prompt with its ground truth."""

    data_source: str
    """Source, for example `openai/gsm8k`; rewards and accuracies are grouped by it."""
    prompt: tuple[Message, ...]
    """Chat messages, at least one."""
    ground_truth: str | None
    """Reference for grading; None or blank if there is none."""
    style: str = "rule"
    """Grading style; `envs.math.grading.STYLES` has those of MathEnv."""
    ability: str = "math"
    """Kind of task, for reports."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """Additional data."""
    images: tuple[PictureSource, ...] = ()
    """Pictures, one for each placeholder in the prompt."""

    @classmethod
    def of(cls, columns: Mapping[str, Any], *, folder: Path | None = None) -> "PromptRow":
        """Read a row in the form of the prompt columns.

        Args:
            columns: The row.
            folder: Where relative paths of pictures count from.

        Raises:
            ValueError: A missing or invalid column; the message names column and remedy.
        """
        missing = [name for name in REQUIRED if name not in columns]
        if missing:
            raise ValueError(
                f"column {missing[0]!r} is missing; it has {', '.join(map(str, columns)) or 'none'}"
            )
        reward_model = columns["reward_model"]
        if not isinstance(reward_model, Mapping):
            raise ValueError(
                f"reward_model must be {{style, ground_truth}}, got {shortened(reward_model)}"
            )
        try:
            prompt = checked_messages(columns["prompt"])
        except ValueError as error:
            raise ValueError(f"prompt {error}") from error
        return cls(
            data_source=_text(columns["data_source"], name="data_source"),
            prompt=tuple(prompt),
            ground_truth=_ground_truth(reward_model.get("ground_truth")),
            style=_text(reward_model.get("style", "rule"), name="reward_model.style"),
            ability=_text(columns.get("ability") or "math", name="ability"),
            extra_info=dict(columns.get("extra_info") or {}),
            images=(
                picture_sources(columns[IMAGES], prompt=prompt, folder=folder)
                if IMAGES in columns
                else ()
            ),
        )

    def as_columns(self) -> dict[str, Any]:
        """Return plain dicts and lists, as for `options={"row": …}`; the inverse of `of`."""
        pictures = {IMAGES: [picture.as_entry() for picture in self.images]} if self.images else {}
        return {
            "data_source": self.data_source,
            "prompt": [message(entry["role"], entry["content"]) for entry in self.prompt],
            "ability": self.ability,
            "reward_model": {"style": self.style, "ground_truth": self.ground_truth},
            "extra_info": dict(self.extra_info),
            **pictures,
        }


class PromptFile(abc.ABC):
    """An open file of prompts; `len` is its number of rows."""

    path: Path

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def data_sources(self) -> list[str]:
        """`data_source` of every row, in order."""

    @abc.abstractmethod
    def place(self, row: int) -> str:
        """Describe a row's position in the file, for messages."""

    @abc.abstractmethod
    def rows(self, start: int, stop: int) -> list[PromptRow]:
        """Read rows `start` to `stop` (exclusive) from disk.

        Raises:
            ValueError: A row that is wrong, with file, row and remedy.
        """

    @abc.abstractmethod
    def select(self, rows: Sequence[int]) -> Iterator[PromptRow]:
        """Yield rows by ascending numbers in one pass; holds a few hundred in memory.

        Raises:
            ValueError: A row that is wrong, with file, row and remedy.
        """

    def row(self, index: int) -> PromptRow:
        """Read one row, for random access; caches the decoded part of the file."""
        return self.rows(index, index + 1)[0]


def open_prompts(path: str | Path, *, gsm8k_instruction: str = GSM8K_INSTRUCTION) -> PromptFile:
    """Open a file of prompts.

    Args:
        path: Parquet or jsonl; see the head of this module.
        gsm8k_instruction: Appended to GSM8K questions, which do not state a form of answer.

    Raises:
        FileNotFoundError: No such file.
        ValueError: An unknown file ending, an empty or broken file, or columns of neither form.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} to read prompts from.")
    if path.suffix == ".parquet":
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
        for entry in columns:
            entry["extra_info"] = entry["extra_info"] or None  # parquet has no dict without entries
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


class ParquetPrompts(PromptFile):
    """Prompt columns or GSM8K in parquet; decodes only row groups with requested rows."""

    def __init__(self, path: Path, *, gsm8k_instruction: str = GSM8K_INSTRUCTION) -> None:
        self.path = path
        try:
            metadata = parquet.read_metadata(path)
            self._is_gsm8k = set(GSM8K_COLUMNS) <= set(metadata.schema.to_arrow_schema().names)
            known = GSM8K_COLUMNS if self._is_gsm8k else COLUMNS
            self._file = parquet.ParquetFile(path, read_dictionary=text_columns(metadata, known))
        except pyarrow.ArrowInvalid as error:
            raise ValueError(
                f"{path} is not a readable parquet file ({error}). Write it again, or remove it "
                "from the list."
            ) from error
        if not self._is_gsm8k:
            _check_columns(
                self._file.schema_arrow.names, required=REQUIRED, known=COLUMNS, path=path
            )
        self._starts = [0]
        for group in range(self._file.num_row_groups):
            self._starts.append(self._starts[-1] + self._file.metadata.row_group(group).num_rows)
        _check_not_empty(len(self), path)
        self._names = [name for name in known if name in self._file.schema_arrow.names]
        self._rows_at_once = [
            self._check_group(group) for group in range(self._file.num_row_groups)
        ]
        self._kept: dict[int, pyarrow.Table] = {}
        self._reader = _reader(path, instruction=gsm8k_instruction if self._is_gsm8k else None)

    def __len__(self) -> int:
        return self._starts[-1]

    def data_sources(self) -> list[str]:
        """See `PromptFile.data_sources`."""
        if self._is_gsm8k:
            return [GSM8K_SOURCE] * len(self)
        pieces = (
            piece
            for group in range(self._file.num_row_groups)
            for piece in self._pieces(group, ["data_source"])
        )
        values = (value for piece in pieces for value in piece["data_source"].to_pylist())
        return [
            _of_row(_source, {"data_source": value}, path=self.path, place=self.place(row))
            for row, value in enumerate(values)
        ]

    def place(self, row: int) -> str:
        """See `PromptFile.place`; rows are counted from 0."""
        return f"row {row}"

    def rows(self, start: int, stop: int) -> list[PromptRow]:
        """See `PromptFile.rows`."""
        return list(self.select(range(len(self))[start:stop]))

    def select(self, rows: Sequence[int]) -> Iterator[PromptRow]:
        """See `PromptFile.select`; skips row groups without requested rows, decodes by pieces."""
        done = 0
        while done < len(rows):
            group = bisect.bisect_right(self._starts, rows[done]) - 1
            first = self._starts[group]
            for piece in self._pieces(group, self._names):
                wanted = rows[done : bisect.bisect_left(rows, first + len(piece), lo=done)]
                if len(wanted):
                    yield from self._read(
                        piece.take(pyarrow.array([row - first for row in wanted])), wanted
                    )
                    done += len(wanted)
                first += len(piece)
                if done == len(rows):
                    return

    def row(self, index: int) -> PromptRow:
        """See `PromptFile.row`; the row group stays in memory, in pyarrow's compact form."""
        group = bisect.bisect_right(self._starts, index) - 1
        if group not in self._kept:
            self._kept[group] = self._whole(group)
        return self._read(self._kept[group].slice(index - self._starts[group], 1), [index])[0]

    def _check_group(self, group: int) -> int:
        """Number of a row group's rows to read at a time, in pyarrow's compact form."""
        described = self._file.metadata.row_group(group)
        columns = [described.column(number) for number in range(described.num_columns)]
        columns = [
            column for column in columns if column.path_in_schema.split(".")[0] in self._names
        ]
        declared = [column.total_uncompressed_size for column in columns]
        values = sum(column.num_values for column in columns)
        if (
            sum(declared) + BYTES_OF_A_VALUE * values > MAX_GROUP_BYTES
        ):  # one text in a dictionary may have any number of values
            raise self._too_large(group, "declares")
        return min(max(MAX_GROUP_BYTES // max([1, *declared]), 1), ROWS_AT_ONCE)

    def _pieces(self, group: int, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yields a row group in pieces of at most `MAX_PIECE_BYTES` as Python objects.

        Recurring texts are read as pyarrow dictionaries, so that sizes are known before unpacking.
        """
        first = self._starts[group]
        for batch in self._file.iter_batches(
            self._rows_at_once[group], row_groups=[group], columns=names, use_threads=False
        ):
            sizes = unpacked_bytes(batch)
            too_long = np.flatnonzero(sizes > MAX_ROW_BYTES)
            if len(too_long):
                raise _too_long(self.path, self.place(first + int(too_long[0])))
            first += len(batch)
            yield from _cut(batch, sizes)

    def _whole(self, group: int) -> pyarrow.Table:
        pieces, size = [], 0
        for piece in self._pieces(group, self._names):
            size += piece.nbytes
            if size > MAX_GROUP_BYTES:
                raise self._too_large(group, "unpacks to")
            pieces.append(piece)
        return pyarrow.Table.from_batches(pieces)

    def _too_large(self, group: int, verb: str) -> ValueError:
        return ValueError(
            f"{self.path}, row group {group} (from {self.place(self._starts[group])}) {verb} more "
            f"than {MAX_GROUP_BYTES >> 20} MiB. Write the file with fewer rows a row group."
        )

    def _read(
        self, table: pyarrow.Table | pyarrow.RecordBatch, numbers: Sequence[int]
    ) -> list[PromptRow]:
        read = self._reader
        named = zip(numbers, table.to_pylist(), strict=True)
        return [
            _of_row(read, entry, path=self.path, place=self.place(number))
            for number, entry in named
        ]


def _cut(batch: pyarrow.RecordBatch, sizes: NDArray[np.int64]) -> Iterator[pyarrow.RecordBatch]:
    """Cuts `batch` into pieces of at most `MAX_PIECE_BYTES`, at least one row; `sizes` [rows]."""
    ends, begin = np.cumsum(sizes), 0
    while begin < len(batch):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + MAX_PIECE_BYTES, side="right")), begin + 1)
        yield batch.slice(begin, end - begin)
        begin = end


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
                    raise _too_long(path, f"line {number}")
                if line.strip():
                    self._numbers.append(number)
                    self._positions.append(position)
                position += len(line)
        _check_not_empty(len(self), path)
        names = list(next(self._objects(range(1))))
        self._is_gsm8k = set(GSM8K_COLUMNS) <= set(names)
        if not self._is_gsm8k:
            _check_columns(names, required=REQUIRED, known=COLUMNS, path=path)
        self._reader = _reader(path, instruction=gsm8k_instruction if self._is_gsm8k else None)

    def __len__(self) -> int:
        return len(self._numbers)

    def data_sources(self) -> list[str]:
        """See `PromptFile.data_sources`."""
        if self._is_gsm8k:
            return [GSM8K_SOURCE] * len(self)
        return [
            self._read(_source, entry, row)
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
        return _of_row(read, entry, path=self.path, place=self.place(row))

    def _objects(self, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as stream:
            for row in rows:
                stream.seek(self._positions[row])
                yield json_object(stream.readline(), place=f"{self.path}, {self.place(row)}")


def _reader(path: Path, *, instruction: str | None) -> Callable[[Mapping[str, Any]], PromptRow]:
    """Reads a row of the file: of GSM8K's form with an instruction, else of the prompt columns."""
    if instruction is None:
        return functools.partial(PromptRow.of, folder=path.parent.resolve())
    return functools.partial(_gsm8k_row, instruction)


def _gsm8k_row(instruction: str, entry: Mapping[str, Any]) -> PromptRow:
    for name in GSM8K_COLUMNS:
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"{name!r} must be text, got {shortened(entry.get(name))}")
    solution, mark, answer = entry["answer"].rpartition("####")
    if not mark or not answer.strip():
        raise ValueError(
            f"'answer' must end in a line `#### x`, got {shortened(entry['answer'][-60:])}"
        )
    return PromptRow(
        data_source=GSM8K_SOURCE,
        prompt=(message("user", f"{entry['question'].strip()}\n{instruction}".strip()),),
        ground_truth=answer.strip(),
        extra_info={"solution": solution.strip()},
    )


def _of_row(read: Any, entry: Mapping[str, Any], *, path: Path, place: str) -> Any:
    try:
        return read(entry)
    except ValueError as error:
        raise ValueError(f"{path}, {place}: {error}. Correct the row, or take it out.") from error


def _too_long(path: Path, place: str) -> ValueError:
    return ValueError(
        f"{path}, {place}: more than {MAX_ROW_BYTES >> 20} MiB, the bound of a row. Shorten the "
        "row, or take it out."
    )


def json_object(line: bytes, *, place: str) -> dict[str, Any]:
    """The JSON object in a line; ValueError with `place`, file and row, for anything else."""
    try:
        entry = json.loads(line)
    except (
        ValueError,
        RecursionError,
    ) as error:  # broken JSON, not UTF-8, or a thousand nested lists
        raise ValueError(
            f"{place}: not JSON ({error}). One JSON object a line is expected."
        ) from error
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: a JSON object is expected, got {shortened(entry)}.")
    return entry


def _check_columns(
    found: Sequence[str], *, required: Iterable[str], known: Sequence[str], path: Path
) -> None:
    missing = [name for name in required if name not in found]
    if missing:
        hint = nearest(missing[0], list(found))
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}.{hint} It has: "
            f"{', '.join(found) or '(none)'}. Prompts need "
            f"{', '.join(known)} (the last three may be left out), or `question` and "
            "`answer` in jsonl as GSM8K ships."
        )
    foreign = [name for name in found if name not in known]
    if foreign:
        logger.warning("%s: columns that are not read: %s.", path, ", ".join(foreign))


def _check_not_empty(rows: int, path: Path) -> None:
    if rows == 0:
        raise ValueError(f"{path} has no rows. Remove it from the list, or fill it.")


def _source(columns: Mapping[str, Any]) -> str:
    return _text(columns.get("data_source"), name="data_source")


def _text(value: Any, *, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text, got {shortened(value)}")
    return value


def require_truth(truth: str | None) -> str:
    """Return `truth`; raises ValueError if it is missing or blank."""
    if truth is None or not truth.strip():
        raise ValueError(f"{_TRUTH}, got {shortened(truth)}")
    return truth


def _ground_truth(value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{_TRUTH}, got {shortened(value)}")
    return value
