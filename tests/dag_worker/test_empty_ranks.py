"""A rank whose episodes all failed: it gets the columns of the other ranks and
takes part without rows. If no rank has rows, all stop.
"""

import pytest
import torch
from ranks_at_work import run_on_ranks
from tensordict import NonTensorStack, TensorDict

from siirl.dag_worker.empty_ranks import with_columns_of_all
from siirl.dag_worker.rewards import gather_outcomes
from siirl.engine.training.collectives import OneProcess
from siirl.errors import TooManyFailures


def rows(count: int) -> TensorDict:
    """Result of a rollout: `count` episodes of two observations; without episodes there are no
    columns.
    """
    if not count:
        return TensorDict({}, batch_size=[0])
    return TensorDict(
        {
            "uid": NonTensorStack(*[f"episode-{row}" for row in range(count)]),
            "task_name": NonTensorStack(*["reach"] * count),
            "index": torch.arange(count),
            "complete": torch.ones(count, dtype=torch.bool),
            "env_return": torch.ones(count),
            "pixel_values": torch.zeros((count, 2, 1, 8, 8, 3), dtype=torch.uint8),
        },
        batch_size=[count],
    )


def gather_with_an_idle_rank(ranks, counts):
    """Each rank's rows and the number of outcomes that it sees, or the error that it raises."""
    try:
        batch = with_columns_of_all(rows(counts[ranks.rank]), ranks=ranks)
    except TooManyFailures as error:
        return type(error).__name__
    seen = gather_outcomes(batch, ranks=ranks).uid_B
    shapes = {
        name: (value.dtype, tuple(value.shape[1:]))
        for name, value in batch.items()
        if isinstance(value, torch.Tensor)
    }
    return len(batch), sorted(batch.keys()), shapes, seen


def test_the_idle_rank_has_the_columns_of_the_other_and_meets_it_in_the_next_collective_call() -> (
    None
):
    idle, busy = run_on_ranks(gather_with_an_idle_rank, (0, 2))
    assert (idle[0], busy[0]) == (0, 2)
    assert idle[1:] == busy[1:]
    assert idle[3] == ["episode-0", "episode-1"]


def test_every_rank_stops_if_no_rank_has_rows() -> None:
    assert run_on_ranks(gather_with_an_idle_rank, (0, 0)) == ["TooManyFailures", "TooManyFailures"]


def test_one_process_also_stops_and_keeps_rows_unchanged() -> None:
    with pytest.raises(TooManyFailures, match="No episode of the step could be simulated"):
        with_columns_of_all(rows(0), ranks=OneProcess())
    batch = rows(1)
    assert with_columns_of_all(batch, ranks=OneProcess()) is batch
