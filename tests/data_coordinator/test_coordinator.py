"""The coordinator hands every sample to one node, one step and one worker, and gets it back when
that worker dies.
"""

import time

import pytest

from siirl.data_coordinator.coordinator import DataCoordinator
from siirl.data_coordinator.queues import PartitionRequest, QueueKey
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import InvariantError
from tests.data_coordinator.queued_samples import KEY, Clock, infos, put, two_sources, uids

# First come, first served


def test_samples_come_out_in_order_with_their_references():
    coordinator = DataCoordinator()
    put(coordinator, "a", "b", "c")
    lease = coordinator.get_batch(KEY, count=2, holder="worker")
    assert uids(lease) == ["a", "b"]
    assert lease.refs == ("ref-a", "ref-b")


def test_too_few_samples_are_not_handed_out():
    coordinator = DataCoordinator()
    put(coordinator, "a")
    assert coordinator.get_batch(KEY, count=2, holder="worker") is None
    assert uids(coordinator.get_batch(KEY, count=1, holder="worker")) == ["a"]


def test_queue_that_does_not_exist_gives_nothing():
    assert DataCoordinator().get_batch(KEY, count=1, holder="worker") is None


def test_filter_reads_metadata_and_leaves_the_rest_in_place():
    coordinator = DataCoordinator()
    put(coordinator, "old", policy_version=1)
    put(coordinator, "new", policy_version=2)
    put(coordinator, "newer", policy_version=3)
    lease = coordinator.get_batch(
        KEY, count=2, holder="w", filter_plugin=lambda info: info.dict_info["policy_version"] >= 2
    )
    assert uids(lease) == ["new", "newer"]
    assert uids(coordinator.get_batch(KEY, count=1, holder="w")) == ["old"]


@pytest.mark.parametrize("other", [QueueKey("actor_train", 8), QueueKey("reference", 7)])
def test_queues_of_steps_and_nodes_are_separate(other):
    coordinator = DataCoordinator()
    put(coordinator, "a")
    put(coordinator, "b", key=other)
    assert uids(coordinator.get_batch(other, count=1, holder="w")) == ["b"]
    assert uids(coordinator.get_batch(KEY, count=1, holder="w")) == ["a"]


# Leases


def test_dead_workers_samples_go_to_another_in_their_old_order():
    coordinator = DataCoordinator()
    put(coordinator, "a", "b", "c")
    coordinator.get_batch(KEY, count=2, holder="dies")
    assert coordinator.release("dies") == 2
    assert uids(coordinator.get_batch(KEY, count=3, holder="lives")) == ["a", "b", "c"]


def test_restarted_rank_gets_the_part_of_its_dead_self():
    coordinator = DataCoordinator()
    two_sources(coordinator)
    before = coordinator.get_partition(KEY, PartitionRequest(2), rank=1)
    coordinator.release("1")
    after = coordinator.get_partition(KEY, PartitionRequest(2), rank=1)
    assert uids(after) == uids(before)
    assert after.lease_id != before.lease_id


def test_lease_expires():
    clock = Clock()
    coordinator = DataCoordinator(lease_seconds=10, clock=clock)
    put(coordinator, "a")
    coordinator.get_batch(KEY, count=1, holder="slow")
    clock.now += 9
    assert coordinator.expire() == 0
    assert coordinator.seconds_to_next_expiry() == 1
    clock.now += 1
    assert coordinator.expire() == 1
    assert coordinator.seconds_to_next_expiry() is None
    assert uids(coordinator.get_batch(KEY, count=1, holder="other")) == ["a"]


def test_asking_again_renews_a_lease():
    clock = Clock()
    coordinator = DataCoordinator(lease_seconds=10, clock=clock)
    two_sources(coordinator)
    coordinator.get_partition(KEY, PartitionRequest(2), rank=0)
    clock.now += 9
    coordinator.get_partition(KEY, PartitionRequest(2), rank=0)
    clock.now += 9
    assert coordinator.expire() == 0


def test_a_lease_that_is_renewed_in_the_same_moment_is_given_back_once():
    clock = Clock()
    coordinator = DataCoordinator(lease_seconds=10, clock=clock)
    two_sources(coordinator)
    held = coordinator.get_partition(KEY, PartitionRequest(2), rank=0)
    coordinator.get_partition(KEY, PartitionRequest(2), rank=0)
    clock.now += 10
    assert coordinator.expire() == len(held.infos)


