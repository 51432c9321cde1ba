"""A rank whose episodes all failed to simulate has no rows, hence no columns: the other ranks tell
it what there is.

It then takes part in every stage with a share of nothing, so that all ranks meet in the same
collective calls.
"""

from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

from siirl.engine.training.collectives import Collectives
from siirl.errors import TooManyFailures

Layout = dict[str, tuple[torch.dtype, tuple[int, ...]] | None]
"""Type and shape of a row by column; None for a column of strings."""


def with_columns_of_all(batch: TensorDict, *, ranks: Collectives) -> TensorDict:
    """`batch`, or where it has no rows one of no rows with the columns of the other ranks.

    Raises:
        TooManyFailures: No rank has a row; raised on every rank.
    """
    layouts = [layout for layout in ranks.gather_objects(_layout(batch)) if layout]
    if not layouts:
        raise TooManyFailures(
            "Not one episode of the step could be simulated, so there is nothing to train on. env.max_failed_share tolerates it, but the "
            "environment needs a look: what the servers said is above."
        )
    return batch if len(batch) else _without_rows(layouts[0])


def with_columns_of_prompts(rows: TensorDict, *, prompts: TensorDict) -> TensorDict:
    """`rows` with the tensor columns of their prompts that they lack: what a node before the
    rollout found out about a prompt.
    """
    place = (
        {index: number for number, index in enumerate(prompts["index"].tolist())}
        if len(prompts)
        else {}
    )
    of_row = torch.tensor([place[index] for index in rows["index"].tolist()], dtype=torch.long)
    for name, value in prompts.items():
        if isinstance(value, torch.Tensor) and name not in rows.keys():
            rows[name] = value[of_row]
    return rows


def _layout(batch: TensorDict) -> Layout:
    if not len(batch):
        return {}
    return {
        name: (value.dtype, tuple(value.shape[1:])) if isinstance(value, torch.Tensor) else None
        for name, value in batch.items()
    }


def _without_rows(layout: Layout) -> TensorDict:
    columns: dict[str, Any] = {}
    for name, entry in layout.items():
        columns[name] = (
            NonTensorStack() if entry is None else torch.zeros((0, *entry[1]), dtype=entry[0])
        )
    return TensorDict(columns, batch_size=[0])
