"""Metrics of the runs that a resumed run continues: its curves begin there, and so does success
before training.

Left out: earlier videos and rollouts, which stay in the folders of their runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siirl.reporting.config_difference import read_config
from siirl.reporting.jsonl import read_rows
from siirl.reporting.metric_writers import METRICS_FILE
from siirl.reporting.run_folder import CONFIG_FILE

CHECKPOINTS = "checkpoints"


def earlier_rows(run: Path, *, before: int) -> list[dict[str, Any]]:
    """Rows of the steps below `before`, oldest first.

    Empty for a run that resumed nothing, or whose earlier run no longer exists.

    Args:
        run: Folder of the resumed run.
        before: First step of the resumed run.

    Raises:
        ValueError: A damaged line in an earlier run's metrics.jsonl.
    """
    rows: list[dict[str, Any]] = []
    seen = {run.resolve()}
    earlier = _resumed(run)
    while earlier is not None and earlier.resolve() not in seen:
        seen.add(earlier.resolve())
        found = [row for row in read_rows(earlier / METRICS_FILE) if _is_below(row, before)]
        rows = found + rows
        before = min((row["step"] for row in found), default=before)
        earlier = _resumed(earlier)
    return rows


def _is_below(row: Mapping[str, Any], step: int) -> bool:
    return type(row.get("step")) is int and 0 <= row["step"] < step


def _resumed(run: Path) -> Path | None:
    """Folder of the run that `run` resumed: `trainer.resume` names it, or a checkpoint in it."""
    trainer = read_config(run / CONFIG_FILE).get("trainer")
    resume = trainer.get("resume") if isinstance(trainer, dict) else None
    if not isinstance(resume, str):
        return None
    folder = Path(resume)
    return folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