def test_late_worker_learns_that_its_lease_was_given_back():
    coordinator = DataCoordinator()
    put(coordinator, "a")
    lease = coordinator.get_batch(KEY, count=1, holder="late")
    coordinator.release("late")
    with pytest.raises(InvariantError, match="do not train on them"):
        coordinator.acknowledge(lease.lease_id)


# Capacity


def test_full_stream_refuses_until_samples_are_taken():
    coordinator = DataCoordinator(capacity=3)
    assert put(coordinator, "a", "b")
    assert not put(coordinator, "c", "d")
    coordinator.get_batch(KEY, count=1, holder="w")
    assert put(coordinator, "c", "d")


def test_refused_samples_leave_no_trace():
    coordinator = DataCoordinator(capacity=1)
    put(coordinator, "a")
    put(coordinator, "b")
    assert coordinator.stats()["put"] == 1
    coordinator.get_batch(KEY, count=1, holder="w")
    assert put(coordinator, "b")


def test_batch_beyond_the_capacity_passes_where_nothing_waits():
    assert put(DataCoordinator(capacity=1), "a", "b")


def test_one_full_node_does_not_block_another():
    coordinator = DataCoordinator(capacity=1)
    put(coordinator, "a")
    assert put(coordinator, "b", key=QueueKey("reference", 7))


def test_oldest_step_is_never_blocked_by_ranks_that_are_ahead():
    """Rank 0 is a step ahead; if rank 1's share of the older step were refused, both would wait."""
    coordinator = DataCoordinator(capacity=2)
    put(coordinator, "a", "b", source=0, sources=2)
    assert not put(coordinator, "c", "d", key=QueueKey("actor_train", 8), source=0, sources=2)
    assert put(coordinator, "e", "f", source=1, sources=2)


# Mistakes


def test_sample_is_queued_once():
    coordinator = DataCoordinator()
    put(coordinator, "a")
    with pytest.raises(
        InvariantError, match="Sample 'a' was put twice for node 'actor_train', step 7"
    ):
        put(coordinator, "a")


def test_rank_puts_its_share_once():
    coordinator = DataCoordinator()
    put(coordinator, "a", source=1, sources=2)
    with pytest.raises(InvariantError, match="Rank 1 has already put its share"):
        put(coordinator, "b", source=1, sources=2)


def test_ranks_agree_on_how_many_put():
    coordinator = DataCoordinator()
    put(coordinator, "a", source=0, sources=2)
    with pytest.raises(InvariantError, match="Rank 1 expects 3 ranks to put"):
        put(coordinator, "b", source=1, sources=3)


def test_infos_and_references_belong_together():
    with pytest.raises(InvariantError, match="2 sample infos came with 1 references"):
        DataCoordinator().put_batch(KEY, infos("a", "b"), ["ref"])


def test_divided_queue_is_not_served_first_come():
    coordinator = DataCoordinator()
    put(coordinator, "a", sources=1)
    with pytest.raises(InvariantError, match="Take them with get_partition"):
        coordinator.get_batch(KEY, count=1, holder="w")


def test_cost_does_not_depend_on_what_else_is_queued():
    """Operations on one queue, alone and beside 200,000 samples of others; best of five, and room
    for noise.
    """

    def seconds(coordinator):
        best = float("inf")
        for attempt in range(5):
            key = QueueKey("probe", attempt)
            start = time.process_time()
            put(coordinator, *(f"{attempt}-{number}" for number in range(500)), key=key)
            for _ in range(10):
                coordinator.acknowledge(coordinator.get_batch(key, count=50, holder="w").lease_id)
            best = min(best, time.process_time() - start)
        return best

    crowded = DataCoordinator()
    for step in range(100):
        put(
            crowded,
            *(f"{step}-{number}" for number in range(2000)),
            key=QueueKey(f"node-{step}", step),
        )
    assert seconds(crowded) < 3 * seconds(DataCoordinator())


# Filters and shares


