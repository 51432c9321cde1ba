"""Rows of each optimiser step: the same samples, however they are spread over ranks.

A mini-batch is drawn from the rows of *all* ranks, in the order of their unique ids, by a generator
with the same state on every rank. So one rank and four take the same optimiser steps. The price: a
rank may own more rows of one mini-batch and fewer of the next, and the ranks wait for the one with
most.
"""

# R row of any rank

import torch
from tensordict import TensorDict

from siirl.engine.training.collectives import Collectives


def mini_batch_rows(
    *, batch: TensorDict, rows: int, ranks: Collectives, generator: torch.Generator
) -> list[torch.Tensor]:
    """Row indices of this rank in each mini-batch.

    Every rank gets the same number of lists; some may be empty. The rows of all ranks are cut
    evenly into the fewest parts of at most `rows`: 40 rows in mini-batches of 32 make two of 20,
    because a small remainder would be a noisy step.

    Args:
        batch: This rank's rows, with the column `uid` if ids are known; otherwise rows are in the
            order of ranks.
        rows: Rows of a mini-batch, over all ranks.
        ranks: The ranks that share the rows.
        generator: Drawn from only if there is more than one mini-batch.
    """
    owned = _rows_by_id(batch, ranks)
    parts = max(1, -(-len(owned) // rows))
    order_R = (
        torch.arange(len(owned)) if parts == 1 else torch.randperm(len(owned), generator=generator)
    )
    chosen = [[owned[i] for i in part.tolist()] for part in order_R.tensor_split(parts)]
    return [
        torch.tensor(sorted(row for _, rank, row in part if rank == ranks.rank), dtype=torch.long)
        for part in chosen
    ]


def row_places(*, batch: TensorDict, ranks: Collectives) -> torch.Tensor:
    """Position of this rank's rows among the rows of all ranks in order of ids, int64 [B]."""
    places_B = torch.zeros(len(batch), dtype=torch.long)
    for place, (_, rank, row) in enumerate(_rows_by_id(batch, ranks)):
        if rank == ranks.rank:
            places_B[row] = place
    return places_B


def _rows_by_id(batch: TensorDict, ranks: Collectives) -> list[tuple[str, int, int]]:
    """Id, rank and row index of the rows of all ranks, in the order of their ids."""
    ids = list(batch["uid"]) if "uid" in batch else [""] * len(batch)
    everywhere = ranks.gather_objects(ids)
    return sorted(
        (uid, rank, row) for rank, uids in enumerate(everywhere) for row, uid in enumerate(uids)
    )
