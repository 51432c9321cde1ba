"""The DataCoordinator tracks which samples wait for which node, and which rank has leased them. It
holds metadata and references, never tensors.

Samples are taken from the queue of a (node, step) in two ways. `get_batch` is first come, first
served. `get_partition` waits until every source rank has put its share, divides all samples so that
each rank has the same work, and keeps the remainder for the node's next step. A taken sample is
leased until it is acknowledged; it returns to the queue if its holder dies or the lease expires. So
every sample is in exactly one state: waiting, leased, left over, acknowledged or discarded.

Samples that are put without a reference stay in the memory of the rank that made them; `get_share`
tells each rank which of them it sends and receives.

The class never waits: it answers "not yet" with None or False. `ray_edge` makes it an actor that
waits. The cost of an operation does not depend on other queued samples: none scans other nodes'
queues or other samples of the same rank, and a filter is called once for each sample.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from siirl.data_coordinator.leases import Lease, LeaseBook
from siirl.data_coordinator.partition import divide, transfers
from siirl.data_coordinator.queues import (
    FilterPlugin,
    Leftover,
    NodeQueues,
    PartitionRequest,
    QueuedSample,
    QueueKey,
    Share,
    StepQueue,
    accepts,
)
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import ConfigError, InvariantError

__all__ = ["DEFAULT_CAPACITY", "DEFAULT_LEASE_SECONDS", "DataCoordinator", "FilterPlugin"]

DEFAULT_CAPACITY = 65_536  # samples waiting for one node; metadata takes about 1 kB each
# A lease is acknowledged at the end of its step, and a rank that dies ends the run. So a lease
# lasts longer than any step; the watchdog ends a step that hangs.
DEFAULT_LEASE_SECONDS = 24 * 3600.0


class DataCoordinator:
    """Queues of samples by destination node and step.

    Args:
        capacity: Samples that may wait for one node.
        lease_seconds: Time after which an unacknowledged lease expires.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        capacity: int = DEFAULT_CAPACITY,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1 or lease_seconds <= 0:
            raise ConfigError(
                f"DataCoordinator: capacity={capacity} and lease_seconds={lease_seconds} must be "
                "positive."
            )
        self.capacity = capacity
        self._clock = clock
        self._nodes: dict[str, NodeQueues] = {}
        self._leases = LeaseBook(lease_seconds)
        self._arrivals = 0
        self._acknowledged = 0
        self._discarded = 0

    def put_batch(
        self,
        key: QueueKey,
        sample_infos: Sequence[SampleInfo],
        sample_refs: Sequence[Any],
        *,
        source: int = 0,
        sources: int | None = None,
    ) -> bool:
        """Register samples for a node and step.

        Args:
            key: Destination node and step.
            sample_infos: Metadata; ids must be new in this queue.
            sample_refs: One reference per sample; None for one that stays in the memory of
                `source`.
            source: The rank that puts the samples.
            sources: Number of ranks that each put once, possibly nothing, before `get_partition`;
                None for `get_batch`.

        Returns:
            False if the node's queues are full: try again after samples have been taken. The share
            of a rank for the oldest step of its node is always accepted, because that step cannot
            finish without it.

        Raises:
            InvariantError: A repeated id or source, or samples for a step that is divided already.
        """
        if len(sample_infos) != len(sample_refs):
            raise InvariantError(
                f"{len(sample_infos)} sample infos came with {len(sample_refs)} references for "
                f"{key}."
            )
        node = self._nodes.setdefault(key.node, NodeQueues())
        queue = node.steps.get(key.step) or StepQueue(sources=sources)
        queue.check_put(key, [info.uid for info in sample_infos], source=source, sources=sources)
        oldest = node.oldest_step()
        cannot_wait = sources is not None and (oldest is None or key.step <= oldest)
        if node.waiting and node.waiting + len(sample_infos) > self.capacity and not cannot_wait:
            return False
        node.add_step(key.step, queue)
        for info, ref in zip(sample_infos, sample_refs, strict=True):
            queue.add(
                QueuedSample(
                    order=(key.step, 0 if sources is None else source, self._arrivals),
                    info=info,
                    ref=ref,
                    source=source,
                )
            )
            self._arrivals += 1
        queue.sources_done.add(source)
        node.waiting += len(sample_infos)
        return True

    def get_batch(
        self, key: QueueKey, *, count: int, holder: str, filter_plugin: FilterPlugin | None = None
    ) -> Lease | None:
        """Lease the first `count` samples (of those that the filter accepts); None while there are
        fewer.

        Raises:
            InvariantError: The queue was put with `sources`, for `get_partition`.
        """
        node = self._nodes.get(key.node)
        queue = node.steps.get(key.step) if node else None
        if node is None or queue is None:
            return None
        if queue.sources is not None:
            raise InvariantError(
                f"The samples of {key} were put by {queue.sources} sources to be divided. Take "
                "them with get_partition."
            )
        taken = queue.entries.take(count, filter_plugin)
        if taken is None:
            return None
        node.waiting -= count
        queue.leased += count
        return self._leases.open(key, holder=holder, entries=taken, rank=None, now=self._clock())

    def get_partition(
        self,
        key: QueueKey,
        request: PartitionRequest,
        *,
        rank: int,
        filter_plugin: FilterPlugin | None = None,
    ) -> Lease | None:
        """Lease the part of a step that belongs to `rank`; None until all sources have put and
        older steps of the node are divided.

        The first call divides the samples of this step and the leftovers of earlier steps; samples
        that the filter rejects or the request leaves out become leftovers. A repeated call before
        the acknowledgement returns the same lease.

        Raises:
            InvariantError: The ranks' requests differ, or this rank has acknowledged its part.
            ConfigError: `rank` is not below `request.partitions`.
        """
        node = self._nodes.get(key.node)
        queue = node.steps.get(key.step) if node else None
        if node is None or queue is None or not self.is_ready(key):
            return None
        if not 0 <= rank < request.partitions:
            raise ConfigError(
                f"Rank {rank} asks {key} for one of {request.partitions} parts; ranks count from 0 "
                f"to {request.partitions - 1}."
            )
        if queue.parts is None:
            self._divide(node, queue, request, filter_plugin)
        assert queue.parts is not None
        if queue.request != request:
            raise InvariantError(
                f"Rank {rank} asks {key} for {request}, but it was divided for {queue.request}. "
                "All ranks must request the same."
            )
        if rank in queue.leases:
            return self._leases.renew(queue.leases[rank], now=self._clock())
        if rank not in queue.parts:
            raise InvariantError(
                f"Rank {rank} has already taken and acknowledged its part of {key}."
            )
        entries = queue.parts.pop(rank)
        node.waiting -= len(entries)
        queue.leased += len(entries)
        lease = self._leases.open(
            key, holder=str(rank), entries=entries, rank=rank, now=self._clock()
        )
        queue.leases[rank] = lease.lease_id
        return lease

    def get_share(
        self,
        key: QueueKey,
        request: PartitionRequest,
        *,
        rank: int,
        filter_plugin: FilterPlugin | None = None,
    ) -> Share | None:
        """`get_partition` for rows in the ranks' memories: the rows that this rank sends and
        receives.
        """
        lease = self.get_partition(key, request, rank=rank, filter_plugin=filter_plugin)
        return None if lease is None else Share(lease.lease_id, self._queue(key).transfers[rank])

    def keep_leftovers(self, node: str, refs: Mapping[str, Any]) -> None:
        """Register, by id, references to rows that a step left over in a rank's memory."""
        queues = self._nodes.get(node, NodeQueues())
        queues.leftovers = [
            entry._replace(ref=refs[entry.info.uid]) if entry.info.uid in refs else entry
            for entry in queues.leftovers
        ]

    def is_ready(self, key: QueueKey) -> bool:
        """Whether `get_partition` would return a lease."""
        node = self._nodes.get(key.node)
        queue = node.steps.get(key.step) if node else None
        return (
            node is not None
            and queue is not None
            and queue.complete
            and not node.has_undivided_step_before(key.step)
        )

    def acknowledge(self, lease_id: int) -> None:
        """Mark the lease's samples as used, and drop them.

        Raises:
            InvariantError: The lease has expired or was released: another worker may have the
                samples, so this one must not use them.
        """
        lease, entries, rank = self._leases.close(lease_id)
        self._acknowledged += len(entries)
        node, queue = self._of(lease.key)
        queue.leased -= len(entries)
        if rank is None:
            queue.uids.difference_update(entry.info.uid for entry in entries)
        else:
            del queue.leases[rank]
        if queue.done:
            del node.steps[lease.key.step]

    def release(self, holder: str) -> int:
        """Return all samples of a dead worker to their queues; returns their number."""
        return sum(self._give_back(lease_id) for lease_id in self._leases.of_holder(holder))

    def expire(self) -> int:
        """Return the samples of expired leases to their queues; returns their number."""
        return sum(self._give_back(lease_id) for lease_id in self._leases.past(self._clock()))

    def seconds_to_next_expiry(self) -> float | None:
        """Time until a lease may expire; None without leases."""
        return self._leases.seconds_to_next(self._clock())

    def leftovers(self, node: str) -> list[Leftover]:
        """Samples that earlier steps of a node left over, for its next step or a checkpoint."""
        return [
            Leftover(entry.info, entry.ref, entry.source)
            for entry in self._nodes.get(node, NodeQueues()).leftovers
        ]

    def restore_leftovers(self, node: str, leftovers: Sequence[Leftover]) -> None:
        """Restore the result of `leftovers`, before the first step of a resumed run."""
        queues = self._nodes.setdefault(node, NodeQueues())
        for info, ref, source in leftovers:
            queues.leftovers.append(
                QueuedSample(order=(-1, 0, self._arrivals), info=info, ref=ref, source=source)
            )
            self._arrivals += 1
        queues.waiting += len(leftovers)

    def discard_leftovers(self, node: str, should_drop: FilterPlugin) -> int:
        """Drop leftovers, for example those of an old policy version; returns their number."""
        queues = self._nodes.get(node, NodeQueues())
        kept = [entry for entry in queues.leftovers if not should_drop(entry.info)]
        dropped = len(queues.leftovers) - len(kept)
        queues.leftovers = kept
        queues.waiting -= dropped
        self._discarded += dropped
        return dropped

    def missing_sources(self, key: QueueKey) -> list[int] | None:
        """Source ranks that have not put yet; None before the first put."""
        node = self._nodes.get(key.node)
        queue = node.steps.get(key.step) if node else None
        return (
            None if queue is None else sorted(set(range(queue.sources or 0)) - queue.sources_done)
        )

    def stats(self) -> dict[str, int]:
        """Samples by outcome; `put` is the sum of the others."""
        waiting = sum(node.waiting for node in self._nodes.values())
        left_over = sum(len(node.leftovers) for node in self._nodes.values())
        return {
            "put": self._arrivals,
            "waiting": waiting - left_over,
            "left_over": left_over,
            "leased": self._leases.num_samples,
            "acknowledged": self._acknowledged,
            "discarded": self._discarded,
        }

    def _divide(
        self,
        node: NodeQueues,
        queue: StepQueue,
        request: PartitionRequest,
        filter_plugin: FilterPlugin | None,
    ) -> None:
        candidates = node.leftovers + queue.entries.take_all()
        rejected = [
            entry
            for entry in candidates
            if filter_plugin is not None and not accepts(filter_plugin, entry.info)
        ]
        rejected_uids = {entry.info.uid for entry in rejected}
        parts, remainder = divide(
            [entry for entry in candidates if entry.info.uid not in rejected_uids], request
        )
        queue.request, queue.parts = request, dict(enumerate(parts))
        node.leftovers = sorted(rejected + remainder)
        queue.transfers = transfers(parts, node.leftovers, sources=queue.sources or 0)

    def _give_back(self, lease_id: int) -> int:
        lease, entries, rank = self._leases.close(lease_id)
        node, queue = self._of(lease.key)
        node.waiting += len(entries)
        queue.leased -= len(entries)
        if rank is None:
            for entry in entries:
                queue.entries.add(entry)
        else:
            assert queue.parts is not None
            queue.parts[rank] = entries
            del queue.leases[rank]
        return len(entries)

    def _queue(self, key: QueueKey) -> StepQueue:
        return self._nodes[key.node].steps[key.step]

    def _of(self, key: QueueKey) -> tuple[NodeQueues, StepQueue]:
        node = self._nodes[key.node]
        return node, node.steps[key.step]
