"""The coordinator as a Ray actor that waits. The worker's end of it is `ray_redistribution`; this
process needs no torch.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray

from siirl.data_coordinator.coordinator import (
    DEFAULT_CAPACITY,
    DEFAULT_LEASE_SECONDS,
    DataCoordinator,
    FilterPlugin,
)
from siirl.data_coordinator.leases import Lease
from siirl.data_coordinator.queues import Leftover, PartitionRequest, QueueKey
from siirl.data_coordinator.sample_info import SampleInfo

WAITING_CALLS = (
    10_000  # calls that may wait in the actor at once: all ranks of a large run, several times
)

Result = TypeVar("Result")


class CoordinatorActor:
    """The methods of DataCoordinator; those that answer "not yet" wait instead, until `timeout`
    seconds have passed.
    """

    def __init__(self, *, capacity: int, lease_seconds: float) -> None:
        self.coordinator = DataCoordinator(capacity=capacity, lease_seconds=lease_seconds)
        self._changed: dict[str, asyncio.Condition] = defaultdict(asyncio.Condition)

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

        await self._until(key, attempt, timeout)

    async def get_batch(
        self,
        key: QueueKey,
        count: int,
        holder: str,
        filter_plugin: FilterPlugin | None,
        timeout: float,
    ) -> Lease:
        """Lease samples of a stream; waits until there are enough."""
        return await self._until(
            key,
            lambda: self.coordinator.get_batch(
                key, count=count, holder=holder, filter_plugin=filter_plugin
            ),
            timeout,
        )

    async def get_partition(
        self,
        key: QueueKey,
        request: PartitionRequest,
        rank: int,
        filter_plugin: FilterPlugin | None,
        timeout: float,
    ) -> Lease:
        """Lease a rank's part of a step; waits until all ranks have put."""
        return await self._until(
            key,
            lambda: self.coordinator.get_partition(
                key, request, rank=rank, filter_plugin=filter_plugin
            ),
            timeout,
        )

    async def acknowledge(self, key: QueueKey, lease_id: int) -> None:
        """The lease's samples are used."""
        self.coordinator.acknowledge(lease_id)
        await self._notify(key.node)

    async def release(self, holder: str) -> int:
        """Give back what a dead worker held."""
        returned = self.coordinator.release(holder)
        await self._notify_all()
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
        await self._notify(node)
        return dropped

    async def stats(self) -> dict[str, int]:
        """See DataCoordinator."""
        return self.coordinator.stats()

    async def _until(
        self, key: QueueKey, attempt: Callable[[], Result | None], timeout: float
    ) -> Result:
        """Try whenever something changed for this node, or a lease expired, until it succeeds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        condition = self._changed[key.node]
        async with condition:
            while (result := attempt()) is None:
                remaining = deadline - loop.time()
                if remaining <= 0:
                    missing = self.coordinator.missing_sources(key)
                    raise TimeoutError(
                        f"Nothing for {key} within {timeout:g} s. Ranks that have not put: {missing or 'unknown'}."
                    )
                await self._wait(condition, remaining)
            condition.notify_all()
        return result

    async def _wait(self, condition: asyncio.Condition, remaining: float) -> None:
        expiry = self.coordinator.seconds_to_next_expiry()
        try:
            await asyncio.wait_for(
                condition.wait(), remaining if expiry is None else min(remaining, expiry)
            )
        except TimeoutError:
            self.coordinator.expire()

    async def _notify(self, node: str) -> None:
        async with self._changed[node]:
            self._changed[node].notify_all()

    async def _notify_all(self) -> None:
        for node in list(self._changed):
            await self._notify(node)


def start_coordinator(
    *, capacity: int = DEFAULT_CAPACITY, lease_seconds: float = DEFAULT_LEASE_SECONDS
) -> Any:
    """Start the actor in the current Ray session and return its handle."""
    actor = ray.remote(CoordinatorActor).options(num_cpus=0, max_concurrency=WAITING_CALLS)
    return actor.remote(capacity=capacity, lease_seconds=lease_seconds)
