"""Pictures of packed rows in the model's input form; each is shown once, however many rows share
it.
"""

# B row, S token, L lane, N token of any row that the model sees, F place of any picture

from typing import Any

import torch
from tensordict import TensorDict

from siirl.engine.actor.packing import PackedRows


def seen_in_lanes(packed: PackedRows, micro_batch: TensorDict, module: Any) -> dict[str, Any]:
    """Argument `seen` of a `siirl.models.language_model.LanguageModel` that sees.

    Empty if the rows have no columns of pictures, or nothing is scored.

    Args:
        packed: The rows in lanes.
        micro_batch: The rows, with `picture_patches`, `picture_grids` and `position_ids`.
        module: The model.
    """
    if "picture_patches" not in micro_batch or not len(packed.row_N):
        return {}
    # imports Pillow, which text models do not need
    from siirl.models.seen_pictures import grids_of
    from siirl.models.vision_inputs import SeenPictures

    vision = module.vision_inputs.vision
    own_BK = micro_batch["picture_grids"][..., 0] > 0
    places_B = own_BK.sum(1) // vision.merge**2
    mark_BS = (micro_batch["input_ids"] == vision.token) & micro_batch["attention_mask"].bool()
    # later marks are text: a policy may generate any token
    mark_BS &= mark_BS.long().cumsum(1) <= places_B[:, None]
    shown_B = _first_of_each_place(packed, rows=len(mark_BS))
    mark_N = mark_BS[packed.row_N, packed.column_N] & shown_B[packed.row_N]
    patches_BK = own_BK & shown_B[:, None]
    return {
        "seen": SeenPictures(
            patches_KV=micro_batch["picture_patches"][patches_BK],
            grids_N3=grids_of(micro_batch["picture_grids"][patches_BK], vision=vision),
            row_F=packed.target_N[0][mark_N],
            place_F=packed.target_N[1][mark_N],
            rotary_BS3=packed.placed(micro_batch["position_ids"]),
        )
    }


def _first_of_each_place(packed: PackedRows, *, rows: int) -> torch.Tensor:
    """Bool [B]: rows that the model sees, one of those that share a prompt."""
    width = packed.input_ids_LS.shape[1]
    lane_N, place_N = packed.target_N
    start_B = torch.full((rows,), -1, device=lane_N.device)
    first_N = torch.ones_like(packed.row_N, dtype=torch.bool)
    first_N[1:] = packed.row_N[1:] != packed.row_N[:-1]
    start_B[packed.row_N[first_N]] = (lane_N * width + place_N)[first_N]
    shown_B = torch.zeros(rows, dtype=torch.bool, device=lane_N.device)
    taken: set[int] = set()
    for row, start in enumerate(start_B.tolist()):
        shown_B[row] = start >= 0 and start not in taken
        taken.add(start)
    return shown_B
