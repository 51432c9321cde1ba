"""The heartbeat of a run in a log file."""

import io
import threading
from collections.abc import Iterator

import pytest

from siirl.reporting.command_console import CommandConsole
from siirl.reporting.progress import HEARTBEAT_S, Heartbeat, Progress


class Closed(io.StringIO):
    """A pipe without a reader."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture
def unhandled() -> Iterator[list[BaseException | None]]:
    """Exceptions that ended threads, whose traces Python prints."""
    found: list[BaseException | None] = []
    before, threading.excepthook = threading.excepthook, lambda end: found.append(end.exc_value)
    yield found
    threading.excepthook = before


def test_a_closed_output_is_left_to_the_run_itself(unhandled: list[BaseException | None]) -> None:
    times = iter([0.0, HEARTBEAT_S, HEARTBEAT_S, HEARTBEAT_S])
    progress = Progress("training", 10, console=CommandConsole(file=Closed()), clock=times.__next__)
    Heartbeat(progress, every_s=0.0)
    for thread in threading.enumerate():
        if thread.name == "heartbeat":
            thread.join()
    assert unhandled == []
    with pytest.raises(BrokenPipeError):
        progress.print("a line of the run")
