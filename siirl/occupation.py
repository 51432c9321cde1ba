"""Current activity of this process and the time of its last progress, for the watchdog.

A process is one rank, so there is one record, `OCCUPATION`; threads may read it. Progress is any of
these: a node starts, a micro-batch is done, an environment answers. Left out: the decision that a
process hangs (siirl.execution.scheduler.watchdog).
"""

import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LIBRARY = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class Snapshot:
    """Snapshot of an occupation: plain data that processes can exchange."""

    text: str
    """Current activities, innermost first."""
    waiting: bool
    """Whether the process waits for other ranks, which does not indicate a hang."""
    changes: int
    """Incremented at every progress."""
    since: float
    """Time of the last progress, in Unix seconds by its own machine's clock."""
    words: int = 0
    """Incremented at every snapshot; a process that stops taking them is blocked."""
    place: str = field(default="", compare=False)
    """File, line and function that the working thread executes, outside of Python's library."""


class Occupation:
    """Record of the working thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._parts: tuple[tuple[str, bool], ...] = (("starts", False),)
        self._changes = 0
        self._since = clock()
        self._words = 0
        self._thread = threading.get_ident()
        self.asked: dict[object, str] = {}
        """Calls of environments without an answer, oldest first; each is removed by its caller."""
        self.waited_s = 0.0
        """Seconds of all activities so far that waited for other ranks, without those of work
        within them.
        """

    def record_progress(self) -> None:
        """Record progress."""
        self._changes += 1
        self._since = self._clock()

    @contextmanager
    def doing(self, text: str, *, waiting: bool = False) -> Iterator[None]:
        """Record the activity `text` within the enclosing activity."""
        outer, begin = self._parts, self._clock()
        own = self._thread == threading.get_ident()  # another thread's work ends no wait
        within_wait = own and outer[-1][1]
        self._thread = threading.get_ident()
        self._parts = (*outer, (text, waiting))
        self.record_progress()
        try:
            yield
        finally:
            self._parts = outer
            self.record_progress()
            if waiting != within_wait:  # work within a wait is not waiting
                seconds = self._clock() - begin
                self.waited_s += seconds if waiting else -seconds

    def snapshot(self) -> Snapshot:
        """Take a snapshot."""
        parts = self._parts
        self._words += 1
        texts = [text for text, _ in reversed(parts[1:] or parts)]
        texts = [f"waits for {call}" for call in list(self.asked.values())[:1]] + texts
        return Snapshot(
            text=", ".join(texts),
            waiting=parts[-1][1],
            changes=self._changes,
            since=self._since,
            words=self._words,
            place=_place_of(self._thread),
        )


def _place_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}, {frame.f_code.co_name}"


def _is_library(file: str) -> bool:
    return file.startswith("<") or (file.startswith(LIBRARY) and "site-packages" not in file)


OCCUPATION = Occupation()
"""The record of this process."""
