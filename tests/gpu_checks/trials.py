"""Checks with each possible outcome."""

import os
import signal
import subprocess
import tempfile
import time
from multiprocessing import get_context, shared_memory
from typing import Any

from siirl.gpu_checks.check import CheckSkipped, Trial


def fine(trial: Trial) -> None:
    trial.note(answer=42)


def dies(trial: Trial) -> None:
    trial.note(so_far=1)
    os.kill(os.getpid(), signal.SIGSEGV)


def raises(trial: Trial) -> None:
    raise RuntimeError("CUDA error: out of memory")


def disagrees(trial: Trial) -> None:
    trial.require(False, "1 is not 2")


def cannot(trial: Trial) -> None:
    raise CheckSkipped("one GPU, and it needs two")


def tells_what_is_left(trial: Trial) -> None:
    trial.note(left_s=trial.left_s())


def tells_whether_a_group_is_forced(trial: Trial) -> None:
    trial.note(forced=trial.force_group)


def tells_the_allocator_setting(trial: Trial) -> None:
    trial.note(setting=os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))


def sleeps(trial: Trial) -> None:
    trial.note(so_far=1)
    time.sleep(600)


def leaves_files(trial: Trial) -> None:
    """Is killed; a process of its own group and one that made shared memory go on."""
    with tempfile.TemporaryDirectory() as folder:
        apart = subprocess.Popen(["sleep", "600"], process_group=0)
        context = get_context("spawn")
        names = context.SimpleQueue()
        process = context.Process(target=_shares_memory, args=(names,))
        process.start()
        trial.note(folder=folder, memory=names.get(), pids=[apart.pid, process.pid])
        os.kill(os.getpid(), signal.SIGKILL)


def _shares_memory(names: Any) -> None:
    memory = shared_memory.SharedMemory(create=True, size=4096)
    names.put(memory.name)
    time.sleep(600)
