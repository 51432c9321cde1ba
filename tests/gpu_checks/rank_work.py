"""Work of ranks with each possible outcome."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from siirl.engine.training.collectives import GroupOfProcesses
from siirl.engine.training.weight_buckets import Entry, SharedMemory
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.sharded import Compared, sharded_engine, updated_alone, updated_together
from siirl.models.stored_tensors import local_part


def sums(trial: Trial, group: GroupOfProcesses, number: int) -> tuple[int, int]:
    return group.rank, int(group.sum(torch.tensor(number + group.rank)))


def dies(trial: Trial, group: GroupOfProcesses, folder: Path) -> None:
    """Rank 1 dies while rank 0 waits for it."""
    (folder / str(group.rank)).write_text(str(os.getpid()))
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def disagrees(trial: Trial, group: GroupOfProcesses) -> None:
    trial.require(group.rank == 0, "1 is not 0")
    time.sleep(600)


def raises(trial: Trial, group: GroupOfProcesses) -> None:
    raise RuntimeError("CUDA error: out of memory")


def sleeps(trial: Trial, group: GroupOfProcesses) -> None:
    if group.rank == 1:
        time.sleep(600)


def with_a_wrong_shard(trial: Trial, group: GroupOfProcesses) -> Compared | None:
    """`siirl.gpu_checks.sharded.work`, but rank 1 has other weights in its shard."""
    alone = updated_alone(trial, group)
    engine = sharded_engine(trial, group)
    if group.rank == 1:
        with torch.no_grad():
            local_part(engine.module.get_parameter("causal_lm.lm_head.weight").detach()).add_(0.01)
    return updated_together(trial, group, engine, alone)


class SpoiltBucket(SharedMemory):
    """One byte of each bucket changes on its way."""

    def __init__(self, call: Any, device: torch.device) -> None:
        super().__init__(call)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        buffer[entries[-1].start] ^= 1
        super().deliver(entries, buffer)
