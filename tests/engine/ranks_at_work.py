"""Runs a function on several ranks: real processes, joined by gloo through a file."""

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from siirl.engine.training.collectives import GroupOfProcesses, join, leave

RANKS = multiprocessing.get_context("forkserver")
# forked from a process that has imported torch: the import takes seconds
RANKS.set_forkserver_preload(["siirl.dag_worker.dagworker"])


def run_on_ranks(function: Callable[..., Any], *arguments: Any, ranks: int = 2) -> list[Any]:
    """Run `function(collectives, *arguments)` on all ranks; results are in rank order.

    Raises the error of a rank.
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
    """Run `work(rank, *arguments)` in one process per rank; return the ended processes.

    They end with this process.
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
    collectives = join(
        rank=rank,
        world_size=ranks,
        init_method=f"file://{folder}/rendezvous",
        force_group=True,
    )
    assert isinstance(collectives, GroupOfProcesses)
    _result(folder, rank).write_bytes(pickle.dumps(function(collectives, *arguments)))
    leave(collectives)
