"""Rows of parts of episodes, cut into rows of one decision each.

A mini-batch is drawn from rows. Decisions of one episode resemble each other, and rows of a segment
differ in length, so PPO draws its mini-batches from single decisions (arXiv 1707.06347, algorithm
1). Advantages are computed before: they look ahead along the row.
"""

# B row, C chunk, S token of a chunk, T = C*S token, N decision of any row

from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

from siirl.algos.tensor_checks import as_bool_mask
from siirl.data_coordinator.protocol.batch import texts
from siirl.data_coordinator.protocol.batch_columns import Layout, column
from siirl.engine.actor.embodied_scorer import number_of_chunks

BEHIND = ("final_pixel_values", "final_proprioception", "bootstrapped", "bootstrap_values")
"""Columns of the state behind a row's last decision; rows of single decisions have none."""


def rows_of_decisions(batch: TensorDict) -> TensorDict:
    """A row for each executed chunk of `batch`, in the order of rows and chunks.

    Columns along tokens and chunks are cut, others repeat; a row's id is that of its trajectory and
    the number of the chunk in it.
    """
    chunks = number_of_chunks(batch)
    kept_BC = as_bool_mask(batch["response_mask"]).unflatten(1, (chunks, -1)).any(-1)
    row_N, chunk_N = kept_BC.nonzero().unbind(1)
    columns: dict[str, Any] = {}
    for name, value in batch.items():
        if name in BEHIND:
            continue
        if not isinstance(value, torch.Tensor):
            every = texts(batch, name) if len(batch) else []
            columns[name] = NonTensorStack(*[every[row] for row in row_N.tolist()])
        elif column(name).layout is Layout.TOKEN:
            columns[name] = value.unflatten(1, (chunks, -1))[row_N, chunk_N]
        elif column(name).layout is Layout.CHUNK:
            columns[name] = value[row_N, chunk_N][:, None]
        else:
            columns[name] = value[row_N]
    uids = texts(batch, "uid") if len(batch) else []
    columns["uid"] = NonTensorStack(
        *[
            f"{uids[row]}-{chunk:05d}"
            for row, chunk in zip(row_N.tolist(), chunk_N.tolist(), strict=True)
        ]
    )
    return TensorDict(columns, batch_size=[len(row_N)])
