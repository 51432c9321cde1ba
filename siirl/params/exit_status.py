"""Exit status and last message of every command.

Left out: signal handlers (`siirl.interrupts`).
"""

import os
import signal
import sys
from collections.abc import Callable

from siirl.errors import SiirlError
from siirl.interrupts import Interrupted
from siirl.params.refusals import REFUSALS
from siirl.params.terminal_lines import say

FAILED, REFUSED = 1, 2


def exit_status(
    run: Callable[[], int | None],
    *,
    what: str,
    failures: tuple[type[Exception], ...] = (SiirlError,),
    notes: bool = True,
) -> int:
    """Run a command; returns its exit status, after printing why it did not succeed.

    Args:
        run: The command; may return a status, None is 0.
        what: Subject of the message about a failure, for example `the run`.
        failures: Exceptions whose message is enough for a user; others keep their traceback.
        notes: Whether the notes attached to an error are printed.
    """
    try:
        return run() or 0
    except REFUSALS as error:
        return end(REFUSED, str(error), error if notes else None)
    except BrokenPipeError:
        return end_without_reader()
    except failures as error:
        return end(FAILED, f"{what} failed: {error}", error if notes else None)
    except KeyboardInterrupt as interrupt:
        return end(interrupted(interrupt), "interrupted", interrupt if notes else None)


def end(status: int, sentence: str, error: BaseException | None) -> int:
    """Print why the command ends, with the notes attached to `error` if given; returns `status`."""
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
