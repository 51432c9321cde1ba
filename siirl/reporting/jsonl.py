"""JSON-lines file of a run that may stop at any moment and resume.

Each line is complete and flushed. Rows carry a `step`; a resumed run drops the rows of the steps
that it repeats, so that no step appears twice.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of `path`, without a truncated last line.

    Raises:
        ValueError: A line that is not a JSON object, with file, line and remedy.
    """
    for number, value in read_values(path):
        if not isinstance(value, dict):
            raise ValueError(
                f"{path}, line {number}, is of type {type(value).__name__}, not a row. Correct or "
                "delete that line."
            )
        yield value


def read_values(path: Path) -> Iterator[tuple[int, Any]]:
    """Line number, from 1, and JSON value of each line; see `read_rows`."""
    if not path.exists():
        return
    if path.is_fifo():
        raise ValueError(f"{path} is a named pipe, which would block its reader. Remove it.")
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            # broken JSON, not UTF-8, a number of 4300 digits, or a thousand nested lists
            if number == len(lines):
                return
            raise ValueError(
                f"{path}, line {number}, is not JSON: {error}. Correct or delete that line."
            ) from error
        yield number, value


class JsonlFile:
    """Appends rows to `path`, after dropping earlier rows of `first_step` and later.

    Args:
        path: The file; its folder must exist.
        first_step: The first step that this process will write; 0 starts a new file. Steps count
            from 1; 0 is the evaluation before training.
    """

    def __init__(self, path: Path, *, first_step: int = 0) -> None:
        self.path = path
        kept = [row for row in read_rows(path) if row["step"] < first_step]
        rewritten = path.with_name(path.name + ".part")
        rewritten.write_text("".join(_line(row) for row in kept))
        os.replace(rewritten, path)
        self._file = path.open("a")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row, which must have a `step`, and flush it. NaN and infinity, which JSON
        lacks, become null.
        """
        self._file.write(_line(row))
        self._file.flush()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps({key: _finite(value) for key, value in row.items()}, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
