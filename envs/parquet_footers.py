"""Reads the footers of parquet files in another process first, because pyarrow aborts on some.

pyarrow reads a column's metadata in a call that handles no C++ exceptions. So a size histogram of
the wrong length in a damaged file ends the process. The other process takes 0.2 s for any number of
files. Left out: pages, because pyarrow raises an exception if they are damaged.
"""

import contextlib
import functools
from collections.abc import Iterable
from pathlib import Path

from pyarrow import parquet

from envs.worker_pool import WorkerKilled, WorkerPool, WorkerRaised, WorkerSettings

DEADLINE_S = 600.0  # for one footer; only a hang takes longer
SETTINGS = WorkerSettings("envs.parquet_footers:read_footer", num_workers=1, deadline_s=DEADLINE_S)


def check_footers(files: Iterable[Path]) -> None:
    """Refuse files whose footer would abort this process; unchanged files are not read again.

    Raises:
        ValueError: Such a file, with the remedy.
    """
    states = []
    for file in files:
        if not file.is_file():  # opening it later reports the fault; a named pipe would block here
            raise ValueError(f"{file} cannot be read: it is missing, or not a file. Copy it again.")
        status = file.stat()
        states.append((str(file), status.st_size, status.st_mtime_ns))
    _check(tuple(states))


@functools.lru_cache
def _check(states: tuple[tuple[str, int, int], ...]) -> None:
    pool = WorkerPool(SETTINGS)
    try:
        for file, _, _ in states:
            with contextlib.suppress(WorkerRaised):  # opening the file raises the same error
                pool.call_blocking(file)
    except WorkerKilled as end:
        raise ValueError(
            f"{file} is a damaged parquet file: the process that read its footer failed ({end}). "
            "Copy or write it again."
        ) from end
    finally:
        pool.close()


def read_footer(file: str) -> None:
    """Read all metadata of a file; runs in the other process."""
    metadata = parquet.read_metadata(file)
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            metadata.row_group(group).column(column)
