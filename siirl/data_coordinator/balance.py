"""Divides rows into parts of equal work: partitions for ranks, micro-batches under a token budget.

The k-way largest differencing method of Karmarkar and Karp (1982; k-way after Korf, "Multi-way
number partitioning", 2009), then exchanges between the heaviest and the lightest part. It takes
plain numbers and returns lists of positions; it is deterministic and does not need torch.
"""

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from siirl.errors import ConfigError

Bin = tuple[int, int]  # sum of its lengths, its number
# a partial solution: its filled bins, lightest first; bins beyond these are empty
State = list[Bin]

EXCHANGES_PER_PART = 4  # bounds the time of the refinement; it usually converges earlier
# largest part in which pairs of rows are also exchanged; larger parts have enough single rows to
# choose from
PAIRS_UP_TO = 64
PARTNERS = 8  # parts with which the heaviest and the lightest are compared in each round


def get_seqlen_balanced_partitions(
    seqlen_list: Sequence[int], k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Divide positions 0..n-1 into `k_partitions` parts with nearly equal sums of lengths.

    Args:
        seqlen_list: Length (work) of each row, none negative.
        k_partitions: Number of parts.
        equal_size: Whether every part must have the same number of rows; if not, a part may be
            empty.

    Returns:
        `k_partitions` ascending lists, in the order of their first positions; every position is in
        exactly one.

    Raises:
        ConfigError: `k_partitions` < 1, a negative length, or `equal_size` with a number of rows
            that cannot be divided.
    """
    lengths = [int(length) for length in seqlen_list]
    if k_partitions < 1:
        raise ConfigError(f"k_partitions={k_partitions} must be at least 1.")
    if min(lengths, default=0) < 0:
        raise ConfigError(f"Lengths must not be negative; the smallest is {min(lengths)}.")
    if equal_size and len(lengths) % k_partitions:
        raise ConfigError(
            f"{len(lengths)} rows cannot be divided into {k_partitions} parts of equal size. Leave "
            f"{len(lengths) % k_partitions} out."
        )
    parts = _KarmarkarKarp(lengths, k_partitions, equal_size=equal_size).solve()
    parts = _refine(parts, np.asarray(lengths, dtype=np.int64), equal_size=equal_size)
    return sorted(
        (sorted(part) for part in parts), key=lambda part: part[0] if part else len(lengths)
    )


def micro_batches_by_budget(
    lengths: Sequence[int], max_tokens: int, *, num_batches_divided_by: int = 1
) -> list[list[int]]:
    """Divide positions into few micro-batches of at most `max_tokens` each, and balance them.

    Args:
        lengths: Tokens of each row.
        max_tokens: Budget of a micro-batch.
        num_batches_divided_by: The number of micro-batches is a multiple of this, and some may be
            empty: interleaved pipeline stages take them in groups of equal size (Megatron's
            microbatch_group_size_per_vp_stage). siirl's engines have no such stages and leave it at
            1.

    Raises:
        ConfigError: A row is longer than the budget, or `num_batches_divided_by` < 1.
    """
    multiple = num_batches_divided_by
    if multiple < 1:
        raise ConfigError(f"num_batches_divided_by={multiple} must be at least 1.")
    if lengths and max(lengths) > max_tokens:
        raise ConfigError(
            f"A row of {max(lengths)} tokens exceeds the budget of {max_tokens} tokens per "
            "micro-batch. Raise the budget."
        )
    if sum(lengths) <= max_tokens and multiple == 1:
        return [list(range(len(lengths)))]
    packed = first_fit_decreasing(lengths, max_tokens)
    most = -(-max(len(packed), 1) // multiple) * multiple
    fewest = -(-max(sum(lengths), 1) // max_tokens)
    for count in range(-(-fewest // multiple) * multiple, most + 1, multiple):
        balanced = get_seqlen_balanced_partitions(lengths, count, equal_size=False)
        if max(sum(lengths[position] for position in part) for part in balanced) <= max_tokens:
            return balanced
    return packed + [[] for _ in range(most - len(packed))]


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Positions in bins of at most `capacity`, not balanced; a longer row gets a separate bin.

    First-fit decreasing: each row, longest first, goes into the first bin with room. It needs at
    most about 11/9 of the minimum number of bins (Johnson 1973).
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for position in sorted(
        range(len(lengths)), key=lambda position: (-lengths[position], position)
    ):
        index = next(
            (index for index, free in enumerate(room) if free >= lengths[position]), len(bins)
        )
        if index == len(bins):
            bins.append([])
            room.append(capacity)
        bins[index].append(position)
        room[index] -= lengths[position]
    return [sorted(part) for part in bins]


def spread(parts: Sequence[Sequence[int]], lengths: Sequence[int]) -> int:
    """Heaviest part minus lightest part."""
    sums = [sum(lengths[position] for position in part) for part in parts]
    return max(sums) - min(sums)


class _KarmarkarKarp:
    """The method's state: partial solutions by spread, and rows that are not merged yet.

    The two solutions with the largest spread are merged, heavy bins onto light ones, until one is
    left. With `equal_size` every `count` rows (sorted by length) are one solution from the start,
    one in each bin, so that merging keeps the sizes equal.
    """

    def __init__(self, lengths: Sequence[int], count: int, *, equal_size: bool) -> None:
        self.lengths, self.count = lengths, count
        self.rows_of_bin: list[list[int]] = []
        self.by_spread: list[
            tuple[int, int, State]
        ] = []  # a heap; the second number breaks ties and is unique
        self.pushed = 0
        # the heaviest is taken from the end
        self.rows = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
        if equal_size:
            for start in range(0, len(self.rows), count):
                self._push([self._new_bin(row) for row in self.rows[start : start + count]])
            self.rows = []

    def solve(self) -> list[list[int]]:
        """Rows of each of the `count` bins."""
        while self.rows or len(self.by_spread) > 1:
            state = self._take_largest()
            if self.rows and self.lengths[self.rows[-1]] >= self._largest_spread():
                self._absorb_rows(state)
            elif self.by_spread:
                state = self._merge(state, heapq.heappop(self.by_spread)[2])
            self._push(state)
        last = self.by_spread[0][2] if self.by_spread else []
        return [self.rows_of_bin[bin_] for _, bin_ in last] + [
            [] for _ in range(self.count - len(last))
        ]

    def _take_largest(self) -> State:
        if self.by_spread and (
            not self.rows or self._largest_spread() >= self.lengths[self.rows[-1]]
        ):
            return heapq.heappop(self.by_spread)[2]
        return [self._new_bin(self.rows.pop())]

    def _absorb_rows(self, state: State) -> None:
        """Merge single rows into `state` as long as these two have the largest spreads."""
        rows = self.rows
        lengths = self.lengths
        count = self.count
        rival = self._largest_spread()
        while rows:
            length = lengths[rows[-1]]
            if length < rival or _spread_of(state, count) < max(length, rival):
                return
            if len(state) < count:
                insort(state, self._new_bin(rows.pop()))
            else:
                total, bin_ = state.pop(0)
                self.rows_of_bin[bin_].append(rows.pop())
                insort(state, (total + length, bin_))

    def _merge(self, left: State, right: State) -> State:
        """Merge the heaviest bins of one solution with the lightest of the other, empty ones
        first.
        """
        empty = self.count - len(left)
        heavy_first = right[::-1]
        joined = [
            self._join(light, heavy)
            for light, heavy in zip(left, heavy_first[empty:], strict=False)
        ]
        return sorted(heavy_first[:empty] + joined + left[len(joined) :])

    def _join(self, light: Bin, heavy: Bin) -> Bin:
        kept, moved = (
            (light, heavy)
            if len(self.rows_of_bin[light[1]]) >= len(self.rows_of_bin[heavy[1]])
            else (heavy, light)
        )
        self.rows_of_bin[kept[1]].extend(self.rows_of_bin[moved[1]])
        return light[0] + heavy[0], kept[1]

    def _new_bin(self, row: int) -> Bin:
        self.rows_of_bin.append([row])
        return self.lengths[row], len(self.rows_of_bin) - 1

    def _push(self, state: State) -> None:
        self.pushed += 1
        heapq.heappush(self.by_spread, (-_spread_of(state, self.count), self.pushed, state))

    def _largest_spread(self) -> int:
        return -self.by_spread[0][0] if self.by_spread else -1


def _spread_of(state: State, count: int) -> int:
    return state[-1][0] - (state[0][0] if len(state) == count else 0)


def _refine(
    parts: list[list[int]], lengths: NDArray[np.int64], *, equal_size: bool
) -> list[list[int]]:
    """Exchange rows between a heavy and a light part (or move one, if sizes are free) while that
    narrows the spread.
    """
    sums = np.array([lengths[part].sum() for part in parts], dtype=np.int64)
    for _ in range(EXCHANGES_PER_PART * len(parts)):
        if not any(
            exchange_rows(parts, sums, lengths, heavy, light, equal_size=equal_size)
            for heavy, light in pairs_to_try(sums)
        ):
            break
    return parts


def pairs_to_try(sums: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Heavy and light parts: the heaviest with each of the lightest, then each of the heaviest with
    the lightest.
    """
    order = np.argsort(sums, kind="stable")
    light_first = order[:PARTNERS].tolist()
    heavy_first = order[::-1][:PARTNERS].tolist()
    return [(heavy_first[0], part) for part in light_first] + [
        (part, light_first[0]) for part in heavy_first
    ]


def exchange_rows(
    parts: list[list[int]],
    sums: NDArray[np.int64],
    lengths: NDArray[np.int64],
    heavy: int,
    light: int,
    *,
    equal_size: bool,
) -> bool:
    """Make the best exchange between two parts; False if no exchange narrows their gap."""
    gap = int(sums[heavy] - sums[light])
    found = _best_exchange(lengths[parts[heavy]], lengths[parts[light]], gap, equal_size=equal_size)
    if found is None:
        return False
    given = [parts[heavy][place] for place in found[0]]
    taken = [parts[light][place] for place in found[1]]
    parts[heavy] = [row for row in parts[heavy] if row not in given] + taken
    parts[light] = [row for row in parts[light] if row not in taken] + given
    amount = lengths[given].sum() - lengths[taken].sum()
    sums[heavy] -= amount
    sums[light] += amount
    return True


def _best_exchange(
    heavy: NDArray[np.int64], light: NDArray[np.int64], gap: int, *, equal_size: bool
) -> tuple[list[int], list[int]] | None:
    """Rows to give and rows to take back whose net amount is closest to half the gap.

    Returns:
        Positions in `heavy` and in `light`; None if no amount lies strictly between 0 and the gap.
    """
    if gap < 2:
        return None
    pairs = (1, 2) if max(len(heavy), len(light)) <= PAIRS_UP_TO else (1,)
    sizes = [((size,), (size,)) for size in pairs] if equal_size else [(pairs, (0, *pairs))]
    # No exchange (a net amount of 0) is gap / 2 away from half the gap.
    best: tuple[float, list[int], list[int]] = (gap / 2, [], [])
    for given_sizes, taken_sizes in sizes:
        given, taken = _bundles(heavy, given_sizes), _bundles(light, taken_sizes)
        if not len(given.sums) or not len(taken.sums):
            continue
        order = np.argsort(taken.sums, kind="stable")
        wanted = np.searchsorted(taken.sums[order], given.sums - gap / 2)
        choices = order[
            np.stack([np.clip(wanted - 1, 0, None), np.clip(wanted, None, len(order) - 1)])
        ]
        misses = np.abs(given.sums - taken.sums[choices] - gap / 2)
        side, index = np.unravel_index(int(misses.argmin()), misses.shape)
        if misses[side, index] < best[0]:
            best = (
                float(misses[side, index]),
                given.rows(int(index)),
                taken.rows(int(choices[side, index])),
            )
    return best[1:] if best[1] else None


@dataclass(frozen=True)
class _Bundles:
    """Sets of at most two rows of a part: their sums, and their positions (-1 for none)."""

    sums: NDArray[np.int64]
    positions: NDArray[np.int64]

    def rows(self, index: int) -> list[int]:
        return [int(position) for position in self.positions[index] if position >= 0]


def _bundles(lengths: NDArray[np.int64], sizes: Sequence[int]) -> _Bundles:
    """All sets of rows with one of these sizes (0, 1 or 2)."""
    positions = np.concatenate([_positions(len(lengths), size) for size in sizes])
    padded = np.append(lengths, 0)  # position -1 is the zero at the end
    return _Bundles(sums=padded[positions].sum(axis=1), positions=positions)


def _positions(count: int, size: int) -> NDArray[np.int64]:
    """All sets of `size` positions below `count`, [N, 2], padded with -1."""
    if size == 2:
        return np.stack(np.triu_indices(count, k=1), axis=1).astype(np.int64)
    filled = np.full((count if size else 1, 2), -1, dtype=np.int64)
    filled[:, 0] = np.arange(count) if size else -1
    return filled