def put_numbered(coordinator, key, count, *, start=0):
    samples = [SampleInfo(uid=str(number)) for number in range(start, start + count)]
    assert coordinator.put_batch(key, samples, [None] * count)


def test_a_filter_is_asked_once_about_each_sample():
    coordinator, stream, asked = DataCoordinator(), QueueKey("stream", 0), []

    def last_ten(info):
        asked.append(info.uid)
        return int(info.uid) >= 90

    put_numbered(coordinator, stream, 100)
    for _ in range(3):
        lease = coordinator.get_batch(stream, count=3, holder="x", filter_plugin=last_ten)
        assert lease is not None
    assert coordinator.get_batch(stream, count=3, holder="x", filter_plugin=last_ten) is None
    put_numbered(coordinator, stream, 2, start=100)
    lease = coordinator.get_batch(stream, count=3, holder="x", filter_plugin=last_ten)
    assert [info.uid for info in lease.infos] == ["99", "100", "101"]
    assert len(asked) == len(set(asked)) == 102


def test_a_worker_does_not_get_an_accepted_sample_that_another_took():
    coordinator, stream = DataCoordinator(), QueueKey("stream", 0)

    def anything(info):
        return True

    put_numbered(coordinator, stream, 4)
    assert coordinator.get_batch(stream, count=5, holder="x", filter_plugin=anything) is None
    first = coordinator.get_batch(stream, count=1, holder="x", filter_plugin=anything)
    assert uids(coordinator.get_batch(stream, count=2, holder="y")) == ["1", "2"]
    assert uids(first) == ["0"]
    assert coordinator.release("x") == 1
    lease = coordinator.get_batch(stream, count=2, holder="x", filter_plugin=anything)
    assert uids(lease) == ["0", "3"]


def test_a_share_lists_the_rows_that_leave_and_those_that_arrive():
    """Rank 0 has 30 of 40 tokens: one row of 10 goes to rank 1."""
    coordinator, request = DataCoordinator(), PartitionRequest(2)
    for rank, tokens in enumerate([[10, 10, 10], [10]]):
        samples = [
            SampleInfo(uid=f"{rank}-{row}", sum_tokens=count) for row, count in enumerate(tokens)
        ]
        assert coordinator.put_batch(KEY, samples, [None] * len(samples), source=rank, sources=2)
    first, second = (coordinator.get_share(KEY, request, rank=rank).transfers for rank in range(2))
    (moved,) = first.leaving[1]
    assert first.exchange and second.exchange
    assert second.arriving == {0: [moved]} and moved.startswith("0-")
    assert not first.arriving and not second.leaving and not first.fetched and not second.fetched


def test_work_is_flops_where_they_are_known_for_all():
    """Both ranks have 20 tokens; the long row makes three times the work of all others together."""
    coordinator, request = DataCoordinator(), PartitionRequest(2)
    rows = [[(15, 75.0), (5, 5.0)], [(10, 10.0), (10, 10.0)]]
    for rank, of_rank in enumerate(rows):
        samples = [
            SampleInfo(uid=f"{rank}-{row}", sum_tokens=tokens, flops=flops)
            for row, (tokens, flops) in enumerate(of_rank)
        ]
        coordinator.put_batch(KEY, samples, [None] * 2, source=rank, sources=2)
    assert coordinator.get_share(KEY, request, rank=0).transfers.leaving == {1: ["0-1"]}


def test_a_leftover_row_is_fetched_from_the_rank_that_kept_it():
    coordinator, request = DataCoordinator(), PartitionRequest(2, equal_counts=True)
    for step, shares in enumerate([[["a"], ["b", "c"]], [["d"], []]]):
        for rank, names in enumerate(shares):
            samples = [SampleInfo(uid=uid, sum_tokens=1) for uid in names]
            coordinator.put_batch(
                QueueKey("train", step), samples, [None] * len(names), source=rank, sources=2
            )
        found = [
            coordinator.get_share(QueueKey("train", step), request, rank=rank).transfers
            for rank in range(2)
        ]
        if step == 0:
            assert [transfers.left_over for transfers in found] == [[], ["c"]]
            coordinator.keep_leftovers("train", {"c": "where it is"})
    assert [transfers.fetched for transfers in found] == [{}, {"c": "where it is"}]
