"""Pictures of the prompts of a prefill pass, in the model's input form."""

# P prompt, T token of a prompt, F place of any picture

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def seen_by_prompts(
    pictures: Sequence[Any], input_ids_PT: NDArray[np.int64], *, device: torch.device
) -> dict[str, Any]:
    """Argument `seen` of a `siirl.models.language_model.LanguageModel` that sees.

    Empty if no prompt has pictures.

    Args:
        pictures: `siirl.models.seen_pictures.Pictures` of each prompt; None for text models.
        input_ids_PT: Tokens of the prompts, padded on the right.
        device: Device of the pass.
    """
    if not any(one is not None and one.number for one in pictures):
        return {}
    # imports Pillow, which text models do not need
    from siirl.models.vision_inputs import SeenPictures

    vision = pictures[0].vision
    rows, places = [], []
    for row, (ids_T, one) in enumerate(zip(input_ids_PT, pictures, strict=True)):
        row_F, place_F = _places(row, ids_T == vision.token, one.places_N.sum())
        rows.append(row_F)
        places.append(place_F)
    grids_N2 = np.concatenate([one.grids_N2 for one in pictures])
    arrays = {
        "patches_KV": np.concatenate([one.patches_KV for one in pictures]),
        "grids_N3": np.concatenate([np.ones_like(grids_N2[:, :1]), grids_N2], axis=1),
        "row_F": np.concatenate(rows),
        "place_F": np.concatenate(places),
        "rotary_BS3": np.stack(
            [one.positions(ids_T) for ids_T, one in zip(input_ids_PT, pictures, strict=True)]
        ),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return {"seen": SeenPictures(**tensors)}


def _places(
    row: int, marks_T: NDArray[np.bool_], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and places [F] of the first `count` marks; later ones are text."""
    places = np.flatnonzero(marks_T)[:count]
    return np.full_like(places, row), places
