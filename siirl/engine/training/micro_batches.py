"""Which rows of a rank's batch go through the module together: so many rows, or so many tokens."""

# B row, P prompt token, T response token

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from siirl.data_coordinator.balance import micro_batches_by_budget
from siirl.errors import ConfigError


@dataclass(frozen=True)
class Unit:
    """Rows that go through the module together, and what they cost."""

    rows: tuple[int, ...]
    tokens: int


Units = Callable[[TensorDict, int], Sequence[Unit]]
"""Divides the rows of a batch into units, of which those of several rows keep to a budget of
tokens.
"""


def micro_batch_rows(
    batch: TensorDict, *, rows: int, tokens: int | None, units: Units | None = None
) -> list[Sequence[int]]:
    """Row numbers of each micro-batch, ascending in each; every row is in one.

    Args:
        batch: With `attention_mask` [B, P + T] or `response_mask` [B, T] where tokens are counted.
        rows: Rows of a micro-batch, in their order; not read where there is a budget of tokens.
        tokens: Tokens of a micro-batch, of units that make the micro-batches as equal as can be;
            None: by rows.
        units: Which rows are not to be parted where tokens are counted; None: each is a unit of its
            own.

    Raises:
        ConfigError: A row with more tokens than the budget.
    """
    if tokens is None:
        return [range(start, min(start + rows, len(batch))) for start in range(0, len(batch), rows)]
    found = (units or _single_rows)(batch, tokens)
    try:
        parts = micro_batches_by_budget([unit.tokens for unit in found], tokens)
        return [
            sorted(row for number in part for row in found[number].rows) for part in parts if part
        ]
    except ConfigError as error:
        raise ConfigError(f"{error} It is actor_rollout_ref.actor.micro_batch_tokens.") from error


def _single_rows(batch: TensorDict, budget: int) -> list[Unit]:
    return [
        Unit(rows=(row,), tokens=length) for row, length in enumerate(row_lengths(batch).tolist())
    ]


def row_lengths(batch: TensorDict) -> torch.Tensor:
    """Tokens of each row, int64 [B]: all that the model sees where a mask tells them, else those
    that it said.
    """
    mask = batch["attention_mask"] if "attention_mask" in batch else batch["response_mask"]
    return mask.sum(1).long()


def take_rows(batch: TensorDict, rows: Sequence[int]) -> TensorDict:
    """Rows with these ascending numbers; a view where they follow each other, because pictures are
    large.
    """
    if rows[-1] - rows[0] + 1 == len(rows):
        return batch[rows[0] : rows[-1] + 1]
    return batch[torch.as_tensor(rows)]


def rows_in_order(
    kept: Sequence[torch.Tensor], rows: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """What was kept of each micro-batch, one entry a row, in the order of the whole batch's rows."""
    numbers = torch.tensor([row for part in rows for row in part], dtype=torch.long)
    if bool((numbers[1:] > numbers[:-1]).all()):
        return list(kept)
    whole = torch.cat(list(kept))
    return [whole[numbers.argsort().to(whole.device)]]
