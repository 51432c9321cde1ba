"""Micro-batches of a rank's rows: of a fixed number of rows, or within a budget of tokens."""

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


def rows_in_order(
    kept: Sequence[torch.Tensor], rows: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Results of micro-batches, one entry a row, in the row order of the whole batch."""
    numbers = torch.tensor([row for part in rows for row in part], dtype=torch.long)
    if bool((numbers[1:] > numbers[:-1]).all()):
        return list(kept)
    whole = torch.cat(list(kept))
    return [whole[numbers.argsort().to(whole.device)]]
