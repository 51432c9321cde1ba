"""Runs a function on several ranks of this machine: a process for each, joined by NCCL on GPUs and
by gloo on a CPU.

    start the processes; they meet at a file in a private folder, join, and call the function
    wait until all have ended, until one has failed, or until the check's time is over
    kill all that still run
    raise the reason of the failure, or return the results in the order of the ranks
"""

import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import connection, forkserver, get_context
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from siirl.engine.training.collectives import TIMEOUT, GroupOfProcesses, join, leave
from siirl.engine.training.port_guard import guard_new_ports
from siirl.engine.training.rank_device import prepare_device
from siirl.files.socket_paths import socket_folder
from siirl.gpu_checks.check import CheckFailed, CheckSkipped, Trial, late
from siirl.gpu_checks.check_runner import death
from siirl.gpu_checks.process_group import lacks_group

RANKS_ON_A_CPU = 2
KILLING_S = 2.0  # before the check's own process is killed
CAUSE_S = 1.0  # the death of a rank breaks the others' calls; their errors may arrive first

PROCESSES = get_context("forkserver")
# forked from a process that has imported torch, but has not used CUDA
PROCESSES.set_forkserver_preload(["siirl.gpu_checks.sharded"])


def ranks_here(trial: Trial) -> int:
    """Number of ranks of a check over all GPUs: one for each; two on a CPU.

    Raises:
        CheckSkipped: There is one GPU and no forced group, or no group can be made.
    """
    lacking = lacks_group(trial)
    if lacking is not None:
        raise CheckSkipped(lacking)
    ranks = gpus() if trial.on_gpu else RANKS_ON_A_CPU
    if ranks == 1 and not trial.force_group:
        raise CheckSkipped("it needs two GPUs, and one is here (--force-group: a group of one)")
    return ranks


def gpus() -> int:
    """Number of visible GPUs, at least 1."""
    return max(1, torch.cuda.device_count())


def run_on_ranks(
    trial: Trial,
    work: Callable[..., Any],
    *arguments: Any,
    ranks: int,
    deterministic: bool = False,
    own_s: float | None = None,
) -> list[Any]:
    """Results of `work(trial, group, *arguments)` on each of `ranks`, in their order.

    Args:
        trial: The check; a rank gets it with a device and figures of its own.
        work: A function of a module, for the other processes.
        arguments: Further arguments.
        ranks: Number of ranks.
        deterministic: Use kernels that give the same bits twice.
        own_s: Time limit; None: what is left of the check's time.

    Raises:
        CheckFailed: A rank failed, died, or did not end in time; all are killed.
    """
    limit_s = trial.left_s() - KILLING_S if own_s is None else own_s
    with tempfile.TemporaryDirectory(prefix="siirl-ranks-") as name:
        folder = Path(name)
        processes = [
            PROCESSES.Process(
                target=_run,
                args=(rank, ranks, folder, _of_rank(trial, rank), deterministic, work, arguments),
            )
            for rank in range(ranks)
        ]
        try:
            _start_server()
            for process in processes:
                process.start()
            _await(processes, folder, limit_s=limit_s, name=trial.name)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
        return [pickle.loads(_result(folder, rank).read_bytes()) for rank in range(ranks)]


def _start_server() -> None:
    """Start the process from which ranks are forked; its socket has a name of multiprocessing below
    the folder of temporary files.
    """
    kept = tempfile.gettempdir()
    tempfile.tempdir = socket_folder("pymp-12345678/listener-12345678")
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = kept


def first_ranks(group: GroupOfProcesses, number: int) -> GroupOfProcesses | None:
    """A group of the first ranks of `group`, on each of them; None on the others. Every rank calls
    it.
    """
    members = list(range(number))
    if group.device.type == "cuda":
        made = distributed.new_group(members, timeout=TIMEOUT)
        return _collectives(group, made) if group.rank < number else None
    with guard_new_ports():
        made = distributed.new_group(members, timeout=TIMEOUT)
        some = _collectives(group, made) if group.rank < number else None
        if some is not None:
            some.sum(torch.zeros(()))  # the last rank has connected
    return some


def _collectives(group: GroupOfProcesses, made: Any) -> GroupOfProcesses:
    return GroupOfProcesses(device=group.device, group=made)


def _of_rank(trial: Trial, rank: int) -> Trial:
    device = torch.device("cuda", rank) if trial.device.type == "cuda" else trial.device
    return replace(trial, device=device, file=trial.file.with_suffix(f".{rank}"), figures={})


def _run(
    rank: int,
    ranks: int,
    folder: Path,
    trial: Trial,
    deterministic: bool,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """One rank."""
    with ExitStack() as stack:
        stack.push(lambda kind, error, trace: _tell(_failure(folder, rank), error))
        torch.set_num_threads(1)
        prepare_device(deterministic=deterministic)
        on_gpu = trial.device.type == "cuda"
        group = join(
            rank=rank,
            world_size=ranks,
            init_method=f"file://{folder}/rendezvous",
            device=trial.device,
            backend="nccl" if on_gpu else "gloo",
            force_group=True,
        )
        found = work(trial, group, *arguments)
        leave(group)
        _result(folder, rank).write_bytes(pickle.dumps(found))


def _tell(file: Path, error: BaseException | None) -> None:
    """Write the reason of a failure for the parent; the error is raised all the same."""
    if error is not None:
        verdict = isinstance(error, CheckFailed)
        file.write_text(f"{'' if verdict else f'{type(error).__name__}: '}{error}")


def _await(processes: Sequence[Any], folder: Path, *, limit_s: float, name: str) -> None:
    """Return when all processes have ended well; raise CheckFailed otherwise. `name` is the
    check's.
    """
    ends_at = time.monotonic() + limit_s
    running = list(processes)
    while running:
        left_s = ends_at - time.monotonic()
        ended = connection.wait([each.sentinel for each in running], timeout=max(left_s, 0.0))
        if not ended:
            slow = [str(number) for number, each in enumerate(processes) if each in running]
            raise CheckFailed(late(f"rank {', '.join(slow)} ", name, limit_s))
        running = [each for each in running if each.sentinel not in ended]
        if any(each.exitcode for each in processes):
            connection.wait([each.sentinel for each in running], timeout=CAUSE_S)
            raise CheckFailed(_cause(processes, folder))


def _cause(processes: Sequence[Any], folder: Path) -> str:
    """Rank and reason of the failure: of one that died by a signal, else of the first that told
    one.
    """
    failed = [rank for rank, process in enumerate(processes) if process.exitcode]
    silent = [rank for rank in failed if not _failure(folder, rank).exists()]
    if silent:
        return f"rank {silent[0]}: {death(processes[silent[0]].exitcode)}"
    first = min(failed, key=lambda rank: _failure(folder, rank).stat().st_mtime_ns)
    return f"rank {first}: {_failure(folder, first).read_text()}"


def _result(folder: Path, rank: int) -> Path:
    return folder / f"result_{rank}"


def _failure(folder: Path, rank: int) -> Path:
    return folder / f"failure_{rank}"
