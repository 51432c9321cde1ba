"""Calls that wait in the coordinator's process: only those that can continue are tried."""

import asyncio

import pytest

from siirl.data_coordinator.queues import PartitionRequest, QueueKey
from siirl.data_coordinator.ray_edge import CoordinatorActor
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.data_coordinator.waiters import Waiters
from siirl.errors import ConfigError

STREAM, STEP = QueueKey("stream", 0), QueueKey("train", 0)
SOON, LATE = 0.01, 60.0


def infos(*uids, **columns):
    return [SampleInfo(uid=uid, sum_tokens=1, dict_info=columns) for uid in uids]


def actor(**options):
    return CoordinatorActor(**{"capacity": 100, "lease_seconds": 1000.0} | options)


async def put(coordinator, *uids, key=STREAM, source=0, sources=None, **columns):
    rows = infos(*uids, **columns)
    await coordinator.put_batch(key, rows, [None] * len(rows), source, sources, LATE)


def take(coordinator, count=1, accepts=None, timeout=LATE):
    return coordinator.get_batch(STREAM, count, "worker", accepts, timeout)


async def turn():
    """Let all waiters that can continue do so."""
    for _ in range(5):
        await asyncio.sleep(0)


class Counted:
    """An attempt that counts its calls."""

    def __init__(self):
        self.made, self.result = 0, None

    def __call__(self):
        self.made += 1
        return self.result


def test_of_calls_with_one_request_only_the_first_is_tried():
    async def scene():
        book, attempts = Waiters(), [Counted() for _ in range(3)]
        calls = [
            asyncio.ensure_future(book.wait(STREAM, ("same",), attempt, LATE))
            for attempt in attempts
        ]
        await turn()
        assert book.serve(STREAM) == 0
        assert [attempt.made for attempt in attempts] == [1, 0, 0]
        attempts[0].result = attempts[1].result = "a sample"
        assert book.serve(STREAM) == 2
        assert [attempt.made for attempt in attempts] == [2, 1, 1]
        assert await calls[0] == await calls[1] == "a sample"
        calls[2].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert not book

    asyncio.run(scene())


def test_a_small_request_is_served_while_a_large_one_waits():
    async def scene():
        coordinator = actor()
        large = asyncio.ensure_future(take(coordinator, count=3))
        await turn()
        small = asyncio.ensure_future(take(coordinator, count=1))
        await turn()
        await put(coordinator, "a")
        assert [info.uid for info in (await small).infos] == ["a"]
        await put(coordinator, "b", "c", "d")
        assert [info.uid for info in (await large).infos] == ["b", "c", "d"]

    asyncio.run(scene())


def test_parts_of_a_step_are_attempted_once_by_each_rank():
    """With 20 ranks that put one after the other, no waiter is tried before the last has put."""
    ranks = 20

    async def scene():
        coordinator, request = actor(), PartitionRequest(ranks)
        asked = []
        inner = coordinator.coordinator.get_partition
        coordinator.coordinator.get_partition = lambda *args, **options: (
            asked.append(options["rank"]) or inner(*args, **options)
        )
        calls = []
        for rank in range(ranks):
            await put(coordinator, f"row-{rank}", key=STEP, source=rank, sources=ranks)
            calls.append(asyncio.ensure_future(coordinator.get_share(STEP, request, rank, LATE)))
            await turn()
        shares = await asyncio.gather(*calls)
        assert not any(share.transfers.exchange for share in shares)
        # once in vain when it came, and once when all had put; the last came when all had
        assert sorted(asked) == sorted([*range(ranks), *range(ranks - 1)])

    asyncio.run(scene())


def test_a_full_queue_lets_the_next_putter_in_when_there_is_room():
    async def scene():
        coordinator = actor(capacity=1)
        await put(coordinator, "a")
        blocked = [asyncio.ensure_future(put(coordinator, uid)) for uid in "bc"]
        await turn()
        await take(coordinator)
        await turn()
        assert [call.done() for call in blocked] == [True, False]
        await take(coordinator)
        await asyncio.gather(*blocked)

    asyncio.run(scene())


def test_a_call_that_timed_out_leaves_the_queue():
    async def scene():
        coordinator = actor()
        with pytest.raises(
            TimeoutError, match=r"No samples for node 'stream', step 0 within 0.01 s"
        ):
            await take(coordinator, timeout=SOON)
        await put(coordinator, "a")
        assert coordinator.coordinator.stats()["leased"] == 0
        assert [info.uid for info in (await take(coordinator)).infos] == ["a"]

    asyncio.run(scene())


def test_a_filter_that_raises_fails_the_call_that_brought_it():
    def broken(info):
        raise KeyError("reward")

    async def scene():
        coordinator = actor()
        call = asyncio.ensure_future(take(coordinator, accepts=broken))
        await turn()
        await put(coordinator, "a")  # does not see the error
        with pytest.raises(ConfigError, match="raised KeyError for sample 'a'"):
            await call
        assert [info.uid for info in (await take(coordinator)).infos] == ["a"]

    asyncio.run(scene())


def test_an_expired_lease_goes_to_a_waiting_worker():
    async def scene():
        coordinator = actor(lease_seconds=SOON)
        await put(coordinator, "a")
        first = await take(coordinator)
        second = await take(coordinator)
        assert first.infos == second.infos

    asyncio.run(scene())
