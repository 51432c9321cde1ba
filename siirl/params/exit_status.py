"""Exit status and last message of every command.

Left out: signal handlers (`siirl.interrupts`).
"""

import os
import signal
import sys

from siirl.interrupts import Interrupted
from siirl.params.terminal_lines import say

FAILED, REFUSED = 1, 2


def end(status: int, sentence: str, error: BaseException) -> int:
    """Print why the command ends, with the notes attached to `error`; returns `status`."""
    say("\n".join([f"siirl: {sentence}", *getattr(error, "__notes__", ())]))
    return status


def interrupted(interrupt: KeyboardInterrupt) -> int:
    """Exit status of an interrupted command: 128 + the signal's number, as in a shell.

    A plain KeyboardInterrupt counts as SIGINT.
    """
    return 128 + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


def end_without_reader() -> int:
    """Silence the output after its reader, such as `head`, has closed it; returns 128 + SIGPIPE."""
    # Python's final flush writes there
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
