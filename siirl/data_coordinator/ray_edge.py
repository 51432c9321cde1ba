"""The coordinator as a Ray actor with waiting calls. `ray_redistribution` is the worker's client;
the actor's process does not need torch.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle

from siirl.data_coordinator.coordinator import (
    DEFAULT_CAPACITY,
    DEFAULT_LEASE_SECONDS,
    DataCoordinator,
    FilterPlugin,
)
from siirl.data_coordinator.leases import Lease
from siirl.data_coordinator.queues import Leftover, PartitionRequest, QueueKey, Share
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.data_coordinator.waiters import Waiters

# Calls that may wait in the actor at once: several for each rank of a large run.
WAITING_CALLS = 10_000
REMEMBERED_FILTERS = 64


class CoordinatorActor:
    """The methods of DataCoordinator; those that answer "not yet" wait instead, until `timeout`
    seconds have passed.

    Three kinds of calls wait in separate queues: for samples of a stream, for a part of a step, and
    for room to put. Each change wakes only the calls that it can serve.
    """

    def __init__(self, *, capacity: int, lease_seconds: float) -> None:
        self.coordinator = DataCoordinator(capacity=capacity, lease_seconds=lease_seconds)
        self._takers = Waiters()
        self._parts = Waiters()
        self._putters = Waiters()
        self._filters: dict[bytes, FilterPlugin] = {}
        self._expiry: asyncio.TimerHandle | None = None

    async def put_batch(
        self,
        key: QueueKey,
        infos: Sequence[SampleInfo],
        refs: Sequence[Any],
        source: int,
        sources: int | None,
        timeout: float,
    ) -> None:
        """Register samples; waits for room."""

        def attempt() -> bool | None:
            return (
                self.coordinator.put_batch(key, infos, refs, source=source, sources=sources) or None
            )

        if attempt() is None:
            await self._wait(self._putters, key, (), attempt, timeout)
        self._after_put(key)

    async def get_batch(
        self,
        key: QueueKey,
        count: int,
        holder: str,
        filter_plugin: FilterPlugin | None,
        timeout: float,
    ) -> Lease:
        """Lease samples of a stream; waits until there are enough."""
        asks = self._same_filter(filter_plugin)

        def attempt() -> Lease | None:
            return self.coordinator.get_batch(key, count=count, holder=holder, filter_plugin=asks)

        lease = attempt() or await self._wait(self._takers, key, (asks, count), attempt, timeout)
        self._after_take(key.node)
        return lease

    async def get_partition(
        self,
        key: QueueKey,
        request: PartitionRequest,
        rank: int,
        filter_plugin: FilterPlugin | None,
        timeout: float,
    ) -> Lease:
        """Lease a rank's part of a step; waits until all ranks have put."""

        def attempt() -> Lease | None:
            return self.coordinator.get_partition(
                key, request, rank=rank, filter_plugin=filter_plugin
            )

        lease: Lease = await self._part(key, rank, attempt, timeout)
        return lease

    async def get_share(
        self, key: QueueKey, request: PartitionRequest, rank: int, timeout: float
    ) -> Share:
        """The rows of a step that a rank sends and receives; waits until all ranks have put."""
        share: Share = await self._part(
            key, rank, lambda: self.coordinator.get_share(key, request, rank=rank), timeout
        )
        return share

    async def keep_leftovers(self, node: str, refs: Mapping[str, Any]) -> None:
        """See DataCoordinator."""
        self.coordinator.keep_leftovers(node, refs)

    async def acknowledge(self, key: QueueKey, lease_id: int) -> None:
        """Mark the lease's samples as used."""
        self.coordinator.acknowledge(lease_id)
        self._after_take(key.node)

    async def release(self, holder: str) -> int:
        """Return the samples of a dead worker to their queues."""
        returned = self.coordinator.release(holder)
        self._after_return()
        return returned

    async def leftovers(self, node: str) -> list[Leftover]:
        """See DataCoordinator."""
        return self.coordinator.leftovers(node)

    async def restore_leftovers(self, node: str, leftovers: Sequence[Leftover]) -> None:
        """See DataCoordinator."""
        self.coordinator.restore_leftovers(node, leftovers)

    async def discard_leftovers(self, node: str, should_drop: FilterPlugin) -> int:
        """See DataCoordinator."""
        dropped = self.coordinator.discard_leftovers(node, should_drop)
        self._after_take(node)
        return dropped

    async def stats(self) -> dict[str, int]:
        """See DataCoordinator."""
        return self.coordinator.stats()

    async def _part(
        self, key: QueueKey, rank: int, attempt: Callable[[], Any], timeout: float
    ) -> Any:
        share = attempt() or await self._wait(self._parts, key, (rank,), attempt, timeout)
        self._after_take(key.node)
        return share

    async def _wait(
        self,
        book: Waiters,
        key: QueueKey,
        wish: tuple[Any, ...],
        attempt: Callable[[], Any],
        timeout: float,
    ) -> Any:
        self._watch_expiry(one_more_waits=True)
        try:
            return await book.wait(key, wish, attempt, timeout)
        except TimeoutError as error:
            missing = self.coordinator.missing_sources(key)
            raise TimeoutError(
                f"No samples for {key} within {timeout:g} s. Ranks that have not put: "
                f"{missing or 'unknown'}."
            ) from error

    def _after_put(self, key: QueueKey) -> None:
        self._takers.serve(key)
        self._serve_parts(key.node)

    def _after_take(self, node: str) -> None:
        """Handle samples that left a node's queues or are leased: serve puts that wait for room,
        and watch the lease.
        """
        for key in self._putters.keys(node):
            if self._putters.serve(key):
                self._after_put(key)
        self._serve_parts(node)
        self._watch_expiry()

    def _after_return(self) -> None:
        """Handle returned leases of any node."""
        for key in self._takers.keys():
            self._takers.serve(key)
        for node in {key.node for key in self._parts.keys()}:
            self._serve_parts(node)
        self._watch_expiry()

    def _serve_parts(self, node: str) -> None:
        """Divide each step that is complete: all ranks that wait for a part get it."""
        for key in self._parts.keys(node):
            if self.coordinator.is_ready(key):
                self._parts.serve(key)

    def _watch_expiry(self, *, one_more_waits: bool = False) -> None:
        """Offer leases that expire without acknowledgement to waiting ranks."""
        seconds = self.coordinator.seconds_to_next_expiry()
        waits = one_more_waits or self._takers or self._parts
        if self._expiry is not None or seconds is None or not waits:
            return
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self.coordinator.expire()
        self._after_return()

    def _same_filter(self, filter_plugin: FilterPlugin | None) -> FilterPlugin | None:
        """The equal function of an earlier call, if any: Ray unpickles a new object for each call,
        and the coordinator caches verdicts by object.
        """
        if filter_plugin is None:
            return None
        if len(self._filters) >= REMEMBERED_FILTERS:
            self._filters.clear()
        pickled: bytes = cloudpickle.dumps(filter_plugin)  # type: ignore[no-untyped-call]
        return self._filters.setdefault(pickled, filter_plugin)


def start_coordinator(
    *, capacity: int = DEFAULT_CAPACITY, lease_seconds: float = DEFAULT_LEASE_SECONDS
) -> Any:
    """Start the actor in the current Ray session and return its handle."""
    actor = ray.remote(CoordinatorActor).options(num_cpus=0, max_concurrency=WAITING_CALLS)
    return actor.remote(capacity=capacity, lease_seconds=lease_seconds)
