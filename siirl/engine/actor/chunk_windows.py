"""Cuts trajectories of VLA policies at chunks: into windows for a pass, or into single decisions.

A chunk is an independent observation: its log-probs depend on no other chunk. The executed chunks
of all rows are concatenated and cut into windows of nearly equal size, so a pass has a fixed number
of observations. A window may begin and end within a trajectory.
"""

# B row, C chunk, S token of a chunk, T = C*S token, N executed chunk of any row

from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

from siirl.algos.tensor_checks import as_bool_mask
from siirl.data_coordinator.protocol.batch import texts
from siirl.data_coordinator.protocol.batch_columns import Layout, column
from siirl.engine.actor.embodied_scorer import number_of_chunks
from siirl.engine.training.batch_cuts import Part

BEHIND = (
    *("final_pixel_values", "final_proprioception", "final_instruction_ids"),
    *("bootstrapped", "bootstrap_values"),
)
"""Columns of the state after a row's last decision; rows of single decisions have none."""


def chunk_windows(batch: TensorDict, *, chunks: int) -> list[Part]:
    """Parts of at most `chunks` executed chunks each, in the order of rows and chunks.

    A row without executed tokens is in no part.

    Args:
        batch: `response_mask` [B, T] and at least one column of observations [B, C, ...].
        chunks: Largest number of chunks in a part, at least 1.
    """
    kept_BCS = as_bool_mask(batch["response_mask"]).unflatten(1, (number_of_chunks(batch), -1))
    row_N, chunk_N = kept_BCS.any(-1).nonzero().unbind(1)
    windows = -(-len(row_N) // chunks)
    parts = []
    for rows, places in zip(
        row_N.tensor_split(max(1, windows)), chunk_N.tensor_split(max(1, windows)), strict=True
    ):
        if len(rows):
            first = int(rows[0])
            mask_BCS = torch.zeros_like(kept_BCS[first : int(rows[-1]) + 1])
            mask_BCS[rows - first, places] = True
            used_B = mask_BCS.any(-1).any(-1)
            parts.append(
                Part(
                    rows=(used_B.nonzero()[:, 0] + first).tolist(),
                    places_BT=mask_BCS.flatten(1)[used_B],
                )
            )
    return parts


def rows_of_decisions(batch: TensorDict) -> TensorDict:
    """A row for each executed chunk of `batch`, in the order of rows and chunks.

    Columns along tokens and chunks are cut, others repeat; a row's id consists of its trajectory's
    id and the number of the chunk. A mini-batch is drawn from rows.
    Decisions of one episode resemble each other, and rows of a segment differ in length, so PPO
    draws its mini-batches from single decisions (arXiv 1707.06347, algorithm 1). Advantages are
    computed beforehand, because they look ahead along the row.
    """
    chunks = number_of_chunks(batch)
    kept_BC = as_bool_mask(batch["response_mask"]).unflatten(1, (chunks, -1)).any(-1)
    row_N, chunk_N = kept_BC.nonzero().unbind(1)
    columns: dict[str, Any] = {}
    for name, value in batch.items():
        if name in BEHIND or name == "uid":  # ids are made below
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
