"""Leases: which rank holds which samples, and until when."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from siirl.data_coordinator.queues import QueuedSample, QueueKey
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import InvariantError


@dataclass(frozen=True)
class Lease:
    """Samples that a worker has taken and must acknowledge."""

    lease_id: int
    key: QueueKey
    holder: str
    infos: tuple[SampleInfo, ...]
    refs: tuple[Any, ...]


@dataclass
class _Record:
    lease: Lease
    entries: list[QueuedSample]
    rank: int | None
    deadline: float


class LeaseBook:
    """Open leases, found by id, by holder and by deadline."""

    def __init__(self, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.num_samples = 0
        self._records: dict[int, _Record] = {}
        self._by_holder: dict[str, set[int]] = {}
        self._deadlines: list[
            tuple[float, int]
        ] = []  # a heap; entries of closed or renewed leases are dropped when they reach the top
        self._opened = 0

    def open(
        self,
        key: QueueKey,
        *,
        holder: str,
        entries: Sequence[QueuedSample],
        rank: int | None,
        now: float,
    ) -> Lease:
        """Lease `entries`; `rank` owns them as part of a divided step, or is None for a stream."""
        self._opened += 1
        infos = tuple(entry.info for entry in entries)
        refs = tuple(entry.ref for entry in entries)
        lease = Lease(self._opened, key, holder, infos, refs)
        self._records[lease.lease_id] = _Record(lease, list(entries), rank, deadline=0.0)
        self._by_holder.setdefault(holder, set()).add(lease.lease_id)
        self.num_samples += len(entries)
        return self.renew(lease.lease_id, now=now)

    def renew(self, lease_id: int, *, now: float) -> Lease:
        """Restart the lease's time."""
        record, deadline = self._records[lease_id], now + self.lease_seconds
        if record.deadline != deadline:  # one heap entry per deadline: two would expire together
            record.deadline = deadline
            heapq.heappush(self._deadlines, (deadline, lease_id))
        return record.lease

    def close(self, lease_id: int) -> tuple[Lease, list[QueuedSample], int | None]:
        """Remove an open lease.

        Raises:
            InvariantError: It is not open: it was closed before, or has expired.
        """
        record = self._records.pop(lease_id, None)
        if record is None:
            raise InvariantError(
                f"Lease {lease_id} is not open: it was already acknowledged, or returned after "
                f"{self.lease_seconds:g} s or its holder's death. Another worker may have its "
                "samples: do not train on them."
            )
        held = self._by_holder[record.lease.holder]
        held.discard(lease_id)
        if not held:
            del self._by_holder[record.lease.holder]
        self.num_samples -= len(record.entries)
        return record.lease, record.entries, record.rank

    def of_holder(self, holder: str) -> list[int]:
        """Open leases of a worker."""
        return sorted(self._by_holder.get(holder, ()))

    def past(self, now: float) -> list[int]:
        """Open leases whose deadline has passed."""
        over = []
        while (deadline := self._next_deadline()) is not None and deadline <= now:
            over.append(heapq.heappop(self._deadlines)[1])
        return over

    def seconds_to_next(self, now: float) -> float | None:
        """Time until the first open lease expires; None without leases."""
        deadline = self._next_deadline()
        return None if deadline is None else max(0.0, deadline - now)

    def _next_deadline(self) -> float | None:
        while self._deadlines:
            deadline, lease_id = self._deadlines[0]
            record = self._records.get(lease_id)
            if record is not None and record.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None
