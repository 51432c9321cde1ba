"""Weights on their way to a rollout rank: which of them are stored and fetched, and the thread that
receives them, which ends with its rank whatever arrives meanwhile.
"""

import asyncio
import dataclasses
import threading
import time

import pytest
import torch
from ranks_at_work import run_on_ranks
from tiny_training import make_engine

from siirl.dag_worker.separate.arriving_weights import ModuleInPlace, WeightChannel
from siirl.dag_worker.separate.edge import Edge
from siirl.dag_worker.separate.exchange import Exchange
from siirl.dag_worker.separate.exchange_messages import PublishedWeights, Weights
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.dag_worker.separate.received_weights import (
    SecondCopy,
    StoredCopies,
    StoredCopy,
)
from siirl.dag_worker.separate.sent_weights import WeightSender
from siirl.dag_worker.separate.weight_copies import WeightThread
from siirl.engine.rollout.ledger import RolloutLedger
from siirl.engine.training.collectives import OneProcess
from siirl.errors import InvariantError
from tests.dag_worker.two_groups import ThreadLine
from tests.engine.tiny_policies import Trained, half_frozen

LIMIT_S = 100.0  # only a hang takes longer


class LateLine:
    """An exchange that answers each call when `answer` is set."""

    def __init__(self, weights: PublishedWeights) -> None:
        self.weights = weights
        self.asked, self.answer = threading.Event(), threading.Event()

    def call(self, method: str, *arguments: object) -> PublishedWeights:
        self.asked.set()
        assert self.answer.wait(LIMIT_S)
        return self.weights


def weights(*, checksum: int) -> PublishedWeights:
    return PublishedWeights(1, {0: Weights(step=1, version=1, buckets=(), checksum=checksum)})


class Engine:
    """Acts with the weights."""

    def update_weights(self, version: int) -> None:
        self.version = version


def copies(line) -> StoredCopies:
    return StoredCopies({0: SecondCopy(torch.nn.Identity(), line, Engine())}, owners={0: 0})


def test_weights_that_arrive_while_the_rank_stops_do_not_keep_it_waiting():
    line = LateLine(weights(checksum=0))
    thread = WeightThread(copies(line), line, arrived=lambda weights: None)
    thread.start()
    assert line.asked.wait(LIMIT_S)
    stopping = threading.Thread(target=thread.stop, daemon=True)
    stopping.start()
    stopping.join(0.2)  # it has asked the thread to end, and waits
    line.answer.set()
    stopping.join(LIMIT_S)
    assert not stopping.is_alive()


def test_a_wrong_checksum_ends_the_thread_without_a_trace_and_the_rank_gets_its_error():
    line = LateLine(weights(checksum=7))
    line.answer.set()
    thread = WeightThread(copies(line), line, arrived=lambda weights: None)
    thread.check()
    thread.start()
    with pytest.raises(InvariantError, match="were sent with 7"):
        for _ in range(10_000):
            thread.check()
            time.sleep(0.01)


class Store:
    """An exchange of one process, which counts the bytes that each call fetches."""

    def __init__(self) -> None:
        self.arrays, self.fetched = [], 0

    def store(self, array):
        self.arrays.append(array.copy())
        return len(self.arrays) - 1

    def fetch(self, references):
        found = [self.arrays[each] for each in references]
        self.fetched += sum(each.nbytes for each in found)
        return found

    def call(self, method, group, weights) -> None:
        assert method == "publish"
        self.published = weights


def publisher(module, line) -> WeightPublisher:
    return WeightPublisher(
        group=0, trained=Trained(module), ranks=OneProcess(), line=line, acting_dtype=torch.bfloat16
    )


def fetched_bytes(copy: SecondCopy, line: Store) -> int:
    """Bytes of receiving what was last published; it then acts."""
    line.fetched = 0
    copy.receive(line.published)
    copy.swap(line.published)
    return line.fetched


def same(acting, trained) -> bool:
    return all(
        torch.equal(each, trained.state_dict()[name].to(each.dtype))
        for name, each in acting.state_dict().items()
    )


