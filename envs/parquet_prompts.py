"""Prompts in a parquet file, whose rows are measured before they are unpacked.

Parquet stores a recurring text once, in a dictionary. pyarrow can keep that form
(`read_dictionary`), with a few bytes per value. So a small file whose rows unpack to gigabytes is
detected before unpacking.
"""

import bisect
import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, parquet

from envs.parquet_footers import check_footers
from envs.prompt_rows import (
    COLUMNS,
    GSM8K_COLUMNS,
    GSM8K_INSTRUCTION,
    GSM8K_SOURCE,
    MAX_ROW_BYTES,
    REQUIRED,
    PromptFile,
    PromptRow,
    check_columns,
    check_not_empty,
    error_of_length,
    of_row,
    row_reader,
    source_of,
)

ROWS_AT_ONCE = 512  # decoded at a time in a full pass: about a megabyte of text
BYTES_OF_A_VALUE = 8  # of a number, or of a text's offset
MAX_PIECE_BYTES = 64 << 20  # limit of the rows that are unpacked at a time
# of one parquet row group in pyarrow's compact form, which stores a recurring text once
MAX_GROUP_BYTES = 1 << 30


def text_columns(metadata: parquet.FileMetaData, names: Collection[str]) -> list[str]:
    """Paths of text columns, including nested ones, in `names`, for `read_dictionary`."""
    schema = metadata.schema
    columns = [schema.column(number) for number in range(len(schema))]
    return [
        column.path
        for column in columns
        if column.path.split(".")[0] in names
        and column.physical_type == "BYTE_ARRAY"
        and column.logical_type.type in ("STRING", "NONE")
    ]


def unpacked_bytes(batch: pyarrow.RecordBatch) -> NDArray[np.int64]:
    """Unpacked size of each row of `batch`, in bytes [rows]."""
    return sum((_sizes(column) for column in batch.columns), start=np.zeros(len(batch), np.int64))


def _sizes(array: Any) -> NDArray[np.int64]:
    """Bytes of each value."""
    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        entries = _sizes(array.dictionary)
        places = np.asarray(compute.fill_null(array.indices, 0).cast(pyarrow.int64()))
        sizes = entries[places] if len(entries) else np.zeros(len(array), np.int64)
        return np.where(np.asarray(array.is_null()), 0, sizes) + BYTES_OF_A_VALUE
    if pyarrow.types.is_struct(kind):
        return sum(
            (_sizes(array.field(number)) for number in range(kind.num_fields)),
            start=np.zeros(len(array), np.int64),
        )
    if (
        pyarrow.types.is_list(kind)
        or pyarrow.types.is_large_list(kind)
        or pyarrow.types.is_map(kind)
    ):
        inner = [array.keys, array.items] if pyarrow.types.is_map(kind) else [array.values]
        offsets = np.asarray(array.offsets).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(sum(_sizes(part) for part in inner))])
        return sums[offsets[1:]] - sums[offsets[:-1]] + BYTES_OF_A_VALUE
    if (
        pyarrow.types.is_string(kind)
        or pyarrow.types.is_binary(kind)
        or pyarrow.types.is_large_string(kind)
    ):
        return (
            np.asarray(compute.fill_null(compute.binary_length(array), 0)).astype(np.int64)
            + BYTES_OF_A_VALUE
        )
    return np.full(len(array), BYTES_OF_A_VALUE, np.int64)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn pyarrow's exceptions for a damaged file into a ValueError with file and remedy."""
    try:
        yield
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise ValueError(
            f"{path} is not a readable parquet file ({' '.join(str(error).split())[:200]}). Write "
            "it again, or remove it from the list."
        ) from error


