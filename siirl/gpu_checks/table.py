"""Rows of checks as text for a terminal, and as JSON with the machine that they ran on."""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from siirl import __version__
from siirl.gpu_checks.check import Row


def describe_row(row: Row) -> str:
    """Status, name, seconds, reason and figures, in one line."""
    figures = ", ".join(f"{name} {_shown(value)}" for name, value in row.figures.items())
    detail = ": ".join(part for part in (row.reason, figures) if part)
    return f"{row.status:<8} {row.name:<18} {row.seconds:>6.1f} s  {detail or row.what}"


def summary(rows: Sequence[Row]) -> str:
    """Numbers of checks that passed, failed and were skipped."""
    counts = {status: sum(row.status == status for row in rows) for status in STATUSES}
    return ", ".join(f"{count} {status}" for status, count in counts.items())


STATUSES = ("OK", "failed", "skipped")


def write_json(file: Path, rows: Sequence[Row], *, minutes: float) -> None:
    """Write command, machine, versions and rows."""
    found = {
        "command": f"python -m siirl.gpu_check --minutes {minutes:g}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "checks": [asdict(row) for row in rows],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Devices and versions; no host name."""
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "devices": devices or [platform.processor() or platform.machine()],
        "siirl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
    }


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_shown(each)}" for name, each in value.items()) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
