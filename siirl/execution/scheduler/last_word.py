"""Says why a command ended whose own code could not: a small child process that outlives it by a
moment.

Code that keeps the interpreter's lock is ended by a timer in C
(`siirl.execution.scheduler.watchdog.OwnWatch`), which writes stack traces to a file and no
sentence. The child waits for the command's end; if the file has traces then, the timer ended it,
and the child writes the sentence and the way on to stderr. Left out: a command that was killed
otherwise, of which the child says nothing.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = (
    "import sys; from pathlib import Path; sys.path[:] = {path!r}; from "
    "siirl.execution.scheduler.last_word import wait_and_speak; "
    "wait_and_speak(*sys.argv[1:])"
)
DONE = b"done"


@contextmanager
def last_word(
    sentence: str, *, traces: Path, run_folder: Path | None, before: str | None
) -> Iterator[None]:
    """Have `sentence` written to stderr, with the way on, where this process ends within the
    context and `traces` is not empty.

    Args:
        sentence: Why it ended then.
        traces: The timer's file.
        run_folder: Of a run that can go on from its newest checkpoint; None: it cannot.
        before: `trainer.resume` of that run.
    """
    words = [sentence, str(traces), str(run_folder or ""), before or ""]
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(path=sys.path), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,  # a terminal's Ctrl-C is for the command
    )
    try:
        yield
    finally:
        child.communicate(DONE)


def wait_and_speak(sentence: str, traces: str, run_folder: str, before: str) -> None:
    """The child: wait until the other end of stdin is closed, which the end of a process does in
    any case.
    """
    if sys.stdin.buffer.read() == DONE or not os.path.getsize(traces):
        return
    from siirl.params.terminal_lines import say  # imported late: the waiting process stays small

    lines = [f"siirl: {sentence}"]
    if run_folder:
        from siirl.params.resume_line import way_on

        lines.append(way_on(Path(run_folder), before or None))
    say("\n".join(lines))
