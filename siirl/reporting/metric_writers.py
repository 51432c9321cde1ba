"""Metric writers: metrics.jsonl always; console and dashboards by `trainer.logger`.

Only rank 0 writes. Each writer takes the reduced metrics of a step; a `RunWriter` also takes videos
and tables. To add a writer, add a class and a line in `WRITERS`.
"""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from siirl.algos.call import register_in
from siirl.errors import ConfigError, UnknownNameError
from siirl.reporting.console import ConsoleWriter
from siirl.reporting.jsonl import JsonlFile
from siirl.reporting.metrics import Reduced
from siirl.reporting.mlflow_writer import MlflowWriter
from siirl.reporting.new_recordings import NewRecordings, final_tables
from siirl.reporting.optional_writers import OPTIONAL
from siirl.reporting.quantiles import quantiles
from siirl.reporting.trackio_writer import TrackioWriter
from siirl.reporting.wandb_writer import WandbWriter
from siirl.reporting.writer_contract import MetricWriter, RunDescription, RunWriter
from siirl.terminal.warning_lines import warn

METRICS_FILE = "metrics.jsonl"
WARNINGS_FILE = "warnings.txt"
ROW_KEYS = ("step", "time", "notice")
"""Keys of a metrics.jsonl line besides the metrics; a metric of that name becomes `metric/<name>`.
"""


class JsonlWriter:
    """Writes metrics.jsonl: per step a line with `step`, `time` (Unix seconds) and the metrics.

    Distributions become quantiles.
    """

    def __init__(self, run: RunDescription) -> None:
        self._file = JsonlFile(run.folder / METRICS_FILE, first_step=run.first_step)
        self._notice = {"notice": run.notice} if run.notice else {}

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Append one line."""
        named = {
            f"metric/{name}" if name in ROW_KEYS else name: value for name, value in metrics.items()
        }
        values = {
            name: quantiles(value) if isinstance(value, list) else value
            for name, value in named.items()
        }
        self._file.append({"step": step, "time": round(time.time(), 3), **self._notice, **values})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _console(run: RunDescription) -> ConsoleWriter:
    return ConsoleWriter(
        total_steps=run.total_steps,
        limit_s=run.limit_s,
        first_step=max(1, run.first_step),
        columns=run.columns,
    )


def _tensorboard(run: RunDescription) -> RunWriter:
    # imported here, because importing TensorBoard takes a while
    from siirl.reporting.tensorboard_writer import TensorBoardWriter

    return TensorBoardWriter(run)


WRITERS: dict[str, Callable[..., MetricWriter]] = {
    "console": _console,
    "jsonl": JsonlWriter,
    "mlflow": MlflowWriter,
    "tensorboard": _tensorboard,
    "trackio": TrackioWriter,
    "wandb": WandbWriter,
}


def register_writer(
    name: str,
) -> Callable[[Callable[..., MetricWriter]], Callable[..., MetricWriter]]:
    """Decorator that registers a factory of MetricWriter for `trainer.logger`.

    The factory is called with `run`, a RunDescription.

    Raises:
        ConfigError: The name is taken by another factory, or the factory requires another argument.
    """
    return register_in(WRITERS, name, kind="metric writer", known=("run",))


def check_loggers(names: Sequence[str]) -> None:
    """Refuse unknown names in `trainer.logger`, and writers whose package is not installed.

    Raises:
        ConfigError: With the value, the place and the remedy.
    """
    for name in names:
        if name not in WRITERS:
            raise UnknownNameError.of(kind="name in trainer.logger", name=name, known=WRITERS)
        module, packages = OPTIONAL.get(name, (None, ""))
        if module is not None and importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"trainer.logger has {name}, which is not installed. Type: {sys.executable} -m pip "
                f"install {packages}; or leave it out: tensorboard shows the same curves."
            )


class MetricWriters:
    """metrics.jsonl and the writers in `names`; a context manager."""

    def __init__(self, names: Sequence[str], run: RunDescription) -> None:
        check_loggers(names)
        self._folder, self._last_step = run.folder, run.first_step
        self._recordings = NewRecordings(run.folder)
        self._writers: list[MetricWriter] = []
        with contextlib.ExitStack() as opened:  # closes earlier writers if one cannot open
            for name in sorted({"jsonl", *names}):
                self._writers.append(WRITERS[name](run=run))
                opened.callback(self._writers[-1].close)
            self._open = opened.pop_all()

    def __enter__(self) -> "MetricWriters":
        """Do nothing: all writers are open."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close all writers."""
        self.close()

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Pass `metrics` to every writer."""
        for writer in self._writers:
            writer.write(step=step, metrics=metrics)
        self._last_step = step
        self._show_recordings()

    def finish(self, evaluated: Sequence[Mapping[str, Reduced]]) -> None:
        """Pass the records since the last step and the final tables to the run writers.

        Args:
            evaluated: Metrics of each evaluation.
        """
        self._show_recordings()
        for name, table in final_tables(evaluated).items():
            for writer in self._run_writers():
                writer.show_table(step=self._last_step, name=name, table=table)

    def _show_recordings(self) -> None:
        writers = self._run_writers()
        if not writers:
            return
        videos, rollouts = self._recordings.videos(), self._recordings.rollouts()
        for writer in writers:
            if videos:
                writer.show_videos(step=self._last_step, videos=videos)
            for kind, table in rollouts.items():
                writer.show_table(step=self._last_step, name=f"rollouts/{kind}", table=table)

    def _run_writers(self) -> list[RunWriter]:
        return [writer for writer in self._writers if isinstance(writer, RunWriter)]

    def begin(self) -> None:
        """Start the clock for the time left; called when policy and simulators are loaded."""
        for console in self._consoles():
            console.progress.restart_clock()

    def activity(self, text: str) -> None:
        """Show the current activity next to the progress bar."""
        for console in self._consoles():
            console.progress.activity(text)

    def warn(self, text: str) -> None:
        """Print a warning above the progress bar or on stderr, and append it to warnings.txt."""
        with (self._folder / WARNINGS_FILE).open("a") as file:
            file.write(text + "\n")
        for console in self._consoles():
            console.progress.print(f"Warning: {text}")
        if not self._consoles():
            warn(text)

    def _consoles(self) -> list[ConsoleWriter]:
        return [writer for writer in self._writers if isinstance(writer, ConsoleWriter)]

    def close(self) -> None:
        """Close every writer; may be called twice."""
        self._open.close()
