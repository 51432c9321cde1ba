"""Chrome trace of one training step over all ranks.

Each rank records its own step with torch.profiler, and rank 0 joins the files into one, event by
event. Perfetto (https://ui.perfetto.dev) and chrome://tracing open it: the lanes of each rank are
adjacent, on a common time axis. Ranges name what the operations belong to: every node
(`siirl.dag_worker.dataflow`), micro-batch, optimiser step and weight sync. Left out: other
processes, such as vLLM's, and aligning the clocks of several machines.
"""

import contextlib
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

import torch

from siirl.engine.training.collectives import Collectives
from siirl.errors import InvariantError
from siirl.params.profiler_args import ProfilerArguments

NANOSECONDS_PER_MICROSECOND = 1000.0
CHUNK = 2**18  # characters of a part that are read at a time
COMPRESSION = 3  # 9 takes several times as long for a file that is little smaller

EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)')
BETWEEN_EVENTS = re.compile(r"[\s,]*")
DECODER = json.JSONDecoder()


def profiled_step(
    profiler: ProfilerArguments, *, run_folder: Path, step: int, ranks: Collectives
) -> AbstractContextManager[None]:
    """A trace of all ranks, if `step` is one of `profiler.steps`."""
    if not profiler.enable or step not in profiler.steps:
        return contextlib.nullcontext()
    return traced_step(run_folder / "profile", step=step, ranks=ranks)


@contextlib.contextmanager
def traced_step(folder: Path, *, step: int, ranks: Collectives) -> Iterator[None]:
    """Record the block on this rank into `folder`; every rank calls it.

    Rank 0 writes `step_<number>.json.gz` with all ranks.
    """
    folder.mkdir(exist_ok=True)
    with torch.profiler.profile() as profiler:
        yield
    parts = [folder / f"step_{step:08d}_rank_{rank}.json" for rank in range(ranks.size)]
    profiler.export_chrome_trace(str(parts[ranks.rank]))
    del profiler  # it holds all events
    ranks.gather_objects(None)  # all parts are written
    if ranks.rank == 0:
        join_traces(parts, folder / f"step_{step:08d}.json.gz")


def join_traces(parts: Sequence[Path], file: Path) -> None:
    """Write the events of all ranks into one compressed trace, and remove the parts.

    Neither a part nor the trace is ever in memory as a whole.

    Args:
        parts: Traces of torch.profiler in rank order.
        file: The joined trace.
    """
    origin: int | None = None
    with gzip.open(file, "wt", compresslevel=COMPRESSION, encoding="utf-8") as joined:
        joined.write('{"displayTimeUnit": "ms", "traceEvents": [')
        between = "\n"
        for rank, part in enumerate(parts):
            with part.open(encoding="utf-8") as opened:
                base, events = _read(opened)
                origin = base if origin is None else origin
                shift = (base - origin) / NANOSECONDS_PER_MICROSECOND
                for event in events:
                    moved = _of_rank(event, rank=rank, ranks=len(parts), shift=shift)
                    joined.write(between + json.dumps(moved))
                    between = ",\n"
        joined.write("\n]}\n")
    for part in parts:
        part.unlink()


def _read(part: TextIO) -> tuple[int, Iterator[dict[str, Any]]]:
    """The time in nanoseconds from which a part's times count, and its events, read on demand."""
    text = ""
    while (events := EVENTS.search(text)) is None:
        more = part.read(CHUNK)
        if not more:
            raise InvariantError(f"{part.name}: torch.profiler wrote no traceEvents.")
        text += more
    base = BASE.search(text, 0, events.start())
    return int(base[1]) if base else 0, _events(part, text[events.end() :])


def _events(part: TextIO, text: str) -> Iterator[dict[str, Any]]:
    """The events from `text` on, which is followed by the rest of `part`."""
    at = 0
    while True:
        gap = BETWEEN_EVENTS.match(text, at)
        at = at if gap is None else gap.end()
        if text.startswith("]", at):
            return
        try:
            event, at = DECODER.raw_decode(text, at)
        except json.JSONDecodeError:
            more = part.read(CHUNK)
            if not more:
                raise
            text, at = text[at:] + more, 0
        else:
            yield event


def _of_rank(event: dict[str, Any], *, rank: int, ranks: int, shift: float) -> dict[str, Any]:
    """An event with the rank in the name of its process, moved by `shift` microseconds."""
    moved = {**event, "pid": f"rank {rank}: {event.get('pid', '')}"}
    if "ts" in event:
        moved["ts"] = event["ts"] + shift
    if isinstance(event.get("id"), int):  # events with the same id are joined by an arrow
        moved["id"] = event["id"] * ranks + rank
    return moved
