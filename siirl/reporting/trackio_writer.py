"""Trackio: configuration, metrics, videos, and tables of rollouts and success.

Its files stay in `trackio/` of the run folder unless TRACKIO_DIR names another folder; `trackio
show` then compares runs there. Nothing is sent unless trackio's own TRACKIO_SPACE_ID is set.
Trackio has no tags; the configuration contains them. Left out: its CPU and GPU metrics.
"""

import contextlib
import io
import os
from collections.abc import Mapping, Sequence

from siirl.errors import ConfigError
from siirl.reporting.metrics import Reduced, finite
from siirl.reporting.writer_contract import RunDescription, RunWriter, Table, Video

FOLDER = "TRACKIO_DIR"


class TrackioWriter(RunWriter):
    """Trackio, if installed.

    Raises:
        ConfigError: It cannot start: it refuses the project's name, or a server does not answer.
    """

    def __init__(self, run: RunDescription) -> None:
        # trackio reads it at import
        os.environ.setdefault(FOLDER, str(run.folder.absolute() / "trackio"))
        import trackio  # optional: check_loggers has refused a run without it

        self._trackio, self._is_open = trackio, True
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # five lines on how to open its page
                self._run = trackio.init(
                    project=run.project,
                    name=f"{run.experiment} {run.folder.name}",
                    config={**run.config, "tags": list(run.tags), "notice": run.notice},
                    embed=False,
                    auto_log_cpu=False,
                    auto_log_gpu=False,
                )
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"trainer.logger=trackio: {error} Correct trainer.project_name, or use "
                "trainer.logger=[console,tensorboard]."
            ) from error

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Log the step; distributions without a finite value are left out."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
        lists = {name: finite(value) for name, value in metrics.items() if isinstance(value, list)}
        histograms = {
            name: self._trackio.Histogram(value) for name, value in lists.items() if value
        }
        self._run.log(numbers | histograms, step=step)

    def show_videos(self, *, step: int, videos: Sequence[Video]) -> None:
        """Log each file, under its kind and its position in the step."""
        counts: dict[str, int] = {}
        for video in videos:
            number = counts[video.kind] = counts.get(video.kind, -1) + 1
            shown = self._trackio.Video(str(video.file), caption=video.caption, format="mp4")
            self._run.log({f"videos/{video.kind}/{number}": shown}, step=step)

    def show_table(self, *, step: int, name: str, table: Table) -> None:
        """Log the whole table."""
        rows = [list(row) for row in table.rows]
        self._run.log(
            {name: self._trackio.Table(columns=list(table.columns), data=rows)}, step=step
        )

    def close(self) -> None:
        """Write the buffered rows."""
        if self._is_open:
            self._is_open = False
            with contextlib.redirect_stdout(io.StringIO()):
                self._trackio.finish()
