"""Chrome trace of one training step over all ranks.

Each rank records its own step with torch.profiler, and rank 0 joins the files into one. Perfetto
(https://ui.perfetto.dev) and chrome://tracing open it: the lanes of each rank are adjacent, on a
common time axis. Left out: aligning the clocks of several machines.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from siirl.engine.training.collectives import Collectives
from siirl.params.profiler_args import ProfilerArguments

NANOSECONDS_PER_MICROSECOND = 1000.0


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

    Rank 0 writes `step_<number>.json` with all ranks.
    """
    folder.mkdir(exist_ok=True)
    with torch.profiler.profile() as profiler:
        yield
    parts = [folder / f"step_{step:08d}_rank_{rank}.json" for rank in range(ranks.size)]
    profiler.export_chrome_trace(str(parts[ranks.rank]))
    ranks.gather_objects(None)  # all parts are written
    if ranks.rank == 0:
        join_traces(parts, folder / f"step_{step:08d}.json")


def join_traces(parts: Sequence[Path], file: Path) -> None:
    """Write the events of all ranks into one trace, and remove the parts.

    Args:
        parts: Traces of torch.profiler in rank order.
        file: The joined trace.
    """
    events: list[dict[str, Any]] = []
    origin: int | None = None
    for rank, part in enumerate(parts):
        content = json.loads(part.read_text())
        base = int(content.get("baseTimeNanoseconds", 0))
        origin = base if origin is None else origin
        shift = (base - origin) / NANOSECONDS_PER_MICROSECOND
        events += [_of_rank(event, rank=rank, shift=shift) for event in content["traceEvents"]]
    file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    for part in parts:
        part.unlink()


def _of_rank(event: dict[str, Any], *, rank: int, shift: float) -> dict[str, Any]:
    """An event with the rank in the name of its process, moved by `shift` microseconds."""
    moved = {**event, "pid": f"rank {rank}: {event.get('pid', '')}"}
    if "ts" in event:
        moved["ts"] = event["ts"] + shift
    return moved
