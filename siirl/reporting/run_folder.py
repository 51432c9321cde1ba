"""Creates and tests the run folder `<output_dir>/<experiment_name>/<time>/` after all checks."""

import errno
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from siirl import interrupts, stacks
from siirl.errors import REFUSALS, ConfigError, MissingAssetError, RunFailed
from siirl.params.parser import to_yaml
from siirl.params.training_args import SiiRLArguments
from siirl.params.user_settings import UserSettings
from siirl.reporting.origin import ORIGIN_FILE, write_origin
from siirl.terminal.resume_line import NEWEST_CHECKPOINT, describe_resume

CONFIG_FILE = "config.yaml"
PLAN_FILE = "plan.txt"
GRAPH_FILE = "graph.json"
PROBE_FILE = ".probe"
PROBE_BYTES = 1 << 20
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


def require_folder(folder: Path) -> None:
    """Refuse a missing run folder.

    Raises:
        MissingAssetError: It does not exist, or is a file.
    """
    if not folder.is_dir():
        raise MissingAssetError(
            f"{folder} does not exist or is not a folder: name the folder of a run, "
            "outputs/<name>/<time>."
        )


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder."""
    return shutil.disk_usage(folder).free


@contextmanager
def run_folder(
    config: SiiRLArguments,
    *,
    needed_bytes: int,
    now: Callable[[], datetime] = datetime.now,
    measure_free: Callable[[Path], int] = free_bytes,
    describe: Callable[[Path], str] | None = None,
    given: UserSettings | None = None,
) -> Iterator[Path]:
    """Make the run folder with config.yaml and origin.json; remove it if the run ends without
    results.

    A second run within the same second gets its own folder. The exception of a run that ends early
    gets a note on how to resume.

    Args:
        config: The run's configuration.
        needed_bytes: Disk space of the run, estimated by the plan.
        now: The time that names the folder.
        measure_free: Free space on the disk of a folder.
        describe: Note about the folder of a run that ends early; None: `describe_resume`.
        given: The user's settings; None: unknown, and not recorded.

    Raises:
        ConfigError: The folder is not writable, or its disk too full.
        RunFailed: An error after the start, or a full disk.
    """
    parent = Path(config.trainer.output_dir).expanduser() / config.trainer.experiment_name
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    place = f"trainer.output_dir={config.trainer.output_dir}"
    say = describe or functools.partial(describe_resume, before=config.trainer.resume)
    folder: Path | None = None

    def leave() -> str:
        return "" if folder is None or not folder.is_dir() else _leave(folder, made, say)

    with interrupts.final_message(leave):
        try:
            folder = _make_unique(parent, now().strftime("%Y-%m-%d_%H-%M-%S"))
            _write_probe(folder / PROBE_FILE)
            (folder / CONFIG_FILE).write_text(to_yaml(config))
            write_origin(folder, given=given or UserSettings())
            _require_space(measure_free(folder), needed_bytes=needed_bytes, place=place)
        except OSError as error:
            _take_back(folder, made)
            remedy = "Free some space" if error.errno == errno.ENOSPC else "Choose another folder"
            raise ConfigError(
                f"{place} cannot be written: {error.strerror} ({error.filename or parent}). "
                f"{remedy}."
            ) from error
        except ConfigError:
            _take_back(folder, made)
            raise
        try:
            yield folder
        except BaseException as error:
            note = leave()
            if isinstance(error, REFUSALS) and config.trainer.resume and _is_unbegun(folder):
                note = f"The run folder is {folder}"  # the same command would be refused again
            if not folder.exists():
                error.add_note(note)
                raise
            failure = _as_failure(error, place)
            failure.add_note(note)
            if failure is error:
                raise
            raise failure from error


def _require_space(free: int, *, needed_bytes: int, place: str) -> None:
    if free < needed_bytes:
        raise ConfigError(
            f"{place} has {free / 1e6:.0f} MB free, but the run needs about "
            f"{needed_bytes / 1e6:.0f} MB: free some, choose another folder, save less often "
            "(trainer.save_freq), or record fewer videos (trainer.record_episodes, "
            "trainer.record_val_episodes)."
        )


def _leave(folder: Path, made: list[Path], describe: Callable[[Path], str]) -> str:
    """Remove a folder without results; return the note about the folder."""
    stacks.remove_empty(folder / stacks.FOLDER)
    if {entry.name for entry in folder.iterdir()} <= {
        *(CONFIG_FILE, ORIGIN_FILE, PLAN_FILE, GRAPH_FILE, PROBE_FILE)
    }:
        _take_back(folder, made)
        return f"The run folder {folder} had no results and was removed"
    return describe(folder)


def _is_unbegun(folder: Path) -> bool:
    """Whether a run that stays on disk has neither a step nor a checkpoint."""
    metrics = folder / "metrics.jsonl"
    has_rows = metrics.is_file() and metrics.stat().st_size > 0
    return folder.exists() and not has_rows and not (folder / NEWEST_CHECKPOINT).is_file()


def _as_failure(error: BaseException, place: str) -> BaseException:
    """Turn a refusal after the start, and an unwritable disk, into RunFailed."""
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return RunFailed(
            f"{place} can no longer be written: {error.strerror} "
            f"({error.filename or 'while writing'}). Free some space."
        )
    if not isinstance(error, REFUSALS):
        return error
    failure = RunFailed(str(error))
    for note in getattr(error, "__notes__", ()):
        failure.add_note(note)
    return failure


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
    """Write, fsync and remove a file: quotas and full disks fail only then."""
    with file.open("wb") as stream:
        stream.write(b"\0" * PROBE_BYTES)
        stream.flush()
        os.fsync(stream.fileno())
    file.unlink()


def _take_back(folder: Path | None, made: list[Path]) -> None:
    """Remove the run folder and the empty parents made for it, innermost first."""
    if folder is not None:
        shutil.rmtree(folder)
    for above in made:
        if above.is_dir() and not any(above.iterdir()):
            above.rmdir()
