"""Reports why a command ended if the command could not: a small child process that briefly outlives
it.

If code holds the interpreter's lock, a timer in C ends the process
(`siirl.execution.scheduler.watchdog.OwnWatch`). The timer can write stack traces to a file, but no
message. A killed process cannot write one either, for example if memory ran out. The child waits
for the command's end. If the file then has traces, the timer ended it, otherwise a signal did; if
the kernel's counter of kills for lack of memory has risen, this was probably the reason. The child
writes the reason and how to resume to stderr. Left out: commands that end themselves. They
print their own message, and kill the child first (`siirl.interrupts.end_at_once`).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from siirl.interrupts import start_apart

PROGRAM = (
    "import sys; from pathlib import Path; sys.path[:] = {path!r}; from "
    "siirl.execution.scheduler.exit_report import wait_and_report; "
    "wait_and_report(*sys.argv[1:])"
)
DONE = b"done"
KERNEL_COUNTS = Path("/proc/vmstat")  # of the whole machine, also within a container


@contextmanager
def exit_report(
    sentence: str,
    killed: str,
    out_of_memory: str,
    *,
    traces: Path,
    run_folder: Path | None,
    before: str | None,
) -> Iterator[None]:
    """If this process ends within the context, write the reason and how to resume to stderr.

    Args:
        sentence: Reason if `traces` is not empty.
        killed: Reason otherwise.
        out_of_memory: Reason instead of `killed` if the kernel has killed a process meanwhile.
        traces: The timer's file.
        run_folder: Folder of a run that can resume from its newest checkpoint; None: it cannot
            resume.
        before: `trainer.resume` of that run.
    """
    words = [sentence, killed, out_of_memory, str(traces), str(run_folder or ""), before or ""]
    command = [sys.executable, "-c", PROGRAM.format(path=sys.path), *words]
    child = start_apart(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.communicate(DONE)


def wait_and_report(
    sentence: str, killed: str, out_of_memory: str, traces: str, run_folder: str, before: str
) -> None:
    """The child: wait until the other end of stdin is closed, which happens at the end of a
    process.
    """
    kills = _kernel_kills()
    if sys.stdin.buffer.read() == DONE:
        return
    if _kernel_kills() != kills:
        killed = out_of_memory
    from siirl.terminal.terminal_lines import say  # imported late to keep the waiting process small

    lines = [f"siirl: {sentence if os.path.getsize(traces) else killed}"]
    if run_folder:
        from siirl.terminal.resume_line import describe_resume

        lines.append(describe_resume(Path(run_folder), before or None))
    say("\n".join(lines))


def _kernel_kills() -> str:
    """The kernel's count of processes that it killed because memory ran out; empty without one."""
    if not KERNEL_COUNTS.is_file():
        return ""
    lines = KERNEL_COUNTS.read_text().splitlines()
    return next((line for line in lines if line.startswith("oom_kill ")), "")
