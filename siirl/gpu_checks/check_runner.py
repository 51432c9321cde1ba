"""Runs checks one after the other in other processes, within a budget of time.

A check that crashes (out of memory, CUDA error, segmentation fault) or takes too long is a failed
row; the others continue in a fresh process. On a GPU every check runs in a separate process with
the whole memory. On a CPU, importing torch takes most of a small check's time, so one process runs
them in turn until one fails. Checks that fit into the budget together get the time that they need,
and a part of the rest in proportion to it; otherwise a check gets its share. Time that earlier
checks left is added.

A process, and all that it started, write their temporary files below one folder (`TMPDIR`). It is
removed when they have ended, also when they were killed or a signal ends the command.
"""

import getpass
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from siirl.gpu_checks.check import FORCE_GROUP, Check, Row, late
from siirl.interrupts import end_session, final_message

STATED_MINUTES = 8.0  # the values of `Check.at_most_s` were chosen for this budget
STARTING_S = 8.0  # a process imports torch first; with less time, do not start one
LEAST_S = 30.0  # on a busy machine the first check needs as much to import torch
LONGEST_REASON = 300
LOOK_EVERY_S = 0.02
ENDING_S = 20.0  # of killed processes; those with much memory of a GPU take seconds
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
CHILD = (sys.executable, "-m", "siirl.gpu_checks.child")


def run_checks(
    checks: Sequence[Check], *, minutes: float, apart: bool, force_group: bool = False
) -> Iterator[Row]:
    """Yield the row of each check as soon as it is known; ends within `minutes`.

    Args:
        checks: In the order in which they run.
        minutes: The budget.
        apart: Run each check in a separate process.
        force_group: See `Trial`.
    """
    ends_at = time.monotonic() + 60 * minutes
    whole_s = sum(check.at_most_s for check in checks)
    scale = 60 * minutes / whole_s if whole_s else 1.0
    if scale < 1:
        scale = max(scale, minutes / STATED_MINUTES)
    spare_s, worker = 0.0, CheckWorker(force_group=force_group)
    with final_message(worker.end_for_good), closing(worker):
        for check in checks:
            part_s = check.at_most_s * scale + spare_s
            begin = time.monotonic()
            seconds = min(max(part_s, LEAST_S), ends_at - begin)
            reason = _skipped(check, seconds)
            if reason is None:
                yield worker.run(check, seconds=seconds)
            else:
                yield Row(check.name, check.what, "skipped", reason)
            spare_s = max(0.0, part_s - (time.monotonic() - begin))
            if apart:
                worker.close()


def _missing(check: Check) -> list[str]:
    return [name for name in check.needs if importlib.util.find_spec(name) is None]


def _skipped(check: Check, seconds: float) -> str | None:
    if missing := _missing(check):
        return f"not installed: {', '.join(missing)}"
    return "the time budget is spent (--minutes)" if seconds < STARTING_S else None


class CheckWorker:
    """A process that runs checks in turn, started on demand; for `force_group` see `Trial`."""

    def __init__(self, *, force_group: bool = False) -> None:
        self._options = [FORCE_GROUP] if force_group else []
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()

    def run(self, check: Check, *, seconds: float) -> Row:
        """Run `check` for at most `seconds`, the start of the process included."""
        begin = time.monotonic()
        if self._process is None:
            self._start(check)
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which its status says
            self._process.stdin.write(f"{check.name} {check.function} {begin + seconds}\n".encode())
        result = self._folder / f"{check.name}.json"
        found: dict[str, Any] = {}
        status: int | None = None
        while "ended" not in found and status is None and time.monotonic() - begin < seconds:
            time.sleep(LOOK_EVERY_S)
            status = self._process.poll()
            found = json.loads(result.read_text()) if result.is_file() else {}
        row = Row(check.name, check.what, "OK", figures=found.get("figures", {}))
        row.seconds = round(time.monotonic() - begin, 1)
        if found.get("ended") == "OK":
            return row
        if found.get("ended") == "skipped":
            row.status, row.reason = "skipped", found["reason"]
            return row
        row.status = "failed"
        if "ended" in found:
            row.reason = found["reason"]
        elif status is None:
            row.reason = late("", check.name, seconds)
        else:
            row.reason = _reason(self._errors.read_text(), status)
        self.close()
        return row

    def close(self) -> None:
        """Kill the process and all that it started, and remove their files; safe to call twice."""
        with self._changing:
            self._close()

    def end_for_good(self) -> str:
        """`close`, from the thread of a signal; after it no process starts. Returns no message."""
        self._changing.acquire()  # never released: the command ends now
        self._close()
        return ""

    def _close(self) -> None:
        if self._process is None:
            return
        end_session(self._process.pid, within_s=ENDING_S)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None
        self._holder.cleanup()

    def _start(self, check: Check) -> None:
        with self._changing:
            # a short name, since sockets below it have at most 107 characters
            self._holder = tempfile.TemporaryDirectory(prefix="siirl-gpu-")
            self._folder = Path(self._holder.name)
            self._errors = self._folder / "stderr"
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    [*CHILD, str(self._folder), *self._options],
                    bufsize=0,
                    env=_environment(check) | {"TMPDIR": str(self._folder)},
                    stdin=subprocess.PIPE,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,  # by which its child processes are found
                )


def _environment(check: Check) -> dict[str, str]:
    """Variables of a check's process; those of the command come first.

    Compiled kernels stay where PyTorch has them by default, for the next run. The allocator would
    keep blocks of one size while another size fails, but for expandable segments. Of these PyTorch
    maps memory in another process by `pidfd_getfd`, which Linux often refuses to users
    (https://github.com/pytorch/pytorch/issues/165685).
    """
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{_user()}")
    settings = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)}
    if not check.shares_memory:
        settings[ALLOCATOR] = "expandable_segments:True"
    return {**settings, **os.environ}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid_{os.getuid()}"


def _reason(said: str, status: int) -> str:
    """The last line of an error's traceback; for a death by signal its name."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(" ")]
    return (lines[-1] if lines and status >= 0 else death(status))[:LONGEST_REASON]


def death(status: int) -> str:
    """How a process ended, by its exit status."""
    if status < 0:
        return f"its process was killed by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"
