"""Rows of each optimiser step."""

import pytest
import torch
from tensordict import TensorDict
from tiny_training import trajectories

from siirl.engine.training.batch_cuts import mini_batch_rows, with_bool_masks
from siirl.engine.training.collectives import OneProcess
from siirl.errors import InvariantError, TensorError


class Seat(OneProcess):
    """One of several ranks with known ids."""

    def __init__(self, rank, ids):
        self.rank, self.ids = rank, ids

    def gather_objects(self, thing):
        assert thing == self.ids[self.rank]
        return self.ids


def parts(ids, *, rank=0, rows=2, seed=0):
    batch = TensorDict({"x": torch.zeros(len(ids[rank]))}, batch_size=[len(ids[rank])])
    if ids[rank]:
        batch["uid"] = ids[rank]
    chosen = mini_batch_rows(
        batch=batch, rows=rows, ranks=Seat(rank, ids), generator=torch.Generator().manual_seed(seed)
    )
    return [[ids[rank][row] for row in part.tolist()] for part in chosen]


def test_one_mini_batch_is_the_batch_in_its_order_and_draws_nothing():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    (rows,) = mini_batch_rows(
        batch=trajectories(5), rows=5, ranks=OneProcess(), generator=generator
    )
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(generator.get_state(), before)


def test_every_row_is_in_exactly_one_mini_batch():
    chosen = parts([["a", "b", "c", "d", "e"]])
    assert sorted(row for part in chosen for row in part) == ["a", "b", "c", "d", "e"]
    assert [len(part) for part in chosen] == [2, 2, 1]


def test_rows_are_shared_evenly_so_that_no_step_has_a_runt():
    ids = [[f"{i:02d}" for i in range(40)]]
    assert [len(part) for part in parts(ids, rows=32)] == [20, 20]


def test_the_seed_fixes_the_draw():
    ids = [[f"{i:02d}" for i in range(12)]]
    assert parts(ids, seed=1) == parts(ids, seed=1) != parts(ids, seed=2)


def test_ranks_together_make_the_mini_batches_of_one_rank_however_rows_are_spread():
    alone = parts([["a", "b", "c", "d", "e", "f"]], rows=3)
    for spread in ([["f", "b"], ["a", "e", "d", "c"]], [[], ["c", "a", "b", "f", "e", "d"]]):
        together = zip(parts(spread, rank=0, rows=3), parts(spread, rank=1, rows=3), strict=True)
        assert [set(here + there) for here, there in together] == [set(part) for part in alone]


def test_no_rows_on_any_rank_are_one_empty_mini_batch():
    assert parts([[], []], rank=1) == [[]]


def masked(*values):
    return TensorDict({"response_mask": torch.tensor([values])}, batch_size=[1])


def test_masks_become_booleans_and_a_number_between_is_refused_on_every_rank():
    batch = with_bool_masks(masked(0, 1, 1), ranks=OneProcess())
    assert batch["response_mask"].tolist() == [[False, True, True]]
    with pytest.raises(TensorError, match="response_mask is 2"):
        with_bool_masks(masked(0, 2, 1), ranks=OneProcess())
    message = "TensorError: response_mask is 2"

    class Other(OneProcess):
        """A rank beside one that fails."""

        def gather_objects(self, thing):
            return [message, thing]

    with pytest.raises(
        InvariantError, match="Rank 0 failed, so all stop: TensorError: response_mask"
    ):
        with_bool_masks(masked(0, 1, 1), ranks=Other())
