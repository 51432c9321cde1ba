"""Disk space of checks that write models."""

import shutil
from pathlib import Path

from siirl.gpu_checks.check import CheckSkipped


def require_disk(folder: Path, size: float) -> None:
    """Skip the check if a folder has less than `size` bytes."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise CheckSkipped(
            f"it writes {size / 1e9:.0f} GB, and {folder} has {free / 1e9:.0f} GB: set TMPDIR to a "
            "folder with more"
        )
