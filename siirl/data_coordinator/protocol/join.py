"""Joins batches of the same samples: the rows that all have, with the columns of each.

Rows are matched by `uid`. A batch of prompts has no `uid` yet; its rows are matched by `index`, one
prompt to all samples of its group. The join is an inner join: a row that one branch filtered out is
dropped. Left out: choosing among several batches that have a column
(`siirl.execution.dag.writers`).
"""

# B row of the join

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from siirl.data_coordinator.protocol.batch import (
    concat,
    pad_together,
    select_rows,
    tensor_shapes,
    texts,
)
from siirl.data_coordinator.protocol.batch_columns import column
from siirl.data_coordinator.protocol.padding import RAGGED, Extent
from siirl.errors import ConfigError, InvariantError

SAMPLE, PROMPT = "uid", "index"
"""Columns that identify a sample, and the prompt that it answers."""


def join_batches(
    batches: Sequence[TensorDict], *, source: Mapping[str, int], unwritten: Iterable[str] = ()
) -> TensorDict:
    """Rows that all `batches` have, in the order of the first that has samples.

    Args:
        batches: Batches of the same samples, or of samples and their prompts.
        source: For each column of the result the position of the batch that gives it.
        unwritten: Columns that are unchanged from the prompts.

    Raises:
        ConfigError: Rows of one id belong to different prompts.
        InvariantError: A row has no id, two rows of one batch have the same id, or columns of the
            same axis differ in width within one batch.
    """
    aligned = _aligned(batches)
    for name in unwritten:
        _check_prompts(name, [batch[name] for batch in aligned if name in batch.keys()])
    extents = [Extent.of_shapes(tensor_shapes(batch)) for batch in aligned]
    widest = Extent.widest(extents)
    joined: dict[str, Any] = {}
    for name, position in source.items():
        value = aligned[position].get(name)
        if (
            isinstance(value, torch.Tensor)
            and column(name).layout in RAGGED
            and extents[position] != widest
        ):
            value = pad_together(name, [value], [extents[position]], widest)
        joined[name] = value
    return TensorDict(joined, batch_size=[len(aligned[0])])


def positions_in(batch: TensorDict, *, of: TensorDict) -> list[int] | None:
    """For each row of `of` its position in `batch`; None if a row is missing or has no id."""
    name = _identity([batch, of])
    if name is None:
        return None
    row_of = {key: row for row, key in enumerate(_keys(batch, name))}
    found = [row_of.get(key) for key in _keys(of, name)]
    if len(row_of) < len(batch) or None in found:
        return None
    return [row for row in found if row is not None]


def _aligned(batches: Sequence[TensorDict]) -> list[TensorDict]:
    """The batches with the same rows in the same order; a batch already in that order is not
    copied.
    """
    leader = next((batch for batch in batches if _has(batch, SAMPLE)), batches[0])
    names = [_identity_with(leader, batch) for batch in batches]
    keys = {name: _keys(leader, name) for name in set(names)}
    rows_by_key = [_row_by_key(batch, name) for batch, name in zip(batches, names, strict=True)]
    rows = list(range(len(leader)))
    for name, row_of in zip(names, rows_by_key, strict=True):
        rows = [row for row in rows if keys[name][row] in row_of]
    aligned = []
    for batch, name, row_of in zip(batches, names, rows_by_key, strict=True):
        aligned.append(_in_order(batch, [row_of[keys[name][row]] for row in rows]))
    return aligned


def _check_prompts(name: str, values: Sequence[Any]) -> None:
    if not all(isinstance(value, torch.Tensor) for value in values):
        return
    for other in values[1:]:
        if not torch.equal(values[0], other):
            raise ConfigError(
                f"Rows of one id differ in the column {name!r} of their prompts: each agent group "
                "draws its own prompts. Give them the same environment, data.seed and "
                "data.train_batch_size, or do not join their rows."
            )


def _in_order(batch: TensorDict, rows: list[int]) -> TensorDict:
    return batch if rows == list(range(len(batch))) else select_rows(batch, rows)


def _identity_with(leader: TensorDict, batch: TensorDict) -> str:
    name = _identity([leader, batch])
    if name is None:
        raise InvariantError(
            f"Branches are joined by {SAMPLE!r}, or by {PROMPT!r} where one holds prompts, and a "
            f"branch has neither. It has {sorted(batch.keys())}."
        )
    return name


def _identity(batches: Sequence[TensorDict]) -> str | None:
    return next(
        (name for name in (SAMPLE, PROMPT) if all(_has(batch, name) for batch in batches)), None
    )


def _has(batch: TensorDict, name: str) -> bool:
    return name in batch.keys()


def _row_by_key(batch: TensorDict, name: str) -> dict[Any, int]:
    keys = _keys(batch, name)
    row_of = {key: row for row, key in enumerate(keys)}
    if len(row_of) < len(keys):
        repeated, count = Counter(keys).most_common(1)[0]
        raise InvariantError(
            f"{count} rows of a branch have {name}={repeated!r}, so they cannot be joined with "
            "those of another branch. Each sample needs its own id."
        )
    return row_of


def _keys(batch: TensorDict, name: str) -> list[Any]:
    if not len(batch):
        return []
    value = batch.get(name)
    return value.tolist() if isinstance(value, torch.Tensor) else texts(batch, name)


def append_rows(kept: TensorDict, new: TensorDict) -> TensorDict:
    """Rows of the previous rounds and the new one; an empty batch may lack columns."""
    if not len(kept):
        return new
    if not len(new):
        return kept
    return concat([kept, new])


def same_rows(before: TensorDict, after: TensorDict, name: str, places: list[int]) -> bool:
    """Whether a column of `after` equals that of `before` in these rows."""
    if not len(after):
        return True
    if not isinstance(after.get(name), torch.Tensor):
        old = texts(before, name)
        return [old[place] for place in places] == texts(after, name)
    chosen = select_rows(TensorDict({name: before[name]}, batch_size=[len(before)]), places)[name]
    new = after[name]
    if chosen.shape != new.shape or chosen.dtype != new.dtype:
        return False
    return bool(((chosen == new) | ((chosen != chosen) & (new != new))).all())
