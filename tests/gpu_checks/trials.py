"""Checks with each possible outcome."""

import os
import signal
import time

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
