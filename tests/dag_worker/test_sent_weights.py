"""Weights that a training process sends to rollout processes: bit-equal on all of them, also if one
dies or stops in the middle of the transfer, if the training process does, and on a replacement.
"""

import os
import signal
import time
from typing import Any

import pytest
import ray
import torch
from torch import nn

from siirl.dag_worker.separate import arriving_weights, group_buckets, sent_weights
from siirl.dag_worker.separate.edge import Edge
from siirl.dag_worker.separate.exchange_messages import Receiver
from siirl.dag_worker.separate.group_buckets import machine_name
from siirl.dag_worker.separate.ray_exchange import ExchangeLine, start_exchange
from siirl.dag_worker.separate.rollout_ranks import RolloutParts
from siirl.dag_worker.separate.sent_weights import WeightSender
from siirl.engine.rollout.ledger import RolloutLedger
from siirl.engine.training.collectives import OneProcess
from siirl.errors import RunFailed
from siirl.models.checksum import checksum
from tests.engine.tiny_policies import Trained

pytestmark = pytest.mark.usefixtures("ray_in_this_process")
SMALL_BUCKET = 100_000  # a layer has 40,000 bytes
LIMIT_S = 1500.0  # for a hang; a process imports for 6 s, on busy cores for more than a minute
REST_S = 5.0


def policy(seed: int) -> nn.Sequential:
    """Ten layers; the first is frozen."""
    torch.manual_seed(seed)
    layers = nn.Sequential(*(nn.Linear(100, 100, bias=False) for _ in range(10)))
    layers[0].requires_grad_(False)
    return layers


class Engine:
    """Gets the version of the weights that act."""

    version = -1

    def update_weights(self, version: int) -> None:
        self.version = version


class RolloutProcess:
    """Works as a rollout rank that receives weights and does nothing else; one after another, since
    a process takes six seconds to import what it needs.
    """

    def begin(self, exchange, rank, *, streaming=False, fate=0, apart=False):
        """Work as a new process; returns its id.

        Args:
            exchange: The exchange's actor.
            rank: Number of the rank.
            streaming: Whether weights arrive beside those that act.
            fate: Signal that it sends itself when it has received half of the weights; 0: none.
            apart: Whether it is on another machine than the training process.
        """
        torch.set_num_threads(1)
        arriving_weights.machine_name = (lambda: "another machine") if apart else machine_name
        self.line, self.engine, self.fate = ExchangeLine(exchange), Engine(), fate
        self.process = self.line.call("join", rank)
        self.module = policy(seed=100 + rank)
        nothing: Any = None
        part = RolloutParts(
            *(nothing, nothing, self.engine, nothing, nothing), self.module, owner=0, closes=()
        )
        self.copies = arriving_weights.arriving_copies(
            {0: part}, self.process, line=self.line, streaming=streaming
        )
        placed = self.copies._copy._placed

        def fateful(rows):
            for number, part in enumerate(placed(rows)):
                if number == 5 and self.fate:
                    fate, self.fate = self.fate, 0
                    os.kill(os.getpid(), fate)
                yield part

        self.copies._copy._placed = fateful
        self.line.call("ready", self.process)
        return os.getpid()

    def receive(self):
        """Step, version and checksum of the weights that act after the newest have arrived."""
        published = self.line.call("weights", None, self.copies.step)
        self.copies.swap(self.copies.receive(published))
        return self.copies.step, self.engine.version, checksum(self.module.state_dict())

    def rest(self):
        """Return when no call is running."""


class TrainingProcess:
    """A training rank that only sends weights; `fate` is a signal as above."""

    def __init__(self, exchange, *, seed, fate=0):
        torch.set_num_threads(1)
        sent_weights.BUCKET_BYTES = SMALL_BUCKET
        self.line = ExchangeLine(exchange)
        self.trained = FatefulTrained(policy(seed), fate)
        self.sender = WeightSender(
            group=0, trained=self.trained, ranks=OneProcess(), line=self.line, acting_dtype=None
        )

    def publish(self, step):
        self.sender.step = step
        self.sender.sync()
        self.line.call("step_done", step)
        return checksum(self.trained.module.state_dict())

    def train(self):
        with torch.no_grad():
            for layer in self.trained.module[1:]:
                layer.weight += torch.randn(100, 100)
        self.trained.steps += 1

    def serve(self):
        """Serve once; the bytes that were sent since the last call."""
        self.sender.serve()
        return self.sent_bytes()

    def sent_bytes(self):
        """Bytes that were sent since the last call."""
        return self.sender.transfers()["sync/bytes"]

    def serve_until(self, answers):
        """Serve until rollout processes have answered, as in the wait for rows."""
        while len(ray.wait(answers, num_returns=len(answers), timeout=0)[0]) < len(answers):
            self.sender.serve()
        return ray.get(answers)


