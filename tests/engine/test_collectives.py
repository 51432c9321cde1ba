"""Ranks that leave their group, and that fail together.

A rank that leaves its group leaves nothing that could abort the process at exit.
"""

import tempfile
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

from siirl.engine.training.collectives import OneProcess, join, leave, raise_on_all_ranks
from siirl.engine.training.sharding import shard
from siirl.errors import SiirlError, TensorError
from tests.engine.ranks_at_work import run_on_ranks, work_on_ranks


def serving_threads() -> list[str]:
    """Names of this process's gloo threads."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if "gloo" in name]


def refused(ranks):
    """An error in a reference cycle with `ranks` through its traceback, as if caught and kept."""
    try:
        raise ValueError(ranks.rank)
    except ValueError as error:
        kept = error
    return kept


def trained(ranks):
    """A sharded module after one step."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.1)
    shard(module, ranks=ranks, device=torch.device("cpu"), compute_dtype=None, blocks=[module[0]])
    module(torch.ones(2, 4)).sum().backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    norm.full_tensor()  # another of DTensor's caches
    return module


def works_and_leaves(rank, folder, use):
    ranks = join(rank=rank, world_size=2, init_method=f"file://{folder}/rendezvous")
    kept = use(ranks)
    ranks.gather_objects(rank)
    assert serving_threads()
    del kept
    leave(ranks)
    Path(folder, f"left_{rank}").write_text(" ".join(serving_threads()))


@pytest.mark.parametrize("use", [refused, trained])
def test_a_rank_that_left_the_group_has_no_thread_of_it(use):
    with tempfile.TemporaryDirectory() as folder:
        processes = work_on_ranks(works_and_leaves, (folder, use), ranks=2)
        assert [process.exitcode for process in processes] == [0, 0]
        assert [Path(folder, f"left_{rank}").read_text() for rank in range(2)] == ["", ""]


def check_rows(rank):
    if rank == 1:
        raise TensorError("rewards is nan")


def fails_on_rank_1(ranks):
    """Trace of the error of this rank, and the ranks that still answer afterwards."""
    try:
        with raise_on_all_ranks(ranks):
            check_rows(ranks.rank)
    except SiirlError as error:
        trace = "".join(traceback.format_exception(error))
    return trace, ranks.gather_objects(ranks.rank)


def test_an_error_on_one_rank_is_raised_where_it_occurred_and_named_on_the_other():
    (trace_0, answered_0), (trace_1, answered_1) = run_on_ranks(fails_on_rank_1)
    assert "check_rows(ranks.rank)" in trace_1
    assert trace_1.endswith("siirl.errors.TensorError: rewards is nan\n")
    assert trace_0.endswith(
        "siirl.errors.InvariantError: Rank 1 failed, so all stop: TensorError: rewards is nan\n"
    )
    assert answered_0 == answered_1 == [0, 1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_an_error_of_another_type_does_not_wait_for_other_ranks(error):
    class Gone(OneProcess):
        def gather_objects(self, thing):
            raise AssertionError("waits for another rank")

    with pytest.raises(type(error)) as raised, raise_on_all_ranks(Gone()):
        raise error
    assert raised.value is error
