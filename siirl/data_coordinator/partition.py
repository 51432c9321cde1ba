"""Divides the samples of a step among ranks with equal work and few transfers, on request with
equal counts and whole groups; computes each rank's transfers.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from siirl.data_coordinator.near_home import NOWHERE, Integers, partition_near_home
from siirl.data_coordinator.queues import Entry, PartitionRequest, Transfers
from siirl.errors import ConfigError

GROUP = "index"  # the column that holds the group id
# The summed FLOPs of a step's rows are scaled to this many units, so that sums are exact in 64 bits
WORK_UNITS = 2**40


def divide(
    entries: Sequence[Entry], request: PartitionRequest
) -> tuple[list[list[Entry]], list[Entry]]:
    """Divide `entries`, oldest first.

    Returns:
        Each rank's part, in the order of `entries`, and the youngest entries, which equal counts
        leave over.
    """
    bundles = _groups(entries) if request.keep_groups else [[entry] for entry in entries]
    usable = (
        len(bundles) - len(bundles) % request.partitions if request.equal_counts else len(bundles)
    )
    work, used = _work(entries), bundles[:usable]
    part_N = partition_near_home(
        work_N=np.array([sum(work[entry.order] for entry in bundle) for bundle in used], np.int64),
        bytes_N=np.array([sum(map(_size, bundle)) for bundle in used], np.int64),
        home_N=_homes(used, parts=request.partitions),
        parts=request.partitions,
        equal_counts=request.equal_counts,
    )
    parts: list[list[Entry]] = [[] for _ in range(request.partitions)]
    for bundle, part in zip(used, part_N.tolist(), strict=True):
        parts[part].extend(bundle)
    return [sorted(part) for part in parts], [
        entry for bundle in bundles[usable:] for entry in bundle
    ]


def transfers(
    parts: Sequence[Sequence[Entry]], left_over: Sequence[Entry], *, sources: int
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


def _work(entries: Sequence[Entry]) -> dict[tuple[int, int, int], int]:
    """Work of each entry in whole units: FLOPs if all are known, else tokens."""
    flops = sum(entry.info.flops for entry in entries)
    if not all(entry.info.flops for entry in entries) or not flops:
        return {entry.order: max(1, entry.info.sum_tokens) for entry in entries}
    unit = flops / WORK_UNITS
    return {entry.order: max(1, round(entry.info.flops / unit)) for entry in entries}


def _size(entry: Entry) -> int:
    """Bytes of an entry; its tokens if they are unknown."""
    return entry.info.size or max(1, entry.info.sum_tokens)


def _homes(bundles: Sequence[Sequence[Entry]], *, parts: int) -> Integers:
    """The rank that holds most bytes of each bundle."""
    homes = []
    for bundle in bundles:
        held: dict[int, int] = defaultdict(int)
        for entry in bundle:
            if entry.source is not None and entry.source < parts:
                held[entry.source] += _size(entry)
        homes.append(max(held, key=lambda rank: (held[rank], -rank), default=NOWHERE))
    return np.array(homes, np.int64)


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries by group id, in the order of each group's first."""
    groups: dict[object, list[Entry]] = {}
    for entry in entries:
        if GROUP not in entry.info.dict_info:
            raise ConfigError(
                f"keep_groups needs the group id, but sample {entry.info.uid!r} has no {GROUP!r} "
                "in dict_info."
            )
        groups.setdefault(entry.info.dict_info[GROUP], []).append(entry)
    return list(groups.values())
