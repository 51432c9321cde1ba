"""How a command ends: its exit status, its last sentence, and what Ctrl-C and SIGTERM do. The same for all commands."""

import math
import os
import signal
import sys
import time
from types import FrameType

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
PATIENCE_S = 10.0  # more than simulators and Ray take to end


def end(status: int, sentence: str, error: BaseException) -> int:
    """Tell why the command ends, with the notes that were attached to the error on its way up; returns `status`."""
    print("\n".join([f"siirl: {sentence}", *getattr(error, "__notes__", ())]), file=sys.stderr)
    return status


def end_without_reader() -> int:
    """Whoever read the output, such as `head`, has left: end without a word; returns the exit status that a shell expects then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's own last flush has somewhere to go
    return 128 + signal.SIGPIPE


def end_on_signals() -> None:
    """SIGTERM ends a command as Ctrl-C does; SIGINT too where a shell started it in the background and had it ignored.

    A second Ctrl-C right after the first is not heard, so that the processes are ended in peace; one after `PATIENCE_S` is.
    """
    heard_at = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard_at
        if time.monotonic() - heard_at > PATIENCE_S:
            heard_at = time.monotonic()
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
