"""Operations on whole batches: select rows, join batches of different padding, check ids.
`batch_columns` lists the columns of a batch.
"""

import os
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensordict
import torch
from tensordict import NonTensorStack, TensorDict

from envs.mistakes import users_frame
from siirl.data_coordinator.protocol.batch_columns import column
from siirl.data_coordinator.protocol.padding import RAGGED, Extent, row_extents
from siirl.errors import InvariantError


def select_rows(batch: TensorDict, rows: Sequence[int] | torch.Tensor) -> TensorDict:
    """The rows with these positions (or where a boolean mask is true), in this order, copied;
    padding stays as it is.
    """
    positions = torch.as_tensor(rows)
    if positions.dtype is torch.bool:
        positions = positions.nonzero().flatten()
    chosen = positions.long()
    columns: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            columns[name] = value[chosen]
        else:
            every_text = texts(batch, name)
            columns[name] = NonTensorStack(*[every_text[position] for position in chosen.tolist()])
    return TensorDict(columns, batch_size=[len(chosen)])


def shallow_copy(batch: TensorDict) -> TensorDict:
    """The same columns in a new batch; TensorDict.copy() would visit every string of it."""
    return TensorDict(dict(batch.items()), batch_size=batch.batch_size, device=batch.device)


def without_texts(batch: TensorDict) -> TensorDict:
    """Only the tensor columns: selecting rows of a string column takes a hundred times as long."""
    return TensorDict(
        {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)},
        batch_size=batch.batch_size,
        device=batch.device,
    )


def concat(batches: Sequence[TensorDict]) -> TensorDict:
    """Join batches by rows, each padded to the widest.

    Raises:
        ValueError: No batches.
        InvariantError: Batches with different columns.
    """
    if not batches:
        raise ValueError("concat needs at least one batch.")
    names = set(batches[0].keys())
    for batch in batches:
        if set(batch.keys()) != names:
            raise InvariantError(
                "Batches with different columns cannot be joined; they differ in "
                f"{sorted(names ^ set(batch.keys()))}."
            )
    extents = [Extent.of_shapes(tensor_shapes(batch)) for batch in batches]
    rows = [batch.batch_size[0] for batch in batches]
    widest = Extent.widest(extents)
    joined: dict[str, Any] = {}
    for name, first in batches[0].items():
        if not isinstance(first, torch.Tensor):
            joined[name] = NonTensorStack(
                *[text for batch in batches for text in texts(batch, name)]
            )
        elif column(name).layout in RAGGED:
            joined[name] = pad_together(name, [batch[name] for batch in batches], extents, widest)
        else:
            joined[name] = torch.cat([batch[name] for batch in batches])
    return TensorDict(joined, batch_size=[sum(rows)])


def extents_of(batch: TensorDict) -> list[Extent]:
    """The unpadded extent of each row."""
    masks = {
        name: batch[name].detach().cpu().numpy()
        for name in ("response_mask", "attention_mask")
        if name in batch.keys()
    }
    return row_extents(
        tensor_shapes(batch),
        response_mask_BT=masks.get("response_mask"),
        attention_mask_BS=masks.get("attention_mask"),
    )


def without_padding(batch: TensorDict) -> TensorDict:
    """The same rows, padded to their longest; views of the columns. A batch without rows is
    returned itself.
    """
    if not len(batch):
        return batch
    padded = Extent.of_shapes(tensor_shapes(batch))
    longest = Extent.widest(extents_of(batch))
    if padded == longest:
        return batch
    columns: dict[str, Any] = {}
    for name, value in batch.items():
        layout = column(name).layout
        is_ragged = isinstance(value, torch.Tensor) and layout in RAGGED
        columns[name] = value[:, padded.place(layout, longest)] if is_ragged else value
    return TensorDict(columns, batch_size=batch.batch_size, device=batch.device)


def check_unique_uids(batch: TensorDict) -> None:
    """Refuse a batch in which two rows have the same id: they would share videos, embeddings and
    rewards.

    Raises:
        InvariantError: Names the ids.
    """
    repeated = [uid for uid, count in Counter(texts(batch, "uid")).items() if count > 1]
    if repeated:
        raise InvariantError(
            f"{len(repeated)} sample ids occur more than once in a batch, first {repeated[0]!r}. "
            "Each rollout needs its own id."
        )


def check_shapes(batch: TensorDict) -> None:
    """Refuse a batch whose batch axis is not its rows, or whose columns differ in width.

    Raises:
        InvariantError: Names the columns.
    """
    if len(batch.batch_size) != 1:
        raise InvariantError(
            f"A batch has batch_size={list(batch.batch_size)}, which is not its number of rows: "
            "return TensorDict(columns, batch_size=[rows])."
        )
    Extent.of_shapes(tensor_shapes(batch))


REFUSED_COLUMN = re.compile(
    r"batch dimension mismatch, got self\.batch_size=torch\.Size\(\[(\d+)\]\) and "
    r"value\.shape=torch\.Size\((\[.*\])\) for key '(.+)'\."
)
"""TensorDict's message about a column that is not as long as the batch."""
LIBRARY = os.path.join(os.path.dirname(tensordict.__file__), "")  # whose lines are no cause


@contextmanager
def long_columns(owner: str) -> Iterator[None]:
    """Raise TensorDict's error about a column's length as a sentence with `owner`, column and line.

    Raises:
        InvariantError: A column that the block sets has not one entry per row.
    """
    try:
        yield
    except RuntimeError as error:
        found = REFUSED_COLUMN.match(str(error))
        if found is None:
            raise
        rows, shape, name = found.groups()
        frames = traceback.extract_tb(error.__traceback__)
        place = users_frame([frame for frame in frames if not frame.filename.startswith(LIBRARY)])
        raise InvariantError(
            f"{owner[0].upper()}{owner[1:]} sets column {name!r} to a tensor of shape {shape}, but "
            f"the batch has {rows} rows: give it one entry per row ({place.filename}, line "
            f"{place.lineno})."
        ) from error


def tensor_shapes(batch: TensorDict) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensor columns."""
    return {
        name: tuple(value.shape) for name, value in batch.items() if isinstance(value, torch.Tensor)
    }


def texts(batch: TensorDict, name: str) -> list[str]:
    """A column of strings as a list, one per row."""
    return list(batch.get(name).tolist())


def pad_together(
    name: str, tensors: Sequence[torch.Tensor], extents: Sequence[Extent], widest: Extent
) -> torch.Tensor:
    """The rows of several tensors of the ragged column `name`, each padded from its extent to
    `widest`.
    """
    layout = column(name).layout
    shape = (sum(len(tensor) for tensor in tensors), widest.width(layout), *tensors[0].shape[2:])
    joined = torch.zeros(shape, dtype=tensors[0].dtype, device=tensors[0].device)
    start = 0
    for tensor, extent in zip(tensors, extents, strict=True):
        joined[start : start + len(tensor), widest.place(layout, extent)] = tensor
        start += len(tensor)
    return joined
