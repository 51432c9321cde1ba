"""The coordinator divides the samples of a step among ranks."""

import pytest

from siirl.data_coordinator.coordinator import DataCoordinator
from siirl.data_coordinator.queues import PartitionRequest, QueueKey
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import ConfigError, InvariantError
from tests.data_coordinator.queued_samples import KEY, put, two_sources, uids


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
            assert {uid.partition("-")[0] for uid in uids(lease)} == {prefix.rstrip("-")}, key


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


def test_ranks_keep_their_own_rows_where_the_work_allows():
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


def test_equal_counts_leave_the_newest_rows_for_the_next_step():
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


def test_a_step_waits_for_the_leftovers_of_the_one_before():
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


def test_ranks_must_request_the_same_division():
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
