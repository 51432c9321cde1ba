"""Keeps Ray's own messages, and the trace of a failure on Ray, in a file of the run folder.

When a process dies, Ray's raylet sends a paragraph on possible causes, which Ray prints to the
terminal. The command prints one sentence instead (`siirl.execution.scheduler.launch`), and the name
of the file with the rest. Left out: lines that the run's processes write
(`siirl.execution.scheduler.rank_output`).
"""

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ray._private import worker as rays_worker
from ray.exceptions import RayError

from siirl import interrupts
from siirl.errors import SiirlError


@contextmanager
def kept(file: Path | None) -> Iterator[None]:
    """Append Ray's messages to `file` (None: write them to stderr) until the context ends; a
    failure on Ray gets a note that names the file, and its trace is appended too.
    """
    printer = rays_worker.print_to_stdstream

    def keep(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
        append(file, "\n".join(data["lines"]))

    rays_worker.print_to_stdstream = keep
    try:
        with interrupts.final_message(lambda: note(file)):
            yield
    except SiirlError as error:
        if isinstance(error.__cause__, RayError):
            append(file, "".join(traceback.format_exception(error)))
        if words := note(file):
            error.add_note(words)
        raise
    finally:
        rays_worker.print_to_stdstream = printer


def append(file: Path | None, text: str) -> None:
    """Add a message with its time."""
    if file is None:
        print(f"Ray: {text}", file=sys.stderr, flush=True)
        return
    with file.open("a") as stream:
        stream.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text.rstrip()}\n")


def note(file: Path | None) -> str:
    """Sentence that names the file; empty if the file is empty."""
    if file is None or not file.is_file():
        return ""
    return f"Ray's messages and the traces of its processes are in {file}"
