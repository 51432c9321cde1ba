"""Functions that misbehave, for processes that can be killed; named `tests_envs_workers` where they
run.
"""

import os
import subprocess
import sys
import time
from typing import Any


def double(value: int) -> int:
    return 2 * value


async def double_later(value: int) -> int:
    return 2 * value


def print_and_double(value: int) -> int:
    print("noise on standard output", flush=True)
    os.write(1, b"and past Python\n")
    return 2 * value


def raise_lookup(value: Any) -> None:
    raise LookupError(f"no {value}")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def wait_for_a_core(seconds: float) -> None:
    """Runs at low priority on a core that another process takes for as long."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy = f"import time; print(); e = time.monotonic() + {seconds}\nwhile time.monotonic() < e: 0"
    with subprocess.Popen([sys.executable, "-uc", busy], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        os.nice(19)  # the kernel counts a wait when it ends: those of SCHED_IDLE last seconds
        while other.poll() is None:
            pass


def power_tower(_: Any) -> int:
    return 9**9**9**9  # holds the interpreter's lock until it is killed


def die(status: int) -> None:
    os._exit(status)


def take_memory(gibibytes: int) -> int:
    return len(bytearray(gibibytes << 30))


def no_json(_: Any) -> object:
    return object()


def much(characters: int) -> str:
    return "x" * characters


def process_id(_: Any) -> int:
    return os.getpid()


def process_id_later(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def start_sleeper(seconds: str) -> None:
    """Leave a process behind whose command line says who it is, and hang."""
    os.spawnlp(os.P_NOWAIT, "sleep", "sleep", seconds)
    time.sleep(600)
