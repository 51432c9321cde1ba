"""Rows change ranks through Ray: real workers, workers that are killed, and a missing one."""

import os
import signal
import tempfile

import pytest
import ray
import torch
from tensordict import NonTensorStack, TensorDict
from torch import distributed

from siirl.data_coordinator.queues import PartitionRequest, QueueKey
from siirl.data_coordinator.ray_edge import start_coordinator
from siirl.data_coordinator.ray_redistribution import RayRedistribution
from siirl.data_coordinator.redistribution import StayOnRank, accepted_rows
from siirl.data_coordinator.sample import Dict2Samples
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import InvariantError, RunFailed

NODE = "actor_train"
TIMEOUT_S = 120.0


def rows_of(rank, lengths):
    """A batch of rank `rank`: row number r has `lengths[r]` tokens, each 10 x rank + r."""
    rows = len(lengths)
    mask_BT = (
        torch.arange(max(lengths, default=1))
        < torch.tensor(lengths, dtype=torch.long).reshape(rows, 1)
    ).long()
    return TensorDict(
        {
            "uid": NonTensorStack(*[f"{rank}-{row}" for row in range(rows)]),
            "index": torch.full((rows,), rank),
            "response_mask": mask_BT,
            "responses": mask_BT * (10 * rank + torch.arange(rows))[:, None],
        },
        batch_size=[rows],
    )


class Worker:
    """One rank in a separate process, which can join one coordinator after another."""

    def join(self, coordinator, rank, ranks, timeout_s, equal_counts, meeting_point):
        if distributed.is_initialized():
            distributed.destroy_process_group()
        distributed.init_process_group(
            "gloo", init_method=meeting_point, rank=rank, world_size=ranks
        )
        self.rank = rank
        request = PartitionRequest(ranks, equal_counts=equal_counts)
        self.exchange = RayRedistribution(
            coordinator, rank=rank, ranks=ranks, request=request, timeout_s=timeout_s
        )
        return os.getpid()

    def redistribute(self, lengths, step):
        """Sum of the tokens by row, and the width that rows were padded to."""
        batch = self.exchange.redistribute(rows_of(self.rank, lengths), node=NODE, step=step)
        return dict(
            zip(batch.get("uid").tolist(), batch["responses"].sum(dim=1).tolist(), strict=True)
        ), batch["responses"].shape[1]

    def bytes_given(self):
        return self.exchange.bytes_given

    def acknowledge(self):
        self.exchange.acknowledge()

    def state(self):
        return self.exchange.state_dict()

    def load_state(self, state):
        self.exchange.load_state_dict(state)


pytestmark = pytest.mark.usefixtures("ray_in_this_process")


@pytest.fixture(scope="module")
def workers(ray_in_this_process):
    """Two workers that no test kills."""
    return [ray.remote(Worker).options(num_cpus=0).remote() for _ in range(2)]


@pytest.fixture
def start():
    """Starts coordinators, and ends them after the test."""
    started = []

    def start_one(**options):
        started.append(start_coordinator(**options))
        return started[-1]

    yield start_one
    for coordinator in started:
        ray.kill(coordinator)


def join(workers, coordinator, *, timeout_s=TIMEOUT_S, equal_counts=False):
    with tempfile.TemporaryDirectory() as folder:
        options = (len(workers), timeout_s, equal_counts, f"file://{folder}/ranks")
        return ray.get(
            [worker.join.remote(coordinator, rank, *options) for rank, worker in enumerate(workers)]
        )


def step_of(workers, shares, step):
    return ray.get(
        [
            worker.redistribute.remote(lengths, step)
            for worker, lengths in zip(workers, shares, strict=True)
        ]
    )


def test_every_row_arrives_once_and_unchanged(workers, start):
    """2 + 9 and 3 + 4 + 4 tokens cannot be shared better than 11 : 11."""
    coordinator = start()
    join(workers, coordinator)
    results = step_of(workers, [[2, 9, 3], [4, 4]], step=0)
    received = {uid: total for rows, _ in results for uid, total in rows.items()}
    assert received == {"0-0": 0, "0-1": 9 * 1, "0-2": 3 * 2, "1-0": 4 * 10, "1-1": 4 * 11}
    assert sorted(width for _, width in results) == [4, 9]
    ray.get([worker.acknowledge.remote() for worker in workers])
    assert ray.get(coordinator.stats.remote())["acknowledged"] == 5


def test_rank_without_rows_still_takes_part(workers, start):
    join(workers, start())
    one_idle = step_of(workers, [[5, 5], []], step=0)
    assert [len(rows) for rows, _ in one_idle] == [1, 1]
    both_idle = step_of(workers, [[], []], step=1)
    assert [len(rows) for rows, _ in both_idle] == [0, 0]


def test_rank_that_never_puts_is_named(workers, start):
    join(workers, start(), timeout_s=1.0)
    with pytest.raises(
        TimeoutError, match=r"node 'actor_train', step 0 within 1 s. Ranks that have not put: \[1\]"
    ):
        ray.get(workers[0].redistribute.remote([3], 0))


