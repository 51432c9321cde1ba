"""Divide the samples of a step among ranks: same work each; equal counts and whole groups where
asked for; near their origin.
"""

from collections import Counter
from collections.abc import Sequence

from siirl.data_coordinator.balance import get_seqlen_balanced_partitions
from siirl.data_coordinator.queues import Entry, PartitionRequest
from siirl.errors import ConfigError

GROUP = "index"  # the column that holds the group id


def divide(
    entries: Sequence[Entry], request: PartitionRequest
) -> tuple[list[list[Entry]], list[Entry]]:
    """Divide `entries`, oldest first.

    Returns:
        For each rank its part, in the order of `entries`; and the youngest entries, which equal
        counts leave over.
    """
    bundles = _groups(entries) if request.keep_groups else [[entry] for entry in entries]
    usable = (
        len(bundles) - len(bundles) % request.partitions if request.equal_counts else len(bundles)
    )
    work = [sum(max(1, entry.info.sum_tokens) for entry in bundle) for bundle in bundles[:usable]]
    positions = get_seqlen_balanced_partitions(
        work, request.partitions, equal_size=request.equal_counts
    )
    parts = [
        sorted(entry for position in part for entry in bundles[position]) for part in positions
    ]
    return _near_origin(parts), [entry for bundle in bundles[usable:] for entry in bundle]


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries by group id, in the order of each group's first."""
    groups: dict[object, list[Entry]] = {}
    for entry in entries:
        if GROUP not in entry.info.dict_info:
            raise ConfigError(
                f"keep_groups needs the group id, but sample {entry.info.uid!r} has no {GROUP!r} in dict_info."
            )
        groups.setdefault(entry.info.dict_info[GROUP], []).append(entry)
    return list(groups.values())


def _near_origin(parts: list[list[Entry]]) -> list[list[Entry]]:
    """Number the parts so that ranks get samples which they made themselves, greedily: those need
    not travel.
    """
    at_home = Counter(
        (part, entry.source) for part, entries in enumerate(parts) for entry in entries
    )
    part_of_rank: dict[int, int] = {}
    placed: set[int] = set()
    ranked = sorted(
        at_home.items(),
        key=lambda item: (-item[1], item[0][0], -1 if item[0][1] is None else item[0][1]),
    )
    for (part, source), _ in ranked:
        if (
            source is not None
            and source < len(parts)
            and source not in part_of_rank
            and part not in placed
        ):
            part_of_rank[source] = part
            placed.add(part)
    homeless = (part for part in range(len(parts)) if part not in placed)
    return [
        parts[part_of_rank[rank]] if rank in part_of_rank else parts[next(homeless)]
        for rank in range(len(parts))
    ]
