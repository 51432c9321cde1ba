"""For any behaviour of the workers, no sample is lost and no sample is leased twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from siirl.data_coordinator.coordinator import DataCoordinator
from siirl.data_coordinator.queues import PartitionRequest, QueueKey
from siirl.data_coordinator.sample_info import SampleInfo

SOURCES = 2
RANKS = 3
REQUEST = PartitionRequest(RANKS, equal_counts=True)


class Coordinator(RuleBasedStateMachine):
    """Ranks put, take, die, finish and lose leases in any order, in a stream and in divided steps
    at once.
    """

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.coordinator = DataCoordinator(capacity=40, lease_seconds=5, clock=lambda: self.now)
        self.made = 0
        self.accepted = {"stream": set(), "divided": set()}
        self.leases = {}
        self.used = []
        self.next_step = [0] * SOURCES

    def new(self, count):
        names = [f"sample-{self.made + number}" for number in range(count)]
        self.made += count
        return names

    def put(self, key, count, **options):
        names = self.new(count)
        samples = [SampleInfo(sum_tokens=len(name), uid=name) for name in names]
        accepted = self.coordinator.put_batch(key, samples, names, **options)
        if accepted:
            self.accepted[key.node].update(names)
        return accepted

    @rule(count=st.integers(0, 9))
    def put_into_stream(self, count):
        self.put(QueueKey("stream", 0), count)

    @rule(source=st.integers(0, SOURCES - 1), count=st.integers(0, 9))
    def put_for_step(self, source, count):
        if self.put(
            QueueKey("divided", self.next_step[source]), count, source=source, sources=SOURCES
        ):
            self.next_step[source] += 1

    @rule(count=st.integers(1, 5), holder=st.sampled_from("xyz"), odd_only=st.booleans())
    def take_from_stream(self, count, holder, odd_only):
        accepts = (lambda info: int(info.uid.split("-")[1]) % 2 == 1) if odd_only else None
        lease = self.coordinator.get_batch(
            QueueKey("stream", 0), count=count, holder=holder, filter_plugin=accepts
        )
        if lease is not None:
            assert len(lease.infos) == count
            assert accepts is None or all(accepts(info) for info in lease.infos)
            self.hold(lease)

    @rule(step=st.integers(0, 6), rank=st.integers(0, RANKS - 1))
    def take_part(self, step, rank):
        done = (step, rank) in {key for key, used in self.parts_used().items() if used}
        if done:
            return
        lease = self.coordinator.get_partition(QueueKey("divided", step), REQUEST, rank=rank)
        if lease is not None:
            self.hold(lease)

    def parts_used(self):
        return {
            (lease.key.step, int(lease.holder)): True
            for lease in self.used
            if lease.key.node == "divided"
        }

    def hold(self, lease):
        self.leases[lease.lease_id] = lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def finish(self, data):
        lease = self.leases.pop(data.draw(st.sampled_from(sorted(self.leases))))
        self.coordinator.acknowledge(lease.lease_id)
        self.used.append(lease)

    @rule(holder=st.sampled_from([*"xyz", *map(str, range(RANKS))]))
    def die(self, holder):
        self.coordinator.release(holder)
        self.leases = {
            lease_id: lease for lease_id, lease in self.leases.items() if lease.holder != holder
        }

    @rule()
    def time_passes_until_all_leases_expire(self):
        self.now += 6
        self.coordinator.expire()
        self.leases = {}

    @invariant()
    def no_sample_is_in_two_hands(self):
        held = [ref for lease in [*self.leases.values(), *self.used] for ref in lease.refs]
        assert len(held) == len(set(held))

    @invariant()
    def samples_stay_with_their_node(self):
        for lease in self.leases.values():
            assert set(lease.refs) <= self.accepted[lease.key.node]

    @invariant()
    def no_sample_is_lost(self):
        stats = self.coordinator.stats()
        assert stats["put"] == sum(map(len, self.accepted.values()))
        assert (
            stats["put"]
            == stats["waiting"]
            + stats["left_over"]
            + stats["leased"]
            + stats["acknowledged"]
            + stats["discarded"]
        )
        assert stats["leased"] == sum(len(lease.refs) for lease in self.leases.values())
        assert stats["acknowledged"] == sum(len(lease.refs) for lease in self.used)

    def teardown(self):
        """All that is left in the stream can still be taken."""
        self.coordinator.expire()
        for holder in [*"xyz", *map(str, range(RANKS))]:
            self.coordinator.release(holder)
        used = {ref for lease in self.used for ref in lease.refs}
        left = len(self.accepted["stream"] - used)
        if left:
            lease = self.coordinator.get_batch(QueueKey("stream", 0), count=left, holder="last")
            assert set(lease.refs) == self.accepted["stream"] - used


Coordinator.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestCoordinator = Coordinator.TestCase
