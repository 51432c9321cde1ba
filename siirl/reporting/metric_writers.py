"""Metric writers: metrics.jsonl always; console, TensorBoard, Weights & Biases by `trainer.logger`.

Only rank 0 writes. Each writer takes the reduced metrics of a step. To add a writer, add a class
and a line in `WRITERS`.
"""

import contextlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from siirl.algos.call import register_in
from siirl.errors import ConfigError, UnknownNameError
from siirl.params.printable import printable
from siirl.reporting.console import EMBODIED_COLUMNS, Column, ConsoleWriter
from siirl.reporting.jsonl import JsonlFile
from siirl.reporting.metrics import Reduced

METRICS_FILE = "metrics.jsonl"
WARNINGS_FILE = "warnings.txt"
ROW_KEYS = ("step", "time", "notice")
"""Keys of a metrics.jsonl line besides the metrics; a metric of that name becomes `metric/<name>`.
"""
TENSORBOARD_FOLDER = "tensorboard"

LARGEST_BIN = 5e19
"""Approximate end of TensorBoard's bins; it refuses a histogram outside them."""


@dataclass(frozen=True)
class RunDescription:
    """Facts of a run for its writers: folder, names, first step and limits."""

    folder: Path
    total_steps: int | None
    limit_s: float | None = None
    first_step: int = 0
    """0 for a new run (evaluation before training); for a resumed run, the step after its
    checkpoint.
    """
    project: str = "siirl"
    experiment: str = "run"
    columns: Sequence[Column] = EMBODIED_COLUMNS
    """Columns of the console's table."""
    notice: str = ""
    """Notice to readers (`EnvSpec.notice`), in every line of metrics.jsonl and in TensorBoard's
    texts.
    """


class MetricWriter(Protocol):
    """Writes the metrics of each step."""

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Write the metrics of `step`."""

    def close(self) -> None:
        """Finish; may be called twice."""


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


class TensorBoardWriter:
    """TensorBoard events: scalars, and histograms of distributions."""

    def __init__(self, run: RunDescription) -> None:
        from torch.utils.tensorboard import (
            SummaryWriter,  # here, because it takes a second to import
        )

        # A resumed run purges the events of steps that it repeats.
        self._events = SummaryWriter(
            str(run.folder / TENSORBOARD_FOLDER), purge_step=run.first_step or None
        )
        if run.notice:
            self._events.add_text("notice", run.notice)

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Add the step's events and flush them."""
        for name, value in metrics.items():
            if not isinstance(value, list):
                self._events.add_scalar(name, value, step)
            elif finite := _finite(value):
                self._events.add_histogram(name, np.clip(finite, -LARGEST_BIN, LARGEST_BIN), step)
        self._events.flush()

    def close(self) -> None:
        """Close the event file."""
        self._events.close()


class WandbWriter:
    """Weights & Biases, if installed; its files stay in the run folder.

    WANDB_MODE=offline needs no account.

    Raises:
        ConfigError: It cannot start: no key, or no answer from the server.
    """

    def __init__(self, run: RunDescription) -> None:
        import wandb  # optional: check_loggers has refused a run without it

        self._histogram = wandb.Histogram
        try:
            # No console capture: the progress bar is no log.
            self._run = wandb.init(
                project=run.project,
                name=run.experiment,
                dir=str(run.folder),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"trainer.logger=wandb: {error} Type: wandb login; or set WANDB_MODE=offline to "
                "keep the files in the run folder, "
                "or take trainer.logger=[console,tensorboard]."
            ) from error

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Send the step; distributions without a finite value are left out."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
        lists = {name: _finite(value) for name, value in metrics.items() if isinstance(value, list)}
        self._run.log(
            numbers | {name: self._histogram(value) for name, value in lists.items() if value},
            step=step,
        )

    def close(self) -> None:
        """Finish the upload."""
        self._run.finish()


def _console(run: RunDescription) -> ConsoleWriter:
    return ConsoleWriter(
        total_steps=run.total_steps,
        limit_s=run.limit_s,
        first_step=max(1, run.first_step),
        columns=run.columns,
    )


WRITERS: dict[str, Callable[..., MetricWriter]] = {
    "console": _console,
    "jsonl": JsonlWriter,
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
}


def register_writer(
    name: str,
) -> Callable[[Callable[..., MetricWriter]], Callable[..., MetricWriter]]:
    """Decorator that registers a factory of MetricWriter for `trainer.logger`.

    The factory is called with `run`, a RunDescription.

    Raises:
        ConfigError: The name is taken by another, or it requires another argument.
    """
    return register_in(WRITERS, name, kind="metric writer", known=("run",))


def check_loggers(names: Sequence[str]) -> None:
    """Refuse unknown names in `trainer.logger`, and wandb if it is not installed.

    Raises:
        ConfigError: With the value, the place and the remedy.
    """
    for name in names:
        if name not in WRITERS:
            raise UnknownNameError.of(kind="name in trainer.logger", name=name, known=WRITERS)
    if "wandb" in names and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"trainer.logger has wandb, which is not installed. Type: {sys.executable} -m pip "
            "install wandb; or leave it out: "
            "tensorboard shows the same curves."
        )


class MetricWriters:
    """metrics.jsonl and the writers in `names`; a context manager."""

    def __init__(self, names: Sequence[str], run: RunDescription) -> None:
        check_loggers(names)
        self._folder = run.folder
        self._writers: list[MetricWriter] = []
        with contextlib.ExitStack() as opened:  # closes earlier writers if one cannot open
            for name in sorted({"jsonl", *names}):
                self._writers.append(WRITERS[name](run=run))
                opened.callback(self._writers[-1].close)
            self._open = opened.pop_all()

    def __enter__(self) -> "MetricWriters":
        """Nothing more to open."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close all writers."""
        self.close()

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Pass `metrics` to every writer."""
        for writer in self._writers:
            writer.write(step=step, metrics=metrics)

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
            print(printable(f"Warning: {text}"), file=sys.stderr)

    def _consoles(self) -> list[ConsoleWriter]:
        return [writer for writer in self._writers if isinstance(writer, ConsoleWriter)]

    def close(self) -> None:
        """Close every writer; may be called twice."""
        self._open.close()


def _finite(values: Sequence[float]) -> list[float]:
    """The finite values."""
    return [value for value in values if math.isfinite(value)]


def quantiles(values: Sequence[float]) -> dict[str, float | int]:
    """Count, mean, smallest, quartiles and largest of `values`."""
    if not values:
        return {"count": 0}
    with np.errstate(invalid="ignore", over="ignore"):  # between two infinities lies NaN
        array = np.asarray(values, dtype=np.float64)
        points = [array.mean(), *np.quantile(array, [0.0, 0.25, 0.5, 0.75, 1.0])]
    names = ("mean", "min", "p25", "p50", "p75", "max")
    return {
        "count": len(values),
        **{name: float(point) for name, point in zip(names, points, strict=True)},
    }
