"""Micro-batches of a rank's rows: of a fixed number of rows, within a budget of tokens, or parts
that cut rows.
"""

# B row, P prompt token, T response token

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from siirl.data_coordinator.balance import micro_batches_by_budget
from siirl.errors import ConfigError


@dataclass(frozen=True)
class RowGroup:
    """Rows that go through the module together, and their cost."""

    rows: tuple[int, ...]
    tokens: int


PrefixGrouping = Callable[[TensorDict, int], Sequence[RowGroup]]
"""Divides the rows of a batch into groups that a micro-batch does not split.

Arguments are the batch and the budget; groups of several rows stay within that number of tokens.
"""


@dataclass(frozen=True)
class Part:
    """Places of some rows that go through the module together; the others do not."""

    rows: Sequence[int]
    """Ascending row indices."""
    places_BT: torch.Tensor
    """Bool, one line for each of `rows`."""


RowCutting = Callable[[TensorDict], Sequence[Part]]
"""Cuts the rows of a batch into parts; every kept token is in exactly one."""
CUT_MASKS = ("response_mask", "value_mask")


def micro_batch_rows(
    batch: TensorDict, *, rows: int, tokens: int | None, prefix_groups: PrefixGrouping | None = None
) -> list[Sequence[int]]:
    """Row indices of each micro-batch, ascending; every row is in exactly one.

    Args:
        batch: With `attention_mask` [B, P + T] or `response_mask` [B, T] if tokens are counted.
        rows: Rows of a micro-batch, in their order; not read with a budget of tokens.
        tokens: Tokens of a micro-batch; micro-batches are as equal as groups allow. None: count
            rows.
        prefix_groups: Groups of rows that stay together if tokens are counted; None: each row is a
            group.

    Raises:
        ConfigError: A row has more tokens than the budget.
    """
    if tokens is None:
        return [range(start, min(start + rows, len(batch))) for start in range(0, len(batch), rows)]
    groups = (prefix_groups or _single_rows)(batch, tokens)
    try:
        parts = micro_batches_by_budget([group.tokens for group in groups], tokens)
    except ConfigError as error:
        raise ConfigError(f"{error} It is actor_rollout_ref.actor.micro_batch_tokens.") from error
    return [sorted(row for number in part for row in groups[number].rows) for part in parts if part]


def _single_rows(batch: TensorDict, budget: int) -> list[RowGroup]:
    return [
        RowGroup(rows=(row,), tokens=length)
        for row, length in enumerate(row_lengths(batch).tolist())
    ]


def row_lengths(batch: TensorDict) -> torch.Tensor:
    """Tokens of each row, int64 [B].

    With `attention_mask` all tokens that the model sees, else those of the response.
    """
    mask = batch["attention_mask"] if "attention_mask" in batch else batch["response_mask"]
    return mask.sum(1).long()


def take_rows(batch: TensorDict, rows: Sequence[int]) -> TensorDict:
    """Rows with these ascending indices.

    Consecutive rows are a view, because images are large.
    """
    if rows[-1] - rows[0] + 1 == len(rows):
        return batch[rows[0] : rows[-1] + 1]
    return batch[torch.as_tensor(rows)]


def take_part(batch: TensorDict, part: Part) -> TensorDict:
    """The rows of a part, with masks that are 0 outside its places."""
    rows = take_rows(batch, part.rows)
    return _masked(rows, part.places_BT)


def without_places(batch: TensorDict) -> TensorDict:
    """The same rows, with masks of 0."""
    return _masked(batch, torch.zeros((), dtype=torch.bool))


def _masked(batch: TensorDict, places_BT: torch.Tensor) -> TensorDict:
    masks = {
        name: torch.where(places_BT.to(batch[name].device), batch[name], 0)
        for name in CUT_MASKS
        if name in batch
    }
    return TensorDict({**dict(batch.items()), **masks}, batch_size=batch.batch_size)


def rows_added(
    kept: Sequence[torch.Tensor], rows: Sequence[Sequence[int]], *, size: int
) -> torch.Tensor:
    """Sum of the results of parts by row, [size, ...]: each is 0 outside its places."""
    whole = kept[0].new_zeros((size, *kept[0].shape[1:]))
    for result, numbers in zip(kept, rows, strict=True):
        if numbers:
            whole[torch.as_tensor(numbers, device=whole.device)] += result
    return whole


def rows_in_order(
    kept: Sequence[torch.Tensor], rows: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Results of micro-batches, one entry a row, in the row order of the whole batch."""
    numbers = torch.tensor([row for part in rows for row in part], dtype=torch.long)
    if bool((numbers[1:] > numbers[:-1]).all()):
        return list(kept)
    whole = torch.cat(list(kept))
    return [whole[numbers.argsort().to(whole.device)]]