class ParquetPrompts(PromptFile):
    """Prompt columns or GSM8K in parquet; decodes only row groups with requested rows."""

    def __init__(self, path: Path, *, gsm8k_instruction: str = GSM8K_INSTRUCTION) -> None:
        self.path = path
        check_footers([path])
        with _readable(path):
            metadata = parquet.read_metadata(path)
            self._is_gsm8k = set(GSM8K_COLUMNS) <= set(metadata.schema.to_arrow_schema().names)
            known = GSM8K_COLUMNS if self._is_gsm8k else COLUMNS
            self._file = parquet.ParquetFile(path, read_dictionary=text_columns(metadata, known))
            found = self._file.schema_arrow.names
        if not self._is_gsm8k:
            check_columns(found, required=REQUIRED, known=COLUMNS, path=path)
        self._starts = [0]
        for group in range(self._file.num_row_groups):
            self._starts.append(self._starts[-1] + self._file.metadata.row_group(group).num_rows)
        check_not_empty(len(self), path)
        self._names = [name for name in known if name in found]
        self._rows_at_once = [
            self._check_group(group) for group in range(self._file.num_row_groups)
        ]
        self._kept: dict[int, pyarrow.Table] = {}
        self._reader = row_reader(path, instruction=gsm8k_instruction if self._is_gsm8k else None)

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
        values = (value for piece in pieces for value in self._values(piece["data_source"]))
        return [
            of_row(source_of, {"data_source": value}, path=self.path, place=self.place(row))
            for row, value in enumerate(values)
        ]

    def place(self, row: int) -> str:
        """See `PromptFile.place`; rows are counted from 0."""
        return f"row {row}"

    def rows(self, start: int, stop: int) -> list[PromptRow]:
        """See `PromptFile.rows`."""
        return list(self.select(range(len(self))[start:stop]))

    def select(self, rows: Sequence[int]) -> Iterator[PromptRow]:
        """See `PromptFile.select`; skips row groups without requested rows, and decodes in
        pieces.
        """
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
        """Number of rows of a row group to read at a time, in pyarrow's compact form."""
        described = self._file.metadata.row_group(group)
        columns = [described.column(number) for number in range(described.num_columns)]
        columns = [
            column for column in columns if column.path_in_schema.split(".")[0] in self._names
        ]
        declared = [column.total_uncompressed_size for column in columns]
        values = sum(column.num_values for column in columns)
        if sum(declared) + BYTES_OF_A_VALUE * values > MAX_GROUP_BYTES:
            # one text in a dictionary may have any number of values
            raise self._too_large(group, "declares")
        return min(max(MAX_GROUP_BYTES // max([1, *declared]), 1), ROWS_AT_ONCE)

    def _pieces(self, group: int, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yields a row group in pieces of at most `MAX_PIECE_BYTES` as Python objects.

        Recurring texts are read as pyarrow dictionaries, so that sizes are known before unpacking.
        """
        first = self._starts[group]
        for batch in self._batches(group, names):
            sizes = unpacked_bytes(batch)
            too_long = np.flatnonzero(sizes > MAX_ROW_BYTES)
            if len(too_long):
                raise error_of_length(self.path, self.place(first + int(too_long[0])))
            first += len(batch)
            yield from _cut(batch, sizes)
        if first != self._starts[group + 1]:
            raise ValueError(
                f"{self.path}, row group {group} has {first - self._starts[group]} rows, but its "
                f"footer says {self._starts[group + 1] - self._starts[group]}. Write the file "
                "again."
            )

    def _batches(self, group: int, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
        with _readable(self.path):
            for batch in self._file.iter_batches(
                self._rows_at_once[group], row_groups=[group], columns=names, use_threads=False
            ):
                # refuses indices beyond a dictionary and bytes that are not UTF-8
                batch.validate(full=True)
                yield batch

    def _values(self, column: Any) -> list[Any]:
        """A column or a table as Python objects."""
        with _readable(self.path):
            return list(column.to_pylist())

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
            f"than {MAX_GROUP_BYTES >> 20} MiB. Write the file with fewer rows per row group."
        )

    def _read(
        self, table: pyarrow.Table | pyarrow.RecordBatch, numbers: Sequence[int]
    ) -> list[PromptRow]:
        read = self._reader
        named = zip(numbers, self._values(table), strict=True)
        return [
            of_row(read, entry, path=self.path, place=self.place(number)) for number, entry in named
        ]


def _cut(batch: pyarrow.RecordBatch, sizes: NDArray[np.int64]) -> Iterator[pyarrow.RecordBatch]:
    """Cuts `batch` into pieces of at most `MAX_PIECE_BYTES`, at least one row; `sizes` [rows]."""
    ends, begin = np.cumsum(sizes), 0
    while begin < len(batch):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + MAX_PIECE_BYTES, side="right")), begin + 1)
        yield batch.slice(begin, end - begin)
        begin = end
