"""Cuts a batch into mini-batches, one per optimiser step, and these into micro-batches.

A mini-batch is drawn from the rows of *all* ranks, in the order of their unique ids, by a generator
with the same state on every rank. One rank and four therefore take the same optimiser steps. The
cost: a rank may own more rows of one mini-batch and fewer of the next, and the other ranks wait for
the one with the most.

A micro-batch goes through the module in one pass: a fixed number of rows, rows within a token
budget, or parts of rows. The gradient does not depend on the cut.
"""

# B row, P prompt token, T response token, R row of any rank

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from siirl.algos.tensor_checks import as_bool_mask
from siirl.data_coordinator.balance import micro_batches_by_budget
from siirl.data_coordinator.protocol.batch import without_texts
from siirl.engine.training.collectives import Collectives, raise_on_all_ranks
from siirl.errors import ConfigError
from siirl.occupation import OCCUPATION

RowOwners = list[tuple[str, int, int]]
"""Id, rank and row index of each row."""


def mini_batch_rows(
    *,
    batch: TensorDict,
    rows: int,
    ranks: Collectives,
    generator: torch.Generator,
    owned: RowOwners | None = None,
) -> list[torch.Tensor]:
    """Row indices of this rank in each mini-batch.

    Every rank gets the same number of lists; some may be empty. The rows of all ranks are cut
    evenly into the fewest parts of at most `rows`. 40 rows in mini-batches of 32 make two of 20,
    because a small remainder would be a noisy step.

    Args:
        batch: This rank's rows, with the column `uid` if ids are known; otherwise rows are in the
            order of ranks.
        rows: Rows of a mini-batch, over all ranks.
        ranks: The ranks that share the rows.
        generator: Drawn from only if there is more than one mini-batch.
        owned: `rows_by_id` of the batch, shared by several epochs; None: gather it.
    """
    owned = rows_by_id(batch, ranks) if owned is None else owned
    parts = max(1, -(-len(owned) // rows))
    if parts == 1:
        return [torch.arange(len(batch))]
    order_R = torch.randperm(len(owned), generator=generator)
    mini_batches = []
    for part in order_R.tensor_split(parts):
        chosen = [owned[i] for i in part.tolist()]
        mine = sorted(row for _, rank, row in chosen if rank == ranks.rank)
        mini_batches.append(torch.tensor(mine, dtype=torch.long))
    return mini_batches


def row_places(*, batch: TensorDict, ranks: Collectives) -> torch.Tensor:
    """Position of this rank's rows among the rows of all ranks in order of ids, int64 [B]."""
    places_B = torch.zeros(len(batch), dtype=torch.long)
    for place, (_, rank, row) in enumerate(rows_by_id(batch, ranks)):
        if rank == ranks.rank:
            places_B[row] = place
    return places_B


def rows_by_id(batch: TensorDict, ranks: Collectives) -> RowOwners:
    """The rows of all ranks in the order of their ids; every rank calls it."""
    ids = list(batch["uid"]) if "uid" in batch else [""] * len(batch)
    everywhere = ranks.gather_objects(ids)
    owners: RowOwners = []
    for rank, uids in enumerate(everywhere):
        owners += [(uid, rank, row) for row, uid in enumerate(uids)]
    return sorted(owners)


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
    """Positions of some rows that go through the module together; other positions are masked."""

    rows: Sequence[int]
    """Ascending row indices."""
    places_BT: torch.Tensor
    """Bool, one row for each of `rows`."""


RowCutting = Callable[[TensorDict], Sequence[Part]]
"""Cuts the rows of a batch into parts; every kept token is in exactly one."""
MASKS = ("response_mask", "value_mask")


class MicroBatches:
    """Cuts this rank's rows into micro-batches, equally many on each rank.

    Args:
        size: Rows of a micro-batch.
        tokens: Tokens of a micro-batch, whatever its number of rows; None: count rows.
        prefix_groups: Groups that a micro-batch does not split; None: no groups.
        cut: Cuts rows into parts, which are then the micro-batches; None: rows stay whole.
        ranks: The processes that train together.
        device: Device of the micro-batches.

    Raises:
        ConfigError: `size` or `tokens` below 1.
    """

    def __init__(
        self,
        *,
        size: int,
        tokens: int | None,
        prefix_groups: PrefixGrouping | None,
        cut: RowCutting | None,
        ranks: Collectives,
        device: torch.device,
    ) -> None:
        if size < 1:
            raise ConfigError(f"micro_batch_size={size} must be at least 1.")
        if tokens is not None and tokens < 1:
            raise ConfigError(f"micro_batch_tokens={tokens} must be at least 1.")
        self.size = size
        self.tokens = tokens
        self.prefix_groups = prefix_groups
        self.cut = cut
        self.ranks = ranks
        self.device = device

    def of(self, batch: TensorDict) -> Iterator[tuple[TensorDict, Sequence[int], bool]]:
        """Micro-batches on the device, with their row indices, and whether each is the last.

        There is at least one. Dummy micro-batches that keep ranks in step carry no row indices:
        they repeat a row, or hold zeros on an empty rank.
        """
        batch = without_texts(batch)
        parts = self._parts(batch)
        count = max(1, int(self.ranks.maximum(torch.tensor(len(parts)))))
        for number, part in enumerate(parts, start=1):
            OCCUPATION.record_progress()
            if isinstance(part, Part):
                yield take_part(batch, part).to(self.device), part.rows, number == count
            else:
                yield take_rows(batch, part).to(self.device), part, number == count
        for number in range(len(parts) + 1, count + 1):
            yield self._dummy(batch).to(self.device), (), number == count

    def _dummy(self, batch: TensorDict) -> TensorDict:
        """A micro-batch for a rank that has fewer of them than another."""
        row = batch[:1] if len(batch) else row_of_zeros(batch)
        return row if self.cut is None else without_places(row)

    def _parts(self, batch: TensorDict) -> Sequence[Sequence[int] | Part]:
        if self.cut is not None:
            return self.cut(batch) if len(batch) else []
        if self.tokens is None:  # cannot fail, so the ranks need not meet
            return micro_batch_rows(batch, rows=self.size, tokens=None)
        with raise_on_all_ranks(self.ranks):
            return micro_batch_rows(
                batch, rows=self.size, tokens=self.tokens, prefix_groups=self.prefix_groups
            )


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
    micro_batches: list[Sequence[int]] = []
    for part in filter(None, parts):
        micro_batches.append(sorted(row for number in part for row in groups[number].rows))
    return micro_batches


def _single_rows(batch: TensorDict, budget: int) -> list[RowGroup]:
    return [
        RowGroup(rows=(row,), tokens=length)
        for row, length in enumerate(row_lengths(batch).tolist())
    ]


def row_lengths(batch: TensorDict) -> torch.Tensor:
    """Tokens of each row, int64 [B].

    With `attention_mask`, all tokens that the model sees; otherwise those of the response.
    """
    mask = batch["attention_mask"] if "attention_mask" in batch else batch["response_mask"]
    return mask.sum(1).long()


def with_bool_masks(batch: TensorDict, *, ranks: Collectives) -> TensorDict:
    """The same columns with masks as booleans, checked once instead of in every mini-batch.

    Every rank calls it.

    Raises:
        TensorError: A mask of this rank with values other than 0 and 1; InvariantError on the
            others.
    """
    with raise_on_all_ranks(ranks):
        masks = {name: as_bool_mask(batch[name], name=name) for name in MASKS if name in batch}
    return TensorDict({**dict(batch.items()), **masks}, batch_size=batch.batch_size)


def take_rows(batch: TensorDict, rows: Sequence[int] | torch.Tensor) -> TensorDict:
    """Rows with these ascending indices; all of them are the batch itself.

    Consecutive rows are a view, because images are large.
    """
    count = len(rows)
    if count == len(batch):
        return batch
    if count == 0:
        return batch[:0]
    first = int(rows[0])
    last = int(rows[-1])
    if last - first + 1 == count:
        return batch[first : last + 1]
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
        name: torch.where(places_BT.to(batch[name].device), batch[name], False)
        for name in MASKS
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
    """Results of micro-batches, one entry per row, in the row order of the whole batch."""
    numbers = torch.tensor([row for part in rows for row in part], dtype=torch.long)
    if bool((numbers[1:] > numbers[:-1]).all()):
        return list(kept)
    whole = torch.cat(list(kept))
    return [whole[numbers.argsort().to(whole.device)]]


def row_of_zeros(empty: TensorDict) -> TensorDict:
    """One row of zeros with the tensor columns of a batch without rows."""
    columns = {name: value for name, value in empty.items() if isinstance(value, torch.Tensor)}
    return TensorDict(
        {name: value.new_zeros((1, *value.shape[1:])) for name, value in columns.items()},
        batch_size=[1],
    )
