"""Rewrites report.html during a run, and once more when it ends.

A page takes longer to make the longer the run is. It is therefore made after a step only if that
keeps all pages together below 2 % of the run's time. Left out: what the page contains
(siirl.reporting.report_page).
"""

import time
from collections.abc import Callable
from pathlib import Path

from siirl.reporting.metric_writers import METRICS_FILE
from siirl.reporting.report_page import REPORT_FILE, write_report

RELOAD_S = 10
"""Seconds between two reloads of the page: about a step of the small jobs."""
_PAUSE = 50
"""A page that took t seconds is followed by a pause of 50 t, hence 2 % of the time."""


class LiveReport:
    """The report of one running job.

    Args:
        folder: The run folder.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._due = clock()

    @property
    def file(self) -> Path:
        """Path of the page."""
        return self.folder / REPORT_FILE

    def after_step(self) -> None:
        """Rewrite the page, which then reloads itself, if its pause is over."""
        begin = self._clock()
        if begin < self._due:
            return
        write_report(self.folder, live_s=RELOAD_S)
        end = self._clock()
        self._due = end + _PAUSE * (end - begin)

    def finish(self) -> None:
        """Write the page of a run that has ended, if it recorded a step."""
        metrics = self.folder / METRICS_FILE
        if metrics.is_file() and metrics.stat().st_size:
            write_report(self.folder)
