"""Progress bars of a warm start; a log file gets one line per minute instead."""

import threading
from typing import Any, Self

from rich.progress import Progress, Task

from siirl.reporting.progress import HEARTBEAT_S, duration


class WorkProgress(Progress):
    """rich's bars on a terminal; elsewhere one line for each unfinished task, every `every_s`.

    Args:
        every_s: Seconds between two lines.
        options: Options of rich's Progress.
    """

    def __init__(self, *, every_s: float = HEARTBEAT_S, **options: Any) -> None:
        super().__init__(**options)
        self.disable = not self.console.is_terminal
        self._every_s = every_s
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Start the bars, or the lines."""
        super().__enter__()
        if self.disable:
            threading.Thread(target=self._write_lines, name="progress", daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop them."""
        self._over.set()
        super().__exit__(*error)

    def _write_lines(self) -> None:
        while not self._over.wait(self._every_s):
            for task in self.tasks:
                if not task.finished:
                    self.console.print(_line(task), soft_wrap=True, highlight=False, markup=False)


def _line(task: Task) -> str:
    total = "" if task.total is None else f"/{task.total:g}"
    return f"{task.description}: {task.completed:g}{total}, {duration(task.elapsed)}"
