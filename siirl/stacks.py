"""Stack traces of processes that may hang, on request: files below `<run folder>/stacks/`.

`faulthandler` writes one file per process from a signal's C handler, so a process reports its
stacks even while its code holds the interpreter lock. A stopped process is continued for this. An
environment variable holds the folder. Left out: processes without Python.
"""

import faulthandler
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "SIIRL_STACKS"
FOLDER = "stacks"


def register(name: str) -> None:
    """Write stacks to `<folder>/<name>-<host>-<pid>.txt` on request; no effect without a folder."""
    folder = os.environ.get(VARIABLE)
    if folder is None or not os.path.isdir(folder):
        return
    stream = (Path(folder) / f"{name}-{socket.gethostname()}-{os.getpid()}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)


def write_here(folder: Path) -> None:
    """Make every registered process of this machine write its stacks."""
    here = socket.gethostname()
    for file in folder.glob(f"*-{here}-*.txt"):
        pid = int(file.stem.rpartition("-")[2])
        if pid == os.getpid():
            signal.raise_signal(signal.SIGUSR1)
        elif _handles_it(pid):
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGCONT)


@contextmanager
def folder_of(run_folder: Path) -> Iterator[Path]:
    """Set the folder of the run's processes; empty files are removed at the end."""
    folder = run_folder.absolute() / FOLDER
    folder.mkdir(exist_ok=True)
    os.environ[VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        del os.environ[VARIABLE]
        remove_empty(folder)


def remove_empty(folder: Path) -> None:
    """Remove empty stack files, and the folder if it is then empty."""
    for file in folder.glob("*.txt"):
        if file.stat().st_size == 0:
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _handles_it(pid: int) -> bool:
    """Whether the registered process is alive; the signal would end another process with its id."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = next(
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")
    )
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)
