"""Cuts trajectories of VLA policies by chunk, so that a pass has a fixed number of observations.

A chunk is an independent observation: its log-probs depend on no other chunk. So the executed
chunks of all rows are laid end to end and cut into windows of nearly equal size. A window may begin
and end within a trajectory.
"""

# B row, C chunk, S token of a chunk, T = C*S token

import torch
from tensordict import TensorDict

from siirl.algos.tensor_checks import as_bool_mask
from siirl.engine.actor.embodied_scorer import number_of_chunks
from siirl.engine.training.batch_cuts import Part


def chunk_windows(batch: TensorDict, *, chunks: int) -> list[Part]:
    """Parts of at most `chunks` executed chunks each, in the order of rows and chunks.

    A row without executed tokens is in no part.

    Args:
        batch: `response_mask` [B, T] and at least one column of observations [B, C, ...].
        chunks: Most chunks of a part, at least 1.
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
