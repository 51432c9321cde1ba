"""The coordinator as a Ray actor that waits, and the worker's end of it.

Samples travel through Ray's object store, one object a sample, owned by the actor: they outlive the worker that made them. The
actor itself sees metadata and references only. Rows that a rank keeps are not fetched: it takes them from its own memory.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from tensordict import TensorDict

from siirl.data_coordinator.coordinator import DEFAULT_CAPACITY, DEFAULT_LEASE_SECONDS, DataCoordinator, FilterPlugin
from siirl.data_coordinator.leases import Lease
from siirl.data_coordinator.protocol.batch import check_unique_uids, select_rows
from siirl.data_coordinator.queues import PartitionRequest, QueueKey
from siirl.data_coordinator.sample import Dict2Samples, Sample, SampleInfo, Samples2Dict

DEFAULT_TIMEOUT_S = 1800.0  # a rank that is this late has died; the message names it
WAITING_CALLS = 10_000  # calls that may wait in the actor at once: all ranks of a large run, several times

Result = TypeVar("Result")


class CoordinatorActor:
    """The methods of DataCoordinator; those that answer "not yet" wait instead, until `timeout` seconds have passed."""

    def __init__(self, *, capacity: int, lease_seconds: float) -> None:
        self.coordinator = DataCoordinator(capacity=capacity, lease_seconds=lease_seconds)
        self._changed: dict[str, asyncio.Condition] = defaultdict(asyncio.Condition)

    async def put_batch(
        self, key: QueueKey, infos: Sequence[SampleInfo], refs: Sequence[Any], source: int, sources: int | None, timeout: float
    ) -> None:
        """Register samples; waits for room."""

        def attempt() -> bool | None:
            return self.coordinator.put_batch(key, infos, refs, source=source, sources=sources) or None

        await self._until(key, attempt, timeout)

    async def get_batch(self, key: QueueKey, count: int, holder: str, filter_plugin: FilterPlugin | None, timeout: float) -> Lease:
        """Lease samples of a stream; waits until there are enough."""
        return await self._until(
            key, lambda: self.coordinator.get_batch(key, count=count, holder=holder, filter_plugin=filter_plugin), timeout
        )

    async def get_partition(
        self, key: QueueKey, request: PartitionRequest, rank: int, filter_plugin: FilterPlugin | None, timeout: float
    ) -> Lease:
        """Lease a rank's part of a step; waits until all ranks have put."""
        return await self._until(key, lambda: self.coordinator.get_partition(key, request, rank=rank, filter_plugin=filter_plugin), timeout)

    async def acknowledge(self, key: QueueKey, lease_id: int) -> None:
        """The lease's samples are used."""
        self.coordinator.acknowledge(lease_id)
        await self._notify(key.node)

    async def release(self, holder: str) -> int:
        """Give back what a dead worker held."""
        returned = self.coordinator.release(holder)
        await self._notify_all()
        return returned

    async def leftovers(self, node: str) -> list[tuple[SampleInfo, Any]]:
        """See DataCoordinator."""
        return self.coordinator.leftovers(node)

    async def restore_leftovers(self, node: str, infos: Sequence[SampleInfo], refs: Sequence[Any]) -> None:
        """See DataCoordinator."""
        self.coordinator.restore_leftovers(node, infos, refs)

    async def discard_leftovers(self, node: str, should_drop: FilterPlugin) -> int:
        """See DataCoordinator."""
        dropped = self.coordinator.discard_leftovers(node, should_drop)
        await self._notify(node)
        return dropped

    async def stats(self) -> dict[str, int]:
        """See DataCoordinator."""
        return self.coordinator.stats()

    async def _until(self, key: QueueKey, attempt: Callable[[], Result | None], timeout: float) -> Result:
        """Try whenever something changed for this node, or a lease expired, until it succeeds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        condition = self._changed[key.node]
        async with condition:
            while (result := attempt()) is None:
                remaining = deadline - loop.time()
                if remaining <= 0:
                    missing = self.coordinator.missing_sources(key)
                    raise TimeoutError(f"Nothing for {key} within {timeout:g} s. Ranks that have not put: {missing or 'unknown'}.")
                await self._wait(condition, remaining)
            condition.notify_all()
        return result

    async def _wait(self, condition: asyncio.Condition, remaining: float) -> None:
        expiry = self.coordinator.seconds_to_next_expiry()
        try:
            await asyncio.wait_for(condition.wait(), remaining if expiry is None else min(remaining, expiry))
        except TimeoutError:
            self.coordinator.expire()

    async def _notify(self, node: str) -> None:
        async with self._changed[node]:
            self._changed[node].notify_all()

    async def _notify_all(self) -> None:
        for node in list(self._changed):
            await self._notify(node)


def start_coordinator(*, capacity: int = DEFAULT_CAPACITY, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> Any:
    """Start the actor in the current Ray session and return its handle."""
    actor = ray.remote(CoordinatorActor).options(num_cpus=0, max_concurrency=WAITING_CALLS)
    return actor.remote(capacity=capacity, lease_seconds=lease_seconds)


class RayRedistribution:
    """The worker's end (`redistribution.Redistribution`).

    Args:
        coordinator: Handle from `start_coordinator`.
        rank: This rank.
        ranks: How many ranks give rows.
        request: How rows are divided; the same on all ranks. By default among all ranks by work, whatever the counts.
        filter_plugin: Which samples are taken now; the others are left over.
        timeout_s: How long to wait for the other ranks.
    """

    def __init__(
        self,
        coordinator: Any,
        *,
        rank: int,
        ranks: int,
        request: PartitionRequest | None = None,
        filter_plugin: FilterPlugin | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.coordinator = coordinator
        self.rank, self.ranks = rank, ranks
        self.request = request or PartitionRequest(partitions=ranks)
        self.filter_plugin = filter_plugin
        self.timeout_s = timeout_s
        self._leases: list[Lease] = []

    def redistribute(self, batch: TensorDict, *, node: str, step: int) -> TensorDict:
        """Give this rank's rows for `node`, get those that it is to work on, padded to the longest; possibly none.

        Raises:
            TimeoutError: A rank did not give its rows in time; the message names it.
            InvariantError: Two rows have one id.
        """
        check_unique_uids(batch)
        key = QueueKey(node, step)
        own = {sample.uid: sample for sample in Dict2Samples(batch)}
        self._put(key, list(own.values()))
        lease: Lease = ray.get(self.coordinator.get_partition.remote(key, self.request, self.rank, self.filter_plugin, self.timeout_s))
        self._leases.append(lease)
        fetched = self._fetch(lease, own)
        return Samples2Dict(fetched) if fetched else select_rows(batch, [])

    def acknowledge(self) -> None:
        """The rows are used; InvariantError where the coordinator gave them to another rank meanwhile."""
        leases, self._leases = self._leases, []
        ray.get([self.coordinator.acknowledge.remote(lease.key, lease.lease_id) for lease in leases])

    def _put(self, key: QueueKey, samples: Sequence[Sample]) -> None:
        machine = ray.get_runtime_context().get_node_id()
        refs = [ray.put(sample, _owner=self.coordinator) for sample in samples]
        infos = [sample.info(node_id=machine) for sample in samples]
        ray.get(self.coordinator.put_batch.remote(key, infos, refs, self.rank, self.ranks, self.timeout_s))

    def _fetch(self, lease: Lease, own: dict[str, Sample]) -> list[Sample]:
        foreign = [(info.uid, ref) for info, ref in zip(lease.infos, lease.refs, strict=True) if info.uid not in own]
        arrived = dict(zip((uid for uid, _ in foreign), ray.get([ref for _, ref in foreign]), strict=True))
        return [own.get(info.uid) or arrived[info.uid] for info in lease.infos]
