"""Temporary folder of a checkpoint during writing, and its removal after a crash.

A writer holds a lock on a file next to the folder. The kernel releases the lock when the process
ends, so a starting run removes folders of killed writers, but none of a live run. On a file system
without locks the folders remain.
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
"""Temporary name of the pointer before it replaces the previous one."""


@contextmanager
def unfinished_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder in `folder`; delete it afterwards unless the caller renamed it.

    Raises:
        OSError: `folder` is not writable.
    """
    lock_file = folder / LOCK
    with lock_file.open("ab") as lock:
        with suppress(OSError):  # file system without locks
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
    """Remove folders of killed writers; none while a writer lives or without permission."""
    with _without_writers(folder) as is_idle:
        for rest in folder.glob(f"{UNFINISHED}*") if is_idle else ():
            if rest.is_dir():
                shutil.rmtree(rest, ignore_errors=True)
                continue
            with suppress(OSError):  # another user's file, or a read-only disk
                rest.unlink()


@contextmanager
def _without_writers(folder: Path) -> Iterator[bool]:
    """Yield whether no writer is alive, and keep new writers out meanwhile."""
    lock_file = folder / LOCK
    if not lock_file.exists():
        yield True
        return
    try:
        lock = lock_file.open("ab")
    except OSError:  # not writable here
        yield False
        return
    with lock:
        yield _locks(lock)


def _locks(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or locks are not supported
        return False
    return True