def acting_module(seed: int) -> torch.nn.Module:
    """Weights in bfloat16; a buffer keeps its type."""
    module = half_frozen(seed=seed)
    for weight in module.parameters():
        weight.data = weight.data.bfloat16()
    return module


def test_frozen_weights_are_stored_once_and_each_of_the_two_copies_fetches_them_once():
    line, trained, acting = Store(), half_frozen(), acting_module(1)
    sender, copy = publisher(trained, line), SecondCopy(acting, line, Engine())
    frozen, changing = 12 * 2, 10 * 2 + 4 * 4
    stored, fetched = [], []
    for _ in range(4):
        with torch.no_grad():
            trained[1].weight += 1
            trained.scale += 1
        sender.sync()
        stored.append(sender.transferred_bytes)
        fetched.append(fetched_bytes(copy, line))
        assert same(acting, trained)
    padding = stored[1] - changing  # views begin at multiples of 16 bytes
    assert 0 <= padding < 3 * 16
    assert stored[0] - stored[1] == pytest.approx(frozen, abs=16)
    assert stored[1:] == [stored[1]] * 3
    assert fetched == [stored[0], stored[0], stored[1], stored[1]]


def test_a_replaced_rank_gets_the_frozen_weights_too():
    line, trained, acting = Store(), half_frozen(), acting_module(2)
    sender = publisher(trained, line)
    for _ in range(3):
        sender.sync()
    fetched_bytes(SecondCopy(acting, line, Engine()), line)
    assert same(acting, trained)


def test_a_frozen_weight_that_its_module_changes_is_published_from_then_on():
    line, trained, acting = Store(), half_frozen(), acting_module(1)
    sender, copy = publisher(trained, line), SecondCopy(acting, line, Engine())
    stored = []
    for factor in (1, 1, 2, 1, 0.5, 3):
        trained[0].weight.data.mul_(factor)
        sender.sync()
        stored.append(sender.transferred_bytes)
        fetched_bytes(copy, line)
        assert same(acting, trained)
    assert stored[2:] == [stored[2]] * 4  # the other frozen weights are not stored again
    assert stored[1] < stored[2] < stored[0]


def test_weights_that_leave_one_of_the_acting_ones_uninitialised_are_refused():
    line, trained, acting = Store(), half_frozen(), acting_module(1)
    acting.register_buffer("further", torch.zeros(2))
    publisher(trained, line).sync()
    copy = SecondCopy(acting, line, Engine())
    with pytest.raises(InvariantError, match=r"step 0 lack 1 of the acting ones.*'further'"):
        copy.receive(line.published)


