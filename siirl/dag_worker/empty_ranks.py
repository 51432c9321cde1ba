"""Gives a rank without rows the columns of the other ranks.

A rank has no rows if all its episodes failed to simulate. It then takes part in every stage with an
empty batch, so that all ranks enter the same collective calls.
"""

from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

from siirl.engine.training.collectives import Collectives
from siirl.errors import TooManyFailures

Layout = dict[str, tuple[torch.dtype, tuple[int, ...]] | None]
"""Dtype and row shape by column; None for a column of strings."""


def with_columns_of_all(batch: TensorDict, *, ranks: Collectives) -> TensorDict:
    """`batch`; if it has no rows, an empty batch with the columns of the other ranks.

    Raises:
        TooManyFailures: No rank has a row; raised on every rank.
    """
    layouts = [layout for layout in ranks.gather_objects(_layout(batch)) if layout]
    if not layouts:
        raise TooManyFailures(
            "No episode of the step could be simulated, or a node of the rollout ranks dropped all "
            "rows, so there are no rows to train on. env.max_failed_share permits failures; see "
            "the servers' messages above for the environment's fault."
        )
    return batch if len(batch) else _without_rows(layouts[0])


def with_columns_of_prompts(rows: TensorDict, *, prompts: TensorDict) -> TensorDict:
    """Add to `rows` the tensor columns of the prompts that they lack."""
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
