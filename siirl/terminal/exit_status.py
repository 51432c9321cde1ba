"""Exit status and last message of every command.

Left out: signal handlers (`siirl.interrupts`).
"""

import os
import select
import signal
from collections.abc import Callable, Sequence

from envs.mistakes import describe_exit, users_report
from siirl.errors import REFUSALS, SiirlError
from siirl.interrupts import Interrupted
from siirl.terminal.terminal_lines import say

FAILED, REFUSED = 1, 2
OUTPUTS = (1, 2)  # descriptors of stdout and stderr


def exit_status(
    run: Callable[[], int | None],
    *,
    what: str | None = None,
    failures: tuple[type[Exception], ...] = (SiirlError,),
    place: str | None = None,
    notes: bool = True,
) -> int:
    """Run a command; returns its exit status, after printing why it did not succeed.

    A closed output, as by `head`, ends a command without a message: 128 + SIGPIPE. Any other broken
    pipe is an ordinary error.

    Args:
        run: The command; may return a status, None is 0.
        what: Subject of the message about a failure, for example `the run`; None if the failure's
            message is a whole sentence.
        failures: Exceptions whose message suffices for a user; others keep their traceback, from
            the first frame of a user on if there is one.
        place: Output of the command, for example `--output FILE`; an OSError is then reported as a
            failure to write there.
        notes: Whether the notes attached to an error are printed.
    """
    try:
        status = run()
        print(end="", flush=True)
        return status or 0
    except REFUSALS as error:
        return end(REFUSED, str(error), error if notes else None)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and (closed := without_reader(OUTPUTS)):
            return end_without_reader(closed)
        if isinstance(error, OSError) and place is not None:
            return end(FAILED, cannot_write(place, error), error if notes else None)
        if isinstance(error, failures):
            subject = "" if what is None else f"{what} failed: "
            return end(FAILED, f"{subject}{error}", error if notes else None)
        report = users_report(error)
        if report is None:
            raise
        say(report)
        return FAILED
    except SystemExit as error:  # of a user's code: sys.exit(0) would end the command silently
        subject = "the command" if what is None else what
        sentence = f"{subject} failed: code that it called ended with {describe_exit(error)}."
        return end(FAILED, sentence, error if notes else None)
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


def without_reader(outputs: Sequence[int]) -> list[int]:
    """Those descriptors among `outputs` whose reader has closed the pipe, socket or terminal."""
    state = select.poll()
    for output in outputs:
        state.register(output, 0)
    return [output for output, event in state.poll(0) if event & (select.POLLERR | select.POLLHUP)]


def end_without_reader(outputs: Sequence[int]) -> int:
    """Silence `outputs` whose readers have gone; returns 128 + SIGPIPE."""
    for output in outputs:  # Python's final flush writes there
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return 128 + signal.SIGPIPE


def cannot_write(place: str, error: OSError) -> str:
    """The sentence for a file of `place`, or the command's output, that cannot be written."""
    if error.filename is None:  # stdout is full
        return f"The output cannot be written: {error.strerror}."
    return f"{place} cannot be written: {error.strerror} ({error.filename}). Choose another place."
