"""Runs a function on several ranks that are real processes, joined by gloo through a file, and
returns what each of them returned.
"""

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from siirl.engine.training.collectives import GroupOfProcesses, join, leave

RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(
    ["siirl.dag_worker.dagworker"]
)  # forked from a process that has imported torch, which takes seconds


def run_on_ranks(function: Callable[..., Any], *arguments: Any, ranks: int = 2) -> list[Any]:
    """`function(collectives, *arguments)` on every rank, at the same time; results in rank order.
    Raises what a rank raised.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = work_on_ranks(_work, (ranks, folder, function, arguments), ranks=ranks)
        results = [
            pickle.loads(_result(folder, rank).read_bytes())
            if _result(folder, rank).exists()
            else None
            for rank in range(ranks)
        ]
    assert all(process.exitcode == 0 for process in processes), (
        f"exit codes {[process.exitcode for process in processes]}"
    )
    return results


def work_on_ranks(
    work: Callable[..., None], arguments: tuple[Any, ...], *, ranks: int
) -> list[Any]:
    """`work(rank, *arguments)` in a process for each rank, which ends with this one; returns the
    processes when all have ended.
    """
    processes = [
        RANKS.Process(target=work, args=(rank, *arguments), daemon=True) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return processes


def _result(folder: str, rank: int) -> Path:
    return Path(folder) / f"result_{rank}"


def _work(
    rank: int, ranks: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    collectives = join(rank=rank, world_size=ranks, init_method=f"file://{folder}/rendezvous")
    assert isinstance(collectives, GroupOfProcesses)
    _result(folder, rank).write_bytes(pickle.dumps(function(collectives, *arguments)))
    leave(collectives)
