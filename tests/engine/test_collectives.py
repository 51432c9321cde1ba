"""A rank that leaves its group leaves nothing that could abort the process at exit."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from siirl.engine.training.collectives import join, leave
from siirl.engine.training.sharding import shard
from tests.engine.ranks_at_work import work_on_ranks


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
