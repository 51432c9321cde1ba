"""How a command ends: its exit status and its last sentence. The same for all commands; what
signals do is in `siirl.interrupts`.
"""

import os
import signal
import sys

from siirl.interrupts import Interrupted
from siirl.params.printable import printable

FAILED, REFUSED = 1, 2


def end(status: int, sentence: str, error: BaseException) -> int:
    """Tell why the command ends, with the notes that were attached to the error on its way up;
    returns `status`.
    """
    print(
        printable("\n".join([f"siirl: {sentence}", *getattr(error, "__notes__", ())])),
        file=sys.stderr,
    )
    return status


def interrupted(interrupt: KeyboardInterrupt) -> int:
    """Exit status of an interrupted command: 128 + the signal's number, as a shell has it. Python's
    own interrupt is one by Ctrl-C.
    """
    return 128 + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


def end_without_reader() -> int:
    """Whoever read the output, such as `head`, has left: end without a word; returns the exit
    status that a shell expects then.
    """
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
    )  # so that Python's own last flush has somewhere to go
    return 128 + signal.SIGPIPE
