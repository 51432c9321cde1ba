"""Stack traces of processes that may be stuck: one file a process below `<run folder>/stacks/`,
written when one is asked for.

`faulthandler` writes them from a signal's C handler, so a process shows its stacks also while code
in it holds the interpreter's lock. A stopped one is continued for it. A process finds the folder in
an environment variable. Left out: processes without Python.
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
    """Have this process write its stacks to `<folder>/<name>-<host>-<pid>.txt` when it is asked;
    nothing where there is no folder.
    """
    folder = os.environ.get(VARIABLE)
    if folder is None or not os.path.isdir(folder):
        return
    stream = (Path(folder) / f"{name}-{socket.gethostname()}-{os.getpid()}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)


def write_here(folder: Path) -> None:
    """Have every registered process of this machine write its stacks."""
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
    """Where the processes of a run write; what nobody has written is removed in the end."""
    folder = run_folder.absolute() / FOLDER
    folder.mkdir(exist_ok=True)
    os.environ[VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        del os.environ[VARIABLE]
        remove_empty(folder)


def remove_empty(folder: Path) -> None:
    """Remove empty files of stacks, and the folder where it holds no others."""
    for file in folder.glob("*.txt"):
        if file.stat().st_size == 0:
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _handles_it(pid: int) -> bool:
    """Whether a process is still there, and the one that registered: the signal would end another."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = next(
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")
    )
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)
