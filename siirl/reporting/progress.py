"""Progress bar with remaining time; without a terminal, an occasional line instead.

`clock` is a parameter so that tests need not wait.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from siirl.reporting.command_console import CommandConsole
from siirl.terminal.printable import printable
from siirl.terminal.terminal_lines import folded

_BAR_WIDTH = 12  # so that the activity fits beside it in 80 columns
_RECENT_STEPS = 10
HEARTBEAT_S = 60.0
_LINE_EVERY_S = 10.0  # rare enough for a log file, frequent enough to see progress


class Progress:
    """Counts up to `total`; a context manager, so that the terminal is restored after errors.

    Args:
        description: Name of the activity, for example "training".
        total: Final count; None if only `limit_s` ends it.
        done: Initial count; above 0 in a resumed run.
        limit_s: Time limit in seconds.
        console: Output; by default stdout.
        lines: Whether to write lines without a terminal. False for a caller that writes its own.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        description: str,
        total: int | None,
        *,
        done: int = 0,
        limit_s: float | None = None,
        console: Console | None = None,
        lines: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or CommandConsole()
        self.description = description
        self.total = total
        self.done = done
        self.limit_s = limit_s
        self._clock, self._first = clock, done
        self._started = self._advanced = clock()
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._warm = False
        self._activity = ""
        self.printed_at = self._started
        self._lines, self._line_at = lines, self._started + _LINE_EVERY_S
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        """Show the bar on a terminal."""
        if self.console.is_terminal:
            activity = TextColumn(
                "{task.fields[activity]}",
                style="dim",
                table_column=Column(no_wrap=True, ratio=1),  # takes the remaining width
            )
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=_BAR_WIDTH),
                _Count(self),
                TimeElapsedColumn(),
                _TimeLeft(self),
                activity,
                console=self.console,
                expand=True,
            )
            self._task = self._bar.add_task(
                self.description, total=self.total, completed=self.done, activity=""
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bar in its last state."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, steps: int = 1) -> None:
        """Count `steps` more."""
        now = self._clock()
        if self._seconds and not self._warm:
            self._seconds.clear()  # the first step includes warm-up; used only until the second
            self._warm = True
        self._seconds.append((now - self._advanced) / max(steps, 1))
        self.done, self._advanced = self.done + steps, now
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)
        elif self._lines and (self._advanced >= self._line_at or self.done == self.total):
            self._line_at = self._advanced + _LINE_EVERY_S
            self.print(f"{self.description}: {self.count()}, {self.time_left()}")

    def restart_clock(self) -> None:
        """Restart the clock, because the time so far (loading, an evaluation before the first step)
        belongs to no step.
        """
        self._started = self._advanced = self._clock()

    def activity(self, text: str) -> None:
        """Show the current activity next to the bar, or in the heartbeat without a terminal."""
        self._activity = printable(text, keep="")
        if self._bar is not None:
            self._bar.update(self._task, activity=escape(printable(text, keep="")))

    def print(self, line: str) -> None:
        """Write a line above the bar, without colours; a terminal gets it folded at its width."""
        self.printed_at = self._clock()
        text = printable(line)
        if self.console.is_terminal:
            text = folded(text, columns=self.console.width)
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def beat(self) -> None:
        """Write a line if none was written for `HEARTBEAT_S` and there is no bar."""
        silent = self._clock() - self.printed_at
        if self._bar is None and silent >= HEARTBEAT_S:
            doing = f"{self._activity}, " if self._activity else ""
            self.print(f"{self.count().rjust(10)}  {doing}{duration(silent)} since the last line")

    def count(self) -> str:
        """For example `3/40`."""
        return str(self.done) if self.total is None else f"{self.done}/{self.total}"

    def time_left(self) -> str:
        """For example `2:05 left`; empty before the first step, whose duration is unknown."""
        return f"{duration(self.seconds_left())} left" if self._seconds else ""

    def seconds_left(self) -> float | None:
        """Seconds until the total at the speed of the last ten steps, or until the limit if that
        comes first; None if neither is known.
        """
        now = self._clock()
        ends = [] if self.limit_s is None else [self._started + self.limit_s]
        if self.total is not None and self._seconds:
            step = sum(self._seconds) / len(self._seconds)
            ends.append(self._advanced + step * (self.total - self.done))
        return max(0.0, min(ends) - now) if ends else None


class Heartbeat:
    """Calls `Progress.beat` in a thread, so that a log file shows that a long step is running."""

    def __init__(self, progress: Progress, *, every_s: float = HEARTBEAT_S / 6) -> None:
        self._progress, self._every_s = progress, every_s
        self._closed = threading.Event()
        if not progress.console.is_terminal:
            threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        with suppress(BrokenPipeError):  # the main thread's next line ends the run
            while not self._closed.wait(self._every_s):
                self._progress.beat()

    def close(self) -> None:
        """Stop; may be called twice."""
        self._closed.set()


class _Count(ProgressColumn):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(self._progress.count())


class _TimeLeft(_Count):
    def render(self, task: Task) -> Text:
        return Text(self._progress.time_left())


def duration(seconds: float | None) -> str:
    """For example `0:42`, `12:05` or `1:02:03`; `?` for None."""
    if seconds is None:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