def test_full_queue_makes_a_producer_wait_and_an_expired_lease_goes_to_a_waiting_worker(start):
    coordinator, key = start(capacity=1, lease_seconds=2.0), QueueKey("stream", 0)

    def put(uid):
        return coordinator.put_batch.remote(
            key, [SampleInfo(uid=uid)], [ray.put(uid)], 0, None, TIMEOUT_S
        )

    def take(holder):
        return coordinator.get_batch.remote(key, 1, holder, None, TIMEOUT_S)

    ray.get(put("a"))
    blocked = put("b")
    assert ray.wait([blocked], timeout=0.5)[0] == []
    slow = ray.get(take("slow"))
    ray.get(blocked)

    others = ray.get([take("other"), take("third")])
    assert sorted(info.uid for lease in others for info in lease.infos) == ["a", "b"]
    with pytest.raises(InvariantError, match="do not train on them"):
        ray.get(coordinator.acknowledge.remote(key, slow.lease_id))


@pytest.mark.slow
def test_killed_workers_part_is_given_back(start):
    """A replacement would get the lease, but the rows were lost with the worker's memory."""
    coordinator = start()
    workers = [ray.remote(Worker).options(num_cpus=0).remote() for _ in range(2)]
    pids = join(workers, coordinator)
    taken = step_of(workers, [[3, 4, 5, 6], []], step=0)[1][0]
    os.kill(pids[1], signal.SIGKILL)
    assert ray.get(coordinator.release.remote("1")) == len(taken) == 2
    lease = ray.get(
        coordinator.get_partition.remote(QueueKey(NODE, 0), PartitionRequest(2), 1, None, TIMEOUT_S)
    )
    assert {info.uid for info in lease.infos} == set(taken)


@pytest.mark.slow
def test_rows_of_a_killed_maker_are_an_error_and_never_missing_silently(start):
    coordinator = start()
    workers = [ray.remote(Worker).options(num_cpus=0).remote() for _ in range(2)]
    pids = join(workers, coordinator, equal_counts=True)
    step_of(workers, [[3], [4, 5]], step=0)
    assert [info.uid for info, _, _ in ray.get(coordinator.leftovers.remote(NODE))] == ["1-1"]
    os.kill(pids[1], signal.SIGKILL)
    successor = ray.remote(Worker).options(num_cpus=0).remote()
    join([workers[0], successor], coordinator, equal_counts=True)
    with pytest.raises(InvariantError, match="are lost, because the rank that made them died"):
        step_of([workers[0], successor], [[3], []], step=1)


def finish_step(workers, shares, step):
    """Receives a step's rows on each rank and acknowledges them."""
    received = [rows for rows, _ in step_of(workers, shares, step)]
    ray.get([worker.acknowledge.remote() for worker in workers])
    return received


def test_resumed_equals_uninterrupted_where_steps_leave_something_over(workers, start):
    """Three rows a step for two ranks: one row is left over in step 0, so step 1 has four, and step
    2 leaves one over again.
    """
    shares = [[[5], [2, 4]], [[6, 3], [7]], [[1], [8, 9]]]
    join(workers, start(), equal_counts=True)
    whole = [finish_step(workers, share, step) for step, share in enumerate(shares)]
    assert [[len(rows) for rows in received] for received in whole] == [[1, 1], [2, 2], [1, 1]]

    join(workers, start(), equal_counts=True)
    finish_step(workers, shares[0], 0)
    states = ray.get([worker.state.remote() for worker in workers])
    assert [[row["columns"]["uid"] for row in state[NODE]] for state in states] == [
        ["1-1"],
        ["1-1"],
    ]
    join(workers, start(), equal_counts=True)
    ray.get([worker.load_state.remote(states[0]) for worker in workers])
    assert [
        finish_step(workers, share, step) for step, share in list(enumerate(shares))[1:]
    ] == whole[1:]


def test_one_rank_keeps_its_batch():
    batch = rows_of(0, [3])
    assert StayOnRank().redistribute(batch, node=NODE, step=0) is batch


def test_one_rank_takes_up_what_several_had_left_over():
    one, leftover = StayOnRank(), Dict2Samples(rows_of(1, [2]))[0]
    one.load_state_dict({NODE: [{"columns": leftover.columns, "source": 1}]})
    assert one.state_dict()[NODE][0]["columns"]["uid"] == "1-0"
    assert one.redistribute(rows_of(0, [3]), node=NODE, step=5).get("uid").tolist() == [
        "1-0",
        "0-0",
    ]
    assert one.redistribute(rows_of(0, [3]), node=NODE, step=6).get("uid").tolist() == ["0-0"]


def test_a_filter_reads_metadata_and_drops_rows():
    accepted = accepted_rows(
        rows_of(1, [2, 9, 3]),
        lambda info: info.response_length < 5 and info.dict_info["index"] == 1,
    )
    assert accepted.get("uid").tolist() == ["1-0", "1-2"]


def test_a_dead_coordinator_is_named(workers, start):
    coordinator = start()
    join(workers, coordinator)
    ray.kill(coordinator)
    with pytest.raises(RunFailed, match="The process of the data coordinator died"):
        ray.get(workers[0].redistribute.remote([1], 0))