class EngineOfItsOwn:
    """Takes copies of the weights that it is given, as vLLM does."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.model = module.to("meta")
        self.weights, self.version = {}, None

    def replace_weights(self, weights, *, version: int, probe) -> None:
        self.probe = probe
        self.weights = {rows.name: rows.values.clone() for rows in weights}
        self.version = version


def test_an_engine_takes_all_weights_at_each_swap_and_frozen_ones_are_fetched_once():
    line, trained = Store(), half_frozen()
    sender, engine = publisher(trained, line), EngineOfItsOwn(half_frozen(seed=1))
    copy, fetched = StoredCopy(engine, line), []
    for version in range(3):
        with torch.no_grad():
            trained[1].weight += 1
        sender.trained.steps = version
        sender.sync()
        fetched.append(fetched_bytes(copy, line))
        expected = trained.state_dict()
        assert engine.version == version
        assert engine.weights.keys() == expected.keys()
        assert all(
            torch.equal(each, expected[name].to(each.dtype))
            for name, each in engine.weights.items()
        )
    assert fetched[0] > fetched[1] == fetched[2] > 0


def test_an_engine_gets_the_probe_of_the_weights_that_it_takes():
    line, trained = Store(), half_frozen()
    sender, engine = publisher(trained, line), EngineOfItsOwn(half_frozen(seed=1))
    sender.probe = lambda: ([1, 2], float(trained[1].weight.sum()))
    copy = StoredCopy(engine, line)
    for _ in range(2):
        with torch.no_grad():
            trained[1].weight += 1
        sender.sync()
        fetched_bytes(copy, line)
        assert engine.probe == ([1, 2], float(trained[1].weight.sum()))


def test_a_frozen_weight_that_has_changed_reaches_an_engine_as_it_is_now():
    line, trained = Store(), half_frozen()
    sender, engine = publisher(trained, line), EngineOfItsOwn(half_frozen(seed=1))
    copy = StoredCopy(engine, line)
    for factor in (1, 2, 3):
        trained[0].weight.data.mul_(factor)
        sender.sync()
        fetched_bytes(copy, line)
        assert torch.equal(engine.weights["0.weight"], trained[0].weight.bfloat16())


def test_an_engine_gets_no_weights_with_another_checksum_or_with_a_gap():
    line, trained = Store(), half_frozen()
    publisher(trained, line).sync()
    engine = EngineOfItsOwn(half_frozen(seed=1))
    copy = StoredCopy(engine, line)
    with pytest.raises(InvariantError, match="were sent with 7"):
        copy.receive(dataclasses.replace(line.published, checksum=7))
    with pytest.raises(InvariantError, match=r"lack \d of the acting ones"):
        copy.receive(dataclasses.replace(line.published, frozen=()))
    assert engine.weights == {}


def published_by_two(ranks):
    """Bytes that this rank stored in each of three publications of a sharded policy, the weights
    that then act where rank 0 publishes, and the trained ones.
    """
    line, engine = Store(), make_engine(ranks, module=half_frozen())
    sender = WeightPublisher(
        group=0, trained=engine, ranks=ranks, line=line, acting_dtype=torch.bfloat16
    )
    copy, acting, stored = SecondCopy(acting_module(1), line, Engine()), None, []
    for _ in range(3):
        with torch.no_grad():
            engine.module[1].weight += 1
        sender.sync()
        stored.append(sender.transferred_bytes)
        if ranks.rank == 0:
            fetched_bytes(copy, line)
            acting = copy.module.state_dict()
    return stored, acting, engine.upload_weights()


def test_of_two_ranks_the_first_stores_the_weights_of_both():
    (stored, acting, trained), (others, _, _) = run_on_ranks(published_by_two, ranks=2)
    assert others == [0, 0, 0]
    assert stored[0] > stored[1] == stored[2] > 0
    assert all(torch.equal(each, trained[name].to(each.dtype)) for name, each in acting.items())


def sent_by_two(ranks):
    """The weights that act on a rollout rank, a thread of rank 0, after each of two versions of a
    sharded policy were sent to it, and the trained ones.
    """
    engine, loop = make_engine(ranks, module=half_frozen()), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    ledger = RolloutLedger(batch=2, max_staleness=0, ranks=1, streaming=False)
    line = ThreadLine(Exchange({0: Edge(ledger=ledger, node="get")}), loop)
    sender = WeightSender(
        group=0, trained=engine, ranks=ranks, line=line, acting_dtype=torch.bfloat16
    )
    found = []
    for step in range(2):
        with torch.no_grad():
            engine.module[1].weight += 1
        sender.step = step
        sender.sync()
        if ranks.rank == 0:
            line.call("step_done", step)
            if step == 0:
                line.call("open", 0, 0, 0, None, [], [])
                process = line.call("join", 0)
                line.call("ready", process)
                copy = ModuleInPlace(0, acting_module(1), WeightChannel(line, process), Engine())
            thread = threading.Thread(target=copy.arrive, daemon=True)
            thread.start()
        sender.serve()
        acting = None
        if ranks.rank == 0:
            thread.join(LIMIT_S)
            acting = {name: each.clone() for name, each in copy.module.state_dict().items()}
        found.append((acting, engine.upload_weights()))
    return found


def test_of_two_ranks_the_first_sends_the_weights_of_both():
    found, _ = run_on_ranks(sent_by_two, ranks=2)
    for acting, trained in found:
        assert all(torch.equal(each, trained[name].to(each.dtype)) for name, each in acting.items())
