"""Divides the samples of a step among ranks with equal work and few transfers, and computes each
rank's transfers. On request, counts are equal or groups stay whole.

Only the surplus moves. A rank may have up to 2 % more work than the mean. A rank above that limit
gives away the rows with the fewest bytes that bring it below; they go to the ranks with the least
work. If whole rows do not fit so closely, heavy and light ranks exchange some. Karmarkar and Karp's
method, which ignores where rows are, is the fallback. Its parts are used if a rank is still more
than 2 % above the mean and has more work than under that method; each part goes to the rank that
holds most of it. Inputs and outputs are plain numbers; the module is deterministic and does not
need torch.

Left out: machines. A row that moves to a neighbouring rank costs as much here as one that moves to
another machine.
"""

# N row, M row of one rank

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siirl.data_coordinator.balance import (
    EXCHANGES_PER_PART,
    exchange_rows,
    get_seqlen_balanced_partitions,
    pairs_to_try,
)
from siirl.data_coordinator.queues import PartitionRequest, QueuedSample, Transfers
from siirl.errors import ConfigError

GROUP = "index"  # the column that holds the group id
# The summed FLOPs of a step's rows are scaled to this many units, so that sums are exact in 64 bits
WORK_UNITS = 2**40
Integers = NDArray[np.int64]
# A step waits for the rank with the most work. Balancing more closely than this share costs more
# than it saves, because a row's bytes are packed, sent and unpacked.
TOLERANCE = 0.02
NOWHERE = -1
"""Home of a row that no rank holds and that always moves."""
# largest number of rows of a rank for which pairs of rows are also tried; larger ranks have enough
# single rows
PAIRS_UP_TO = 64


def partition_with_few_transfers(
    *,
    work_N: Integers,
    bytes_N: Integers,
    home_N: Integers,
    parts: int,
    equal_counts: bool = False,
) -> Integers:
    """The part of each row, int64 [N].

    Args:
        work_N: Work of each row, none negative.
        bytes_N: Bytes to send if a row moves.
        home_N: The part that holds a row, or `NOWHERE`.
        parts: Number of parts.
        equal_counts: Whether each part gets N / `parts` rows; N must then be a multiple of `parts`.
    """
    cap = largest_load(work_N, parts=parts)
    part_N = _move_surplus(
        work_N=work_N,
        bytes_N=bytes_N,
        home_N=home_N,
        parts=parts,
        cap=cap,
        quota=len(work_N) // parts if equal_counts else None,
    )
    heaviest = _loads(part_N, work_N, parts=parts).max(initial=0)
    if heaviest <= cap:
        return part_N
    by_work = get_seqlen_balanced_partitions(work_N.tolist(), parts, equal_counts)
    balanced_N = _nearest_labels(by_work, bytes_N=bytes_N, home_N=home_N, parts=parts)
    at_best = _loads(balanced_N, work_N, parts=parts).max(initial=0)
    return part_N if heaviest <= at_best else balanced_N


