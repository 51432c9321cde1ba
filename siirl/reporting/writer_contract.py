"""Interface of metric writers: `RunDescription`, `MetricWriter`, `RunWriter`, `Table`.

A `MetricWriter` takes numbers. A `RunWriter` also takes the other records of a run: videos, text
rollouts and the final table of success. Left out: the writers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from siirl.reporting.console import EMBODIED_COLUMNS, TableColumn
from siirl.reporting.metrics import Reduced

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class RunDescription:
    """Facts of a run for its writers: folder, names, configuration, first step and limits."""

    folder: Path
    total_steps: int | None
    limit_s: float | None = None
    first_step: int = 0
    """0 for a new run (evaluation before training); for a resumed run, the step after its
    checkpoint.
    """
    project: str = "siirl"
    experiment: str = "run"
    columns: Sequence[TableColumn] = EMBODIED_COLUMNS
    """Columns of the console's table."""
    notice: str = ""
    """Notice to readers (`EnvSpec.notice`), in every line of metrics.jsonl and in TensorBoard's
    texts.
    """
    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved configuration as plain values, by group."""
    tags: Sequence[str] = ()
    """`trainer.tags`."""


@dataclass(frozen=True)
class Table:
    """Rows of plain values below named columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Video:
    """A recorded episode."""

    file: Path
    """An mp4 file."""
    kind: str
    """`train` or `val`."""
    caption: str
    frames: int


class MetricWriter(Protocol):
    """Writes the metrics of each step."""

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Write the metrics of `step`."""

    def close(self) -> None:
        """Finish; may be called twice."""


class RunWriter(MetricWriter):
    """A metric writer that also shows recordings of the run; subclass it to receive them.

    An episode may arrive after the metrics of its own step, because videos are encoded in parallel
    with training. It then comes with a later `step`; captions and rows name the episode's own step.
    """

    def show_videos(self, *, step: int, videos: Sequence[Video]) -> None:
        """Show recorded episodes; called with at least one."""
        raise NotImplementedError

    def show_table(self, *, step: int, name: str, table: Table) -> None:
        """Show a table: `rollouts/train`, `rollouts/val`, or `final/success` and `final/reward` at
        the end.
        """
        raise NotImplementedError
