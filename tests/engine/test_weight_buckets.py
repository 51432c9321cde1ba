"""Weights in buckets: contents, size, and the transports to another process."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_at_work import RANKS, run_on_ranks

from siirl.engine.training.weight_buckets import (
    Broadcast,
    Entry,
    MappedBuffers,
    SharedMemory,
    receive,
    require_peer_access,
)
from siirl.engine.training.weight_buckets import send as send_rows
from siirl.errors import ConfigError
from siirl.models.checksum import RunningChecksum, checksum
from siirl.models.weight_rows import Assembly, in_rows

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64)


class Recorded:
    """A transport that keeps copies of what it delivers, and the size of every buffer."""

    def __init__(self) -> None:
        self.buckets: list[list] = []
        self.sizes: list[int] = []
        self.finished = 0

    def buffer(self, size):
        self.sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)

    def deliver(self, entries, buffer):
        rows = [entry.rows(buffer) for entry in entries]
        self.buckets.append([(r.name, r.first, r.with_values(r.values.clone())) for r in rows])

    def finish(self):
        self.finished += 1

    def weights(self) -> dict[str, torch.Tensor]:
        assembly = Assembly()
        whole = [(name, assembly.add(rows)) for bucket in self.buckets for name, _, rows in bucket]
        return {name: tensor for name, tensor in whole if tensor is not None}


def send(named, transport, *, bucket_bytes) -> int:
    return send_rows(in_rows(named), transport, bucket_bytes=bucket_bytes)


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = {
        f"weight_{i}": torch.randn(5, i + 1, generator=generator).to(dtype)
        for i, dtype in enumerate(DTYPES)
    }
    return {**numbers, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}


def test_a_bucket_holds_as_many_tensors_as_fit():
    transport = Recorded()
    send([(str(i), torch.full((4,), float(i))) for i in range(5)], transport, bucket_bytes=32)
    names = [[name for name, _, _ in bucket] for bucket in transport.buckets]
    assert names == [["0", "1"], ["2", "3"], ["4"]]
    assert (transport.sizes, transport.finished) == ([32], 1)


def test_a_weight_larger_than_a_bucket_is_cut_into_rows():
    transport = Recorded()
    send([("a", torch.zeros(2)), ("b", torch.ones(5, 3))], transport, bucket_bytes=32)
    assert [[(name, first) for name, first, _ in bucket] for bucket in transport.buckets] == [
        [("a", 0)],
        [("b", 0)],  # two rows of twelve bytes
        [("b", 2)],
        [("b", 4)],
    ]
    assert transport.sizes == [32]


def test_a_bucket_grows_to_the_largest_row():
    transport = Recorded()
    send([("a", torch.zeros(2)), ("b", torch.ones(1, 20))], transport, bucket_bytes=32)
    assert transport.sizes == [32, 80]


@settings(deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=8),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=8, max_size=8),
    size=st.integers(1, 200),
)
def test_every_tensor_arrives_with_its_bits_whatever_the_bucket(shapes, dtypes, size):
    sent = {
        str(i): torch.randn(shape).to(dtype)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    }
    transport = Recorded()
    digest = send(sent.items(), transport, bucket_bytes=size)
    found = transport.weights()
    assert list(found) == list(sent)
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    assert digest == checksum(found)


def test_an_entry_survives_as_plain_data():
    entry = Entry("a.b", torch.bfloat16, (9, 3), first=4, count=2, start=16)
    assert Entry.unpacked(list(entry.packed())) == entry
    assert entry.end == 28


def test_shared_memory_reuses_one_buffer_for_all_buckets():
    handles = []
    mapped = MappedBuffers()
    assembly, found = Assembly(), {}

    def call(handle, packed):
        handles.append(handle)
        buffer = mapped.open(handle, device=CPU)
        for rows in (Entry.unpacked(each).rows(buffer) for each in packed):
            found[rows.name] = assembly.add(rows)

    before = len(os.listdir("/proc/self/fd"))
    sent = weights()
    digest = send(sent.items(), SharedMemory(call), bucket_bytes=208)
    mapped.close()
    assert len(set(handles)) == 1 < len(handles)
    assert digest == checksum(found) == checksum(sent)
    assert len(os.listdir("/proc/self/fd")) == before


def answer(pipe):
    """Another process: map each bucket, return the checksum of all."""
    mapped, digest = MappedBuffers(), RunningChecksum()
    while (message := pipe.recv()) is not None:
        handle, packed = message
        buffer = mapped.open(handle, device=CPU)
        for each in packed:
            digest.add(Entry.unpacked(each).rows(buffer))
        pipe.send("copied")
    pipe.send(digest.value)


def test_another_process_maps_the_bucket_and_finds_the_same_bits():
    here, there = RANKS.Pipe()
    process = RANKS.Process(target=answer, args=(there,), daemon=True)
    process.start()

    def call(handle, packed):
        here.send((handle, packed))
        assert here.recv() == "copied"

    digest = send(weights().items(), SharedMemory(call), bucket_bytes=64)
    here.send(None)
    assert here.recv() == digest
    process.join()


def sent_and_received(ranks):
    if ranks.rank == 1:
        return send(weights().items(), Broadcast(ranks.group, source=1), bucket_bytes=64)
    digest, names = RunningChecksum(), []
    for rows in receive(ranks.group, source=1):
        names.append(rows.name)
        digest.add(rows)
    assert list(dict.fromkeys(names)) == list(weights())
    return digest.value


def test_a_broadcast_reaches_every_other_rank_of_the_group():
    one, other = run_on_ranks(sent_and_received)
    assert one == other == checksum(weights())


def test_gpus_that_cannot_read_the_senders_memory_are_refused_by_number(monkeypatch):
    connected = {(1, 0)}
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *two: two in connected)
    require_peer_access(torch.device("cuda", 0), num_gpus=2)
    with pytest.raises(ConfigError, match=r"GPU 2, 3 of this rank cannot read .* GPU 0, .*size=1"):
        require_peer_access(torch.device("cuda", 0), num_gpus=4)
