"""The coordinator hands every sample to one node, one step and one worker, and gets it back when
that worker dies.
"""

import time

import pytest

from siirl.data_coordinator.coordinator import DataCoordinator
from siirl.data_coordinator.queues import PartitionRequest, QueueKey
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import ConfigError, InvariantError

KEY = QueueKey("actor_train", 7)


class Clock:
    """A clock that a test advances."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def infos(*uids, tokens=1, **values):
    return [SampleInfo(sum_tokens=tokens, uid=uid, dict_info=dict(values)) for uid in uids]


def put(coordinator, *uids, key=KEY, source=0, sources=None, tokens=1, **values):
    return coordinator.put_batch(
        key,
        infos(*uids, tokens=tokens, **values),
        [f"ref-{uid}" for uid in uids],
        source=source,
        sources=sources,
    )


def uids(lease):
    return [info.uid for info in lease.infos]


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
def test_queues_of_other_steps_and_nodes_are_apart(other):
    coordinator = DataCoordinator()
    put(coordinator, "a")
    put(coordinator, "b", key=other)
    assert uids(coordinator.get_batch(other, count=1, holder="w")) == ["b"]
    assert uids(coordinator.get_batch(KEY, count=1, holder="w")) == ["a"]


# Divided among ranks


def two_sources(coordinator, *, key=KEY, prefix=""):
    """Rank 0 puts samples of 8, 5 and 1 tokens, rank 1 of 7, 6 and 3."""
    for source, lengths in enumerate([(8, 5, 1), (7, 6, 3)]):
        names = [f"{prefix}{length}" for length in lengths]
        samples = [
            SampleInfo(sum_tokens=length, uid=name)
            for length, name in zip(lengths, names, strict=True)
        ]
        coordinator.put_batch(key, samples, names, source=source, sources=2)


def test_nothing_is_divided_before_all_ranks_have_put():
    coordinator = DataCoordinator()
    put(coordinator, "a", source=0, sources=2)
    assert coordinator.get_partition(KEY, PartitionRequest(2), rank=0) is None
    assert coordinator.missing_sources(KEY) == [1]
    put(coordinator, source=1, sources=2)
    assert coordinator.get_partition(KEY, PartitionRequest(2), rank=0) is not None


def test_ranks_get_the_same_work():
    coordinator = DataCoordinator()
    two_sources(coordinator)
    leases = [coordinator.get_partition(KEY, PartitionRequest(2), rank=rank) for rank in range(2)]
    assert [sum(info.sum_tokens for info in lease.infos) for lease in leases] == [15, 15]
    assert sorted(uid for lease in leases for uid in uids(lease)) == ["1", "3", "5", "6", "7", "8"]


def test_partition_of_one_step_is_never_handed_out_for_another():
    """A cached partition was returned for another key in a system of this kind."""
    coordinator = DataCoordinator()
    two_sources(coordinator, key=QueueKey("actor_train", 7), prefix="seven-")
    two_sources(coordinator, key=QueueKey("actor_train", 8), prefix="eight-")
    two_sources(coordinator, key=QueueKey("critic_train", 7), prefix="critic-")
    for key, prefix in (
        (QueueKey("critic_train", 7), "critic-"),
        (KEY, "seven-"),
        (QueueKey("actor_train", 8), "eight-"),
    ):
        for rank in range(2):
            lease = coordinator.get_partition(key, PartitionRequest(2), rank=rank)
            assert all(uid.startswith(prefix) for uid in uids(lease)), (key, uids(lease))


def test_result_does_not_depend_on_which_rank_was_faster():
    results = []
    for order in ((0, 1), (1, 0)):
        coordinator = DataCoordinator()
        for source in order:
            put(
                coordinator,
                *(f"{source}-{number}" for number in range(5)),
                source=source,
                sources=2,
            )
        results.append(
            [
                uids(coordinator.get_partition(KEY, PartitionRequest(2), rank=rank))
                for rank in range(2)
            ]
        )
    assert results[0] == results[1]


def test_ranks_keep_what_they_made_where_the_work_allows():
    coordinator = DataCoordinator()
    put(coordinator, "a", "b", source=1, sources=2)
    put(coordinator, "c", "d", source=0, sources=2)
    kept = {
        rank: uids(coordinator.get_partition(KEY, PartitionRequest(2), rank=rank))
        for rank in range(2)
    }
    assert len(kept[0]) == len(kept[1]) == 2
    assert sum(uid in "cd" for uid in kept[0]) >= 1
    assert sum(uid in "ab" for uid in kept[1]) >= 1


def test_equal_counts_leave_the_youngest_over_for_the_next_step():
    coordinator = DataCoordinator()
    put(coordinator, "a", "b", "c", sources=1, policy_version=7)
    request = PartitionRequest(2, equal_counts=True)
    leases = [coordinator.get_partition(KEY, request, rank=rank) for rank in range(2)]
    assert sorted(uid for lease in leases for uid in uids(lease)) == ["a", "b"]
    assert [
        (info.uid, info.dict_info["policy_version"])
        for info, _, _ in coordinator.leftovers("actor_train")
    ] == [("c", 7)]

    following = QueueKey("actor_train", 8)
    put(coordinator, "d", key=following, sources=1, policy_version=8)
    leases = [coordinator.get_partition(following, request, rank=rank) for rank in range(2)]
    assert sorted(uid for lease in leases for uid in uids(lease)) == ["c", "d"]


def test_a_step_waits_for_what_the_one_before_leaves_over():
    coordinator = DataCoordinator()
    following = QueueKey("actor_train", 8)
    put(coordinator, "a", "b", "c", sources=1)
    put(coordinator, "d", key=following, sources=1)
    request = PartitionRequest(2, equal_counts=True)
    assert coordinator.get_partition(following, request, rank=0) is None
    coordinator.get_partition(KEY, request, rank=0)
    assert coordinator.get_partition(following, request, rank=0) is not None


def test_groups_stay_together():
    coordinator = DataCoordinator()
    samples = [
        SampleInfo(sum_tokens=5, uid=f"{group}-{number}", dict_info={"index": group})
        for number in range(3)
        for group in range(4)
    ]
    coordinator.put_batch(KEY, samples, [info.uid for info in samples], sources=1)
    request = PartitionRequest(2, equal_counts=True, keep_groups=True)
    parts = [uids(coordinator.get_partition(KEY, request, rank=rank)) for rank in range(2)]
    groups = [{uid[0] for uid in part} for part in parts]
    assert [len(part) for part in parts] == [6, 6]
    assert not groups[0] & groups[1]


def test_keeping_groups_needs_group_ids():
    coordinator = DataCoordinator()
    put(coordinator, "a", sources=1)
    with pytest.raises(ConfigError, match="sample 'a' has no 'index'"):
        coordinator.get_partition(KEY, PartitionRequest(1, keep_groups=True), rank=0)


def test_rejected_samples_are_left_over_and_can_be_discarded():
    coordinator = DataCoordinator()
    put(coordinator, "stale", sources=2, source=0, policy_version=1)
    put(coordinator, "fresh", sources=2, source=1, policy_version=6)
    lease = coordinator.get_partition(
        KEY,
        PartitionRequest(1),
        rank=0,
        filter_plugin=lambda info: info.dict_info["policy_version"] > 5,
    )
    assert uids(lease) == ["fresh"]
    assert (
        coordinator.discard_leftovers(
            "actor_train", lambda info: info.dict_info["policy_version"] < 3
        )
        == 1
    )
    assert coordinator.leftovers("actor_train") == []


def test_leftovers_survive_a_restart():
    request, coordinator = PartitionRequest(2, equal_counts=True), DataCoordinator()
    put(coordinator, "a", "b", "c", sources=1)
    coordinator.get_partition(KEY, request, rank=0)
    kept = coordinator.leftovers("actor_train")

    resumed = DataCoordinator()
    resumed.restore_leftovers("actor_train", kept)
    following = QueueKey("actor_train", 8)
    put(resumed, "d", key=following, sources=1)
    parts = [resumed.get_partition(following, request, rank=rank) for rank in range(2)]
    assert sorted(ref for part in parts for ref in part.refs) == ["ref-c", "ref-d"]


def test_rank_that_asks_again_gets_the_same_lease():
    coordinator = DataCoordinator()
    two_sources(coordinator)
    first = coordinator.get_partition(KEY, PartitionRequest(2), rank=0)
    assert coordinator.get_partition(KEY, PartitionRequest(2), rank=0) == first


def test_rank_that_has_acknowledged_gets_nothing_twice():
    coordinator = DataCoordinator()
    two_sources(coordinator)
    coordinator.acknowledge(coordinator.get_partition(KEY, PartitionRequest(2), rank=0).lease_id)
    with pytest.raises(
        InvariantError,
        match="Rank 0 has already taken and acknowledged its part of node 'actor_train', step 7",
    ):
        coordinator.get_partition(KEY, PartitionRequest(2), rank=0)


def test_ranks_must_ask_alike():
    coordinator = DataCoordinator()
    two_sources(coordinator)
    coordinator.get_partition(KEY, PartitionRequest(2), rank=0)
    with pytest.raises(InvariantError, match="All ranks must request the same"):
        coordinator.get_partition(KEY, PartitionRequest(3), rank=1)


def test_rank_beyond_the_parts_is_refused():
    coordinator = DataCoordinator()
    two_sources(coordinator)
    with pytest.raises(ConfigError, match="Rank 2 asks"):
        coordinator.get_partition(KEY, PartitionRequest(2), rank=2)


def test_finished_step_is_forgotten():
    coordinator = DataCoordinator()
    two_sources(coordinator)
    for rank in range(2):
        coordinator.acknowledge(
            coordinator.get_partition(KEY, PartitionRequest(2), rank=rank).lease_id
        )
    assert coordinator.missing_sources(KEY) is None
    assert coordinator.stats() == {
        "put": 6,
        "waiting": 0,
        "left_over": 0,
        "leased": 0,
        "acknowledged": 6,
        "discarded": 0,
    }


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
    with pytest.raises(InvariantError, match="Rank 1 expects puts of 3 ranks"):
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


def test_what_another_took_is_not_given_to_a_filter_that_had_accepted_it():
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


def test_a_share_says_what_leaves_and_what_comes():
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


def test_a_row_left_over_in_a_rank_is_fetched_from_where_it_was_kept():
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
