"""Lets these tests use `real_run` beside them, starts Ray clusters, and ends what a failing test
has left running.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from real_run import RealRun, descendants_of, living_processes, start_ray


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., RealRun]]:
    """Starts `python -m siirl.train` with a small job and `words`; processes that are left at the
    end of the test are killed.
    """
    runs: list[RealRun] = []

    def start(*words: str, **arguments: object) -> RealRun:
        runs.append(RealRun(*words, folder=tmp_path, number=len(runs), **arguments))  # type: ignore[arg-type]
        return runs[-1]

    yield start
    for run in runs:
        run.kill_all()


@pytest.fixture
def ray_home() -> Iterator[Path]:
    """Ray's folder for a test; short, because a socket's path has at most 107 letters."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(ray_home: Path) -> Iterator[str]:
    """Address of a foreign cluster, started by `ray start --head` and ended with the test;
    other Rays of this machine stay.

    It believes that it has two GPUs, which torch's build for CPUs does not use.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = [
        "start",
        "--head",
        f"--port={port}",
        "--num-cpus=2",
        "--num-gpus=2",
        "--include-dashboard=false",
        "--disable-usage-stats",
    ]
    # 15 by default: ranks would wait for every other program
    environment = os.environ | {"RAY_TMPDIR": str(ray_home), "RAY_worker_niceness": "0"}
    start_ray(words, environment)
    yield f"127.0.0.1:{port}"
    servers = {pid for pid, title in living_processes() if str(ray_home) in title}
    for pid in servers | descendants_of(servers):
        # workers and agents do not name the folder; the raylet is their parent
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