def largest_load(work_N: Integers, *, parts: int) -> int:
    """Work that no part should exceed: `TOLERANCE` above the mean, or the heaviest row."""
    mean = int(work_N.sum()) / parts
    return max(int(mean * (1 + TOLERANCE)), -int(-mean // 1), int(work_N.max(initial=0)))


def fewest_bytes(work_M: Integers, bytes_M: Integers, *, need: int) -> Integers:
    """Positions of rows with at least `need` work together and few bytes.

    Rows with much work per byte are taken first, until one more would be too much. The missing work
    then comes from one more row, or from one that replaces another. Single rows and pairs that
    suffice alone are considered too.
    """
    order_M = np.lexsort((-work_M, bytes_M / np.maximum(work_M, 1)))
    taken = []
    left = []
    missing = need
    for row, work in zip(order_M.tolist(), work_M[order_M].tolist(), strict=True):
        if 0 < work <= missing:
            taken.append(row)
            missing -= work
        else:
            left.append(row)
    if missing <= 0:
        return np.array(taken, np.int64)
    choices = [
        *_one_more(taken, left, work_M, bytes_M, missing),
        *_replaced(taken, left, work_M, bytes_M, missing),
        *_one_or_two(work_M, bytes_M, need),
    ]
    return np.array(min(choices, key=lambda rows: int(bytes_M[rows].sum())), np.int64)


def _one_more(
    taken: list[int], left: list[int], work_M: Integers, bytes_M: Integers, missing: int
) -> Iterable[list[int]]:
    left_L = np.array(left, np.int64)
    enough = left_L[work_M[left_L] >= missing]
    if len(enough):
        yield [*taken, int(enough[bytes_M[enough].argmin()])]


def _replaced(
    taken: list[int], left: list[int], work_M: Integers, bytes_M: Integers, missing: int
) -> Iterable[list[int]]:
    if not taken or not left:
        return
    gained = work_M[left][None, :] - work_M[taken][:, None]
    cost = np.where(
        gained >= missing, bytes_M[left][None, :] - bytes_M[taken][:, None], np.iinfo(np.int64).max
    )
    out, in_ = np.unravel_index(int(cost.argmin()), cost.shape)
    if gained[out, in_] >= missing:
        yield [*taken[:out], *taken[out + 1 :], left[in_]]


def _one_or_two(work_M: Integers, bytes_M: Integers, need: int) -> Iterable[list[int]]:
    enough = np.flatnonzero(work_M >= need)
    if len(enough):
        yield [int(enough[bytes_M[enough].argmin()])]
    if not 2 <= len(work_M) <= PAIRS_UP_TO:
        return
    first, second = np.triu_indices(len(work_M), k=1)
    fits = np.flatnonzero(work_M[first] + work_M[second] >= need)
    if len(fits):
        best = fits[(bytes_M[first] + bytes_M[second])[fits].argmin()]
        yield [int(first[best]), int(second[best])]


def _move_surplus(
    *,
    work_N: Integers,
    bytes_N: Integers,
    home_N: Integers,
    parts: int,
    cap: int,
    quota: int | None,
) -> Integers:
    part_N = np.where((home_N >= 0) & (home_N < parts), home_N, NOWHERE)
    loads = _loads(part_N, work_N, parts=parts)
    for part, rows in enumerate(_rows_of_parts(part_N, parts=parts)):
        if quota is not None and len(rows) > quota:
            given = _window(work_N[rows], count=len(rows) - quota, wanted=int(work_N.sum()) / parts)
        elif quota is None and loads[part] > cap:
            given = fewest_bytes(work_N[rows], bytes_N[rows], need=int(loads[part]) - cap)
        else:
            continue
        part_N[rows[given]] = NOWHERE
    _fill_lightest(part_N, work_N, parts=parts, quota=quota)
    return _exchange(part_N, work_N, parts=parts, cap=cap, equal_counts=quota is not None)


def _window(work_M: Integers, *, count: int, wanted: float) -> Integers:
    """`count` rows of adjacent work whose removal brings the rest closest to `wanted`."""
    order = np.argsort(work_M, kind="stable")
    before = np.concatenate([[0], np.cumsum(work_M[order])])
    stays = before[-1] - (before[count:] - before[:-count])
    start = int(np.abs(stays - wanted).argmin())
    return order[start : start + count]


def _fill_lightest(part_N: Integers, work_N: Integers, *, parts: int, quota: int | None) -> None:
    """Give each row without a part, heaviest first, to the least loaded part that has room."""
    homeless = np.flatnonzero(part_N == NOWHERE)
    placed_N = part_N[part_N != NOWHERE]
    room = np.full(parts, len(part_N)) if quota is None else quota - _counts(placed_N, parts=parts)
    loads = _loads(part_N, work_N, parts=parts)
    lightest = [(int(loads[part]), part) for part in range(parts) if room[part] > 0]
    heapq.heapify(lightest)
    for row in homeless[np.argsort(-work_N[homeless], kind="stable")].tolist():
        load, part = heapq.heappop(lightest)
        part_N[row] = part
        room[part] -= 1
        if room[part] > 0:
            heapq.heappush(lightest, (load + int(work_N[row]), part))


def _exchange(
    part_N: Integers, work_N: Integers, *, parts: int, cap: int, equal_counts: bool
) -> Integers:
    """Exchange rows between heavy and light parts until all are below `cap` or none helps."""
    sums = _loads(part_N, work_N, parts=parts)
    if sums.max(initial=0) <= cap:
        return part_N
    rows = [part.tolist() for part in _rows_of_parts(part_N, parts=parts)]
    for _ in range(EXCHANGES_PER_PART * parts):
        if sums.max() <= cap or not any(
            exchange_rows(rows, sums, work_N, heavy, light, equal_size=equal_counts)
            for heavy, light in pairs_to_try(sums)
        ):
            break
    for part, members in enumerate(rows):
        part_N[members] = part
    return part_N


def _nearest_labels(
    by_work: Sequence[Sequence[int]], *, bytes_N: Integers, home_N: Integers, parts: int
) -> Integers:
    """Number parts greedily, so that each rank gets the part of which it holds most bytes."""
    group_N = np.empty(len(bytes_N), np.int64)
    for group, rows in enumerate(by_work):
        group_N[list(rows)] = group
    at_home = np.flatnonzero((home_N >= 0) & (home_N < parts))
    pairs, pair_of_row = np.unique(group_N[at_home] * parts + home_N[at_home], return_inverse=True)
    held = np.bincount(pair_of_row, weights=bytes_N[at_home], minlength=len(pairs))
    label: dict[int, int] = {}
    free = set(range(parts))
    for pair in pairs[np.lexsort((pairs, -held))].tolist():
        group, home = divmod(pair, parts)
        if group not in label and home in free:
            label[group] = home
            free.discard(home)
    rest = iter(sorted(free))
    return np.array(
        [label[group] if group in label else next(rest) for group in range(parts)], np.int64
    )[group_N]


def _rows_of_parts(part_N: Integers, *, parts: int) -> list[Integers]:
    """Ascending rows of each part; rows that no rank holds are in no part."""
    order = np.argsort(part_N, kind="stable")
    ends = np.searchsorted(part_N[order], np.arange(parts + 1))
    return [order[begin:end] for begin, end in pairwise(ends.tolist())]


def _loads(part_N: Integers, work_N: Integers, *, parts: int) -> Integers:
    loads = np.zeros(parts, np.int64)
    placed = part_N != NOWHERE
    np.add.at(loads, part_N[placed], work_N[placed])
    return loads


def _counts(part_N: Integers, *, parts: int) -> Integers:
    return np.bincount(part_N, minlength=parts)


def divide(
    entries: Sequence[QueuedSample], request: PartitionRequest
) -> tuple[list[list[QueuedSample]], list[QueuedSample]]:
    """Divide `entries`, oldest first.

    Returns:
        Each rank's part, in the order of `entries`, and the youngest entries, left over by equal
        counts.
    """
    bundles = _groups(entries) if request.keep_groups else [[entry] for entry in entries]
    usable = (
        len(bundles) - len(bundles) % request.partitions if request.equal_counts else len(bundles)
    )
    work, used = _work(entries), bundles[:usable]
    part_N = partition_with_few_transfers(
        work_N=np.array([sum(work[entry.order] for entry in bundle) for bundle in used], np.int64),
        bytes_N=np.array([sum(map(_size, bundle)) for bundle in used], np.int64),
        home_N=_homes(used, parts=request.partitions),
        parts=request.partitions,
        equal_counts=request.equal_counts,
    )
    parts: list[list[QueuedSample]] = [[] for _ in range(request.partitions)]
    for bundle, part in zip(used, part_N.tolist(), strict=True):
        parts[part].extend(bundle)
    left_over = [entry for bundle in bundles[usable:] for entry in bundle]
    return [sorted(part) for part in parts], left_over


def transfers(
    parts: Sequence[Sequence[QueuedSample]], left_over: Sequence[QueuedSample], *, sources: int
) -> list[Transfers]:
    """The transfers of each rank after which rank r has `parts[r]`."""
    ranks = max(sources, len(parts))
    leaving: list[dict[int, list[str]]] = [defaultdict(list) for _ in range(ranks)]
    arriving: list[dict[int, list[str]]] = [defaultdict(list) for _ in range(ranks)]
    fetched: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for rank, part in enumerate(parts):
        for entry in part:
            if entry.ref is not None or entry.source is None:
                fetched[rank][entry.info.uid] = entry.ref
            elif entry.source != rank:
                leaving[entry.source][rank].append(entry.info.uid)
                arriving[rank][entry.source].append(entry.info.uid)
    kept: list[list[str]] = [[] for _ in range(ranks)]
    for entry in left_over:
        if entry.ref is None and entry.source is not None:
            kept[entry.source].append(entry.info.uid)
    exchange = any(leaving) or any(kept)
    return [
        Transfers(dict(leaving[rank]), dict(arriving[rank]), fetched[rank], kept[rank], exchange)
        for rank in range(ranks)
    ]


def _work(entries: Sequence[QueuedSample]) -> dict[tuple[int, int, int], int]:
    """Work of each entry in whole units: FLOPs if all are known, else tokens."""
    flops = sum(entry.info.flops for entry in entries)
    if not all(entry.info.flops for entry in entries) or not flops:
        return {entry.order: max(1, entry.info.sum_tokens) for entry in entries}
    unit = flops / WORK_UNITS
    return {entry.order: max(1, round(entry.info.flops / unit)) for entry in entries}


def _size(entry: QueuedSample) -> int:
    """Bytes of an entry; its tokens if they are unknown."""
    return entry.info.size or max(1, entry.info.sum_tokens)


def _homes(bundles: Sequence[Sequence[QueuedSample]], *, parts: int) -> Integers:
    """The rank that holds most bytes of each bundle."""
    homes = []
    for bundle in bundles:
        held: dict[int, int] = defaultdict(int)
        for entry in bundle:
            if entry.source is not None and entry.source < parts:
                held[entry.source] += _size(entry)
        homes.append(max(held, key=lambda rank: (held[rank], -rank), default=NOWHERE))
    return np.array(homes, np.int64)


def _groups(entries: Sequence[QueuedSample]) -> list[list[QueuedSample]]:
    """Entries by group id, in the order of each group's first."""
    groups: dict[object, list[QueuedSample]] = {}
    for entry in entries:
        if GROUP not in entry.info.dict_info:
            raise ConfigError(
                f"keep_groups needs the group id, but sample {entry.info.uid!r} has no {GROUP!r} "
                "in dict_info."
            )
        groups.setdefault(entry.info.dict_info[GROUP], []).append(entry)
    return list(groups.values())