class FatefulTrained(Trained):
    """An engine that sends its process a signal in the middle of the weights."""

    def __init__(self, module, fate):
        super().__init__(module, steps=0)
        self.fate = fate

    def weights_in_turn(self, **options):
        for number, rows in enumerate(super().weights_in_turn(**options)):
            if number == 5 and self.fate:
                os.kill(os.getpid(), self.fate)
            yield rows


@pytest.fixture
def exchange():
    ledger = RolloutLedger(batch=2, max_staleness=0, ranks=2, streaming=False)
    return start_exchange({0: Edge(ledger=ledger, node="get")})


@pytest.fixture
def training(exchange, monkeypatch) -> TrainingProcess:
    """A sender in this process whose first weights are published."""
    monkeypatch.setattr(sent_weights, "BUCKET_BYTES", SMALL_BUCKET)
    sender = TrainingProcess(exchange, seed=1)
    sender.publish(0)
    sender.line.call("open", 0, 0, 0, None, [], [])
    return sender


@pytest.fixture(scope="module")
def idle() -> list[Any]:
    """Processes that have worked in earlier tests."""
    return []


@pytest.fixture
def rollouts(exchange, idle):
    """Lets processes work as ranks from `first` on: their actors and process ids."""
    working = []

    def begin(*options, first=0, **shared):
        started = [
            idle.pop() if idle else ray.remote(RolloutProcess).options(num_cpus=0).remote()
            for _ in options
        ]
        working.extend(started)
        begun = [
            each.begin.remote(exchange, rank, **shared, **own)
            for rank, (each, own) in enumerate(zip(started, options, strict=True), start=first)
        ]
        return started, ray.get(begun, timeout=LIMIT_S)

    yield begin
    for each in working:
        try:
            ray.get(each.rest.remote(), timeout=REST_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            ray.kill(each)  # dead, or it still waits for weights
        else:
            idle.append(each)


@pytest.mark.parametrize(
    ("streaming", "apart"),
    [(False, False), (True, True)],
    ids=["lockstep on one machine", "stream over machines"],
)
def test_every_rollout_process_acts_with_the_bits_of_each_step(
    rollouts, training, streaming, apart
):
    """Ten layers arrive in each copy once; then the frozen one stays."""
    started, _ = rollouts({}, {}, streaming=streaming, apart=apart)
    layer, sent = 40_000, []
    for step in range(4):
        if step:
            training.train()
        bits = training.publish(step)
        answers = [each.receive.remote() for each in started]
        assert training.serve_until(answers) == [(step, step, bits)] * 2
        sent.append(training.sent_bytes())
    assert sent == [layer * count for count in ((10, 10, 9, 9) if streaming else (10, 9, 9, 9))]


@pytest.mark.parametrize(
    "apart", [pytest.param(False, marks=pytest.mark.slow), True], ids=["one machine", "machines"]
)
def test_a_rank_killed_in_the_middle_keeps_no_weights_from_the_other_and_its_replacement_gets_them(
    rollouts, training, apart, caplog
):
    (other, killed), _ = rollouts({}, {"fate": signal.SIGKILL}, apart=apart)
    bits = training.publish(0)
    dying, answer = killed.receive.remote(), other.receive.remote()
    assert training.serve_until([answer]) == [(0, 0, bits)]
    # the whole transfer, and the buckets before the break; broadcast ones may still be under way
    assert 400_000 < training.sent_bytes() <= (800_000 if apart else 400_000 + 6 * 40_000)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(dying, timeout=LIMIT_S)
    what = "weights of step 0 to rollout rank 0, 1 broke off: One of them closed its connection"
    assert what in caplog.text
    assert ".cc:" not in caplog.text  # gloo's source files
    training.line.call("rank_died", 1)
    [replacement], _ = rollouts({}, first=1, apart=apart)
    assert training.serve_until([replacement.receive.remote()]) == [(0, 0, bits)]
    training.train()
    bits = training.publish(1)
    answers = [each.receive.remote() for each in (other, replacement)]
    assert training.serve_until(answers) == [(1, 1, bits)] * 2


@pytest.mark.parametrize("streaming", [False, True], ids=["lockstep", "stream"])
def test_weights_that_no_update_changed_reach_only_a_rank_that_does_not_have_them(
    rollouts, training, streaming
):
    [one], _ = rollouts({}, streaming=streaming)
    bits = training.publish(0)
    assert training.serve_until([one.receive.remote()]) == [(0, 0, bits)]
    training.sent_bytes()
    training.publish(1)
    begin = time.perf_counter()
    assert training.serve() == 0
    assert time.perf_counter() - begin < 0.4  # nor does training wait until it asks
    assert ray.get(one.receive.remote(), timeout=LIMIT_S) == (1, 0, bits)
    [joiner], _ = rollouts({}, first=1, streaming=streaming)
    assert training.serve_until([joiner.receive.remote()]) == [(1, 0, bits)]
    assert training.sent_bytes() == 400_000
    training.train()
    bits = training.publish(2)
    answers = [one.receive.remote(), joiner.receive.remote()]
    assert training.serve_until(answers) == [(2, 1, bits)] * 2
    training.trained.steps += 1  # an update that changes no weight has a version of its own
    training.publish(3)
    answers = [one.receive.remote(), joiner.receive.remote()]
    assert training.serve_until(answers) == [(3, 2, bits)] * 2


def test_a_transfer_that_breaks_off_before_its_first_bucket_counts_no_bytes(
    exchange, training, monkeypatch
):
    monkeypatch.setattr(sent_weights.OpenGroup, "connect", closed_network)
    process = training.line.call("join", 0)
    training.line.call("ready", process)
    training.line.call("next_round", process, Receiver("this machine", whole=True))
    assert training.serve() == 0
    assert training.sender._broken == 1


def test_the_seconds_of_sending_are_those_of_the_transfers_whose_bytes_are_counted(
    rollouts, training
):
    """Not the wait until a rank asks, nor a call in which none does."""
    [one], _ = rollouts({})
    training.publish(0)
    training.sender.serve()
    assert training.sender.transfers() == {"sync/seconds": 0.0, "sync/bytes": 0.0}
    answer = one.receive.remote()
    begin = time.perf_counter()
    training.serve_until([answer])
    found = training.sender.transfers()
    assert 0 < found["sync/seconds"] < time.perf_counter() - begin
    assert found["sync/bytes"] == 400_000
    assert training.sender.transfers() == {"sync/seconds": 0.0, "sync/bytes": 0.0}


def test_a_rank_that_stops_in_the_middle_delays_the_other_by_the_time_limit(
    rollouts, training, monkeypatch
):
    monkeypatch.setattr(group_buckets, "SILENCE_S", 3.0)
    (other, stopped), pids = rollouts({}, {"fate": signal.SIGSTOP})
    bits = training.publish(0)
    late, answer = stopped.receive.remote(), other.receive.remote()
    assert training.serve_until([answer]) == [(0, 0, bits)]
    os.kill(pids[1], signal.SIGCONT)
    assert training.serve_until([late]) == [(0, 0, bits)]


def test_a_killed_training_process_leaves_no_half_weights_and_a_resumed_one_sends_them(
    exchange, training, rollouts
):
    (one, two), _ = rollouts({}, {}, streaming=True)
    actor = ray.remote(TrainingProcess).options(num_cpus=0)
    dying = actor.remote(exchange, seed=1, fate=signal.SIGKILL)
    ray.get(dying.publish.remote(0), timeout=LIMIT_S)
    answers = [one.receive.remote(), two.receive.remote()]
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(dying.serve.remote(), timeout=LIMIT_S)
    assert ray.wait(answers, timeout=1.0)[0] == []
    bits = training.publish(0)
    assert training.serve_until(answers) == [(0, 0, bits)] * 2


@pytest.mark.slow  # the rollout process gives up after 30 seconds, twice
def test_three_transfers_that_break_off_end_the_run_with_the_cause(rollouts, training, monkeypatch):
    monkeypatch.setattr(sent_weights.OpenGroup, "connect", closed_network)
    (one, _), _ = rollouts({}, {})
    waiting = one.receive.remote()
    with pytest.raises(RunFailed, match=r"rollout rank 0 broke off, like the 2 before it: closed"):
        training.serve_until([waiting])


def closed_network(opened):
    del opened._store  # the rollout process need not wait for its time limit
    raise RuntimeError("closed")


def test_nothing_is_sent_to_a_process_that_died_while_it_waited(rollouts, training):
    (one, two), pids = rollouts({}, {})
    training.publish(0)
    answers = [one.receive.remote(), two.receive.remote()]
    while len(training.line.call("receivers", True)) < 2:
        pass
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(answers[1], timeout=LIMIT_S)
    training.line.call("rank_died", 1)
    assert training.serve() == 400_000
    assert ray.get(answers[0], timeout=LIMIT_S)[0] == 0
