"""The folder of one run, `<output_dir>/<experiment_name>/<time>/`: made when everything else has been checked, and tried out at once."""

import errno
import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from siirl.errors import ConfigError
from siirl.params.parser import to_yaml
from siirl.params.training_args import SiiRLArguments

CONFIG_FILE = "config.yaml"
PROBE_BYTES = 1 << 20


def free_bytes(folder: Path) -> int:
    """Free space on the disk where `folder` is or would be."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def make_run_folder(
    config: SiiRLArguments,
    *,
    needed_bytes: int,
    now: Callable[[], datetime] = datetime.now,
    measure_free: Callable[[Path], int] = free_bytes,
) -> Path:
    """Make the folder and write the resolved configuration into it; a second run of the same second gets a name of its own.

    Args:
        config: The run's configuration.
        needed_bytes: What the run will write, as the plan estimates.
        now: The time that names the folder.
        measure_free: Free space where a folder is or would be.

    Raises:
        ConfigError: The place cannot be written, or is too full. Nothing is left behind.
    """
    parent = Path(config.trainer.output_dir).expanduser() / config.trainer.experiment_name
    place = f"trainer.output_dir={config.trainer.output_dir}"
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        free = measure_free(parent.absolute())
        if free < needed_bytes:
            raise ConfigError(
                f"{place} has {free / 1e6:.0f} MB free, and the run needs about {needed_bytes / 1e6:.0f} MB: "
                "free some, choose another folder, or save less often (trainer.save_freq)."
            )
        folder = _make_unique(parent, now().strftime("%Y-%m-%d_%H-%M-%S"))
    except OSError as error:
        _remove_empty(made)
        raise ConfigError(f"{place} cannot be written: {error.strerror} ({error.filename}). Choose another folder.") from error
    try:
        _write_probe(folder / ".probe")
        (folder / CONFIG_FILE).write_text(to_yaml(config))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(made)
        remedy = "Free some space" if error.errno == errno.ENOSPC else "Choose another folder"
        raise ConfigError(f"{place} cannot be written: {error.strerror} ({error.filename}). {remedy}.") from error
    return folder


def discard_if_unused(folder: Path) -> None:
    """Remove a run folder in which nothing but the configuration was ever written."""
    if [entry.name for entry in folder.iterdir()] == [CONFIG_FILE]:
        shutil.rmtree(folder)
        _remove_empty([folder.parent, folder.parent.parent])


def _make_unique(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _write_probe(file: Path) -> None:
    """Write, force to disk and remove: quotas and full disks show up only then."""
    with file.open("wb") as stream:
        stream.write(b"\0" * PROBE_BYTES)
        stream.flush()
        os.fsync(stream.fileno())
    file.unlink()


def _remove_empty(folders: list[Path]) -> None:
    """Take back the folders that were made, from the innermost."""
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
