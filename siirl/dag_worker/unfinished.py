"""The folder that a checkpoint is written into before it gets its name, and its removal where its
writer has died.

A writer holds a lock on a file beside it, which the kernel lets go of when the process ends,
however it ends. So a start removes what a killed writer has left, and nothing of a run that lives.
A file system without locks keeps what was left.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

UNFINISHED = ".unfinished-"
LOCK = f"{UNFINISHED}lock"
POINTER = f"{UNFINISHED}latest"
"""The pointer to the newest checkpoint before it takes the place of the one before."""


@contextmanager
def unfinished_folder(folder: Path) -> Iterator[Path]:
    """A new folder in `folder`, to be renamed within the context; what still has this name at the
    end is removed.

    Raises:
        OSError: `folder` cannot be written to.
    """
    lock_file = folder / LOCK
    with lock_file.open("ab") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
            try:
                yield unfinished
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        finally:
            for rest in (folder / POINTER, lock_file):
                with suppress(OSError):  # the disk became read-only
                    rest.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers have left in a folder of checkpoints; nothing where one is
    writing, or where nothing may be removed.
    """
    with _nobody_writing(folder) as nobody:
        for rest in folder.glob(f"{UNFINISHED}*") if nobody else ():
            if rest.is_dir():
                shutil.rmtree(rest, ignore_errors=True)
                continue
            with suppress(OSError):  # of another user, or on a disk that can only be read
                rest.unlink()


@contextmanager
def _nobody_writing(folder: Path) -> Iterator[bool]:
    """Whether no writer lives; while this lasts, none begins."""
    lock_file = folder / LOCK
    if not lock_file.exists():
        yield True
        return
    try:
        lock = lock_file.open("ab")
    except OSError:  # nothing here may be changed
        yield False
        return
    with lock:
        yield _locks(lock)


def _locks(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or there are no locks here
        return False
    return True
