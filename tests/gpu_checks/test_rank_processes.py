"""Ranks of a check: their results, and their end when one of them fails."""

import os
import time
from pathlib import Path

import pytest
import torch

from siirl.gpu_checks.check import CheckFailed, CheckSkipped, Trial
from siirl.gpu_checks.rank_processes import ranks_here, run_on_ranks
from tests.gpu_checks import rank_work

MINUTES = 10


class OnOneGpu(Trial):
    """A check on a machine with one GPU."""

    on_gpu = True


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    ends_at = time.monotonic() + 60 * MINUTES
    return Trial(torch.device("cpu"), ends_at=ends_at, file=tmp_path / "figures.json")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_are_in_the_order_of_the_ranks(trial: Trial) -> None:
    assert run_on_ranks(trial, rank_work.sums, 10, ranks=3) == [(0, 33), (1, 33), (2, 33)]


def test_a_rank_that_dies_ends_the_others(trial: Trial, tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(CheckFailed, match=r"^rank 1: its process was killed by SIGKILL$"):
        run_on_ranks(trial, rank_work.dies, tmp_path, ranks=2)
    assert time.monotonic() - begin < 60 * MINUTES / 2
    waiting = tmp_path / "0"
    assert not waiting.exists() or not is_alive(int(waiting.read_text()))


def test_the_verdict_of_a_rank_is_that_of_the_check(trial: Trial) -> None:
    with pytest.raises(CheckFailed, match=r"^rank 1: 1 is not 0$"):
        run_on_ranks(trial, rank_work.disagrees, ranks=2)


def test_an_error_of_a_rank_is_named(trial: Trial) -> None:
    with pytest.raises(CheckFailed, match=r"^rank 0: RuntimeError: CUDA error: out of memory$"):
        run_on_ranks(trial, rank_work.raises, ranks=1)


def test_a_rank_that_does_not_end_is_killed_and_named(trial: Trial) -> None:
    run_on_ranks(trial, rank_work.sums, 0, ranks=1)  # the server of processes has imported torch
    told = r"^rank (0, )?1 did not end within 15 s\. .* --only figures --minutes 1$"
    with pytest.raises(CheckFailed, match=told):
        run_on_ranks(trial, rank_work.sleeps, ranks=2, own_s=15.0)


def test_a_machine_with_one_gpu_has_no_second_rank(trial: Trial) -> None:
    one = OnOneGpu(trial.device, trial.ends_at, trial.file)
    with pytest.raises(CheckSkipped, match=r"needs two GPUs, and one is here \(--force-group"):
        ranks_here(one)


def test_a_forced_group_has_one_rank_on_one_gpu(trial: Trial) -> None:
    assert ranks_here(OnOneGpu(trial.device, trial.ends_at, trial.file, force_group=True)) == 1


def test_a_cpu_has_two_ranks(trial: Trial) -> None:
    assert ranks_here(trial) == 2
