"""Several training ranks take the rows of a step from the rollout ranks: each its own share, by
references from the exchange.
"""

import asyncio
import pickle
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from siirl.dag_worker.separate.edge import PROMPT, Edge
from siirl.dag_worker.separate.exchange import Exchange
from siirl.dag_worker.separate.exchange_messages import LOST, Report, RolloutProcess, Weights
from siirl.dag_worker.separate.training_side import SeparateRollouts, TrainingSide, _of_rollouts
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import Prompt, RolloutLedger
from tests.algos.thread_ranks import ThreadRanks, on_threads
from tests.dag_worker.two_groups import ThreadLine

BATCH, RANKS = 4, 2
FIRST = RolloutProcess(rank=0, life=0)


class Reference:
    """Like one of Ray, it loses its owner's address if plain pickle copies it."""

    def __init__(self, thing):
        self.thing = thing

    def __reduce__(self):
        raise pickle.PicklingError("Only the exchange passes references on.")


class ReferenceLine(ThreadLine):
    """A line whose objects are fetched by references; `dead` ones were lost with their owner."""

    def __init__(self, exchange, loop):
        super().__init__(exchange, loop)
        self.dead: set[Reference] = set()

    def store(self, thing):
        return Reference(thing)

    def fetch(self, references):
        return [LOST if one in self.dead else one.thing for one in references]


class PicklingRanks(ThreadRanks):
    """Ranks that exchange copies, as processes do."""

    def gather_objects(self, thing):
        return [pickle.loads(one) for one in self.exchange.all(self.rank, pickle.dumps(thing))]

    def broadcast_object(self, thing):
        return self.gather_objects(thing)[0]


class Publisher:
    """What a training rank reads of a `WeightPublisher` to take rows."""

    step = 1
    sending_s = 0.0

    def __init__(self):
        self.steps_of_versions: dict[int, int] = {}

    def step_done(self):
        """Nothing was published."""

    def serve(self):
        """No rollout rank waits for weights."""

    def transfers(self):
        """Nothing is sent."""
        return {}


@pytest.fixture
def line() -> Iterator[ReferenceLine]:
    """To an open exchange with the batch of step 1 under way on rollout rank 0, which is ready."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    ledger = RolloutLedger(batch=BATCH, max_staleness=0, ranks=1, streaming=False)
    line = ReferenceLine(Exchange({0: Edge(ledger=ledger, node="get")}), loop)
    line.call("publish", 0, Weights(step=0, version=0, buckets=(), checksum=0))
    line.call("open", 0, 0, 0, None, [], [])
    line.call("step_done", 0)
    line.call("ready", FIRST)
    yield line
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def put(line: ReferenceLine, prompts: Sequence[Prompt]) -> dict[int, Reference]:
    """One row for each prompt, whose reward is the prompt's number; references by number."""
    entries, stored = [], {}
    for prompt in prompts:
        row = {"reward": np.float32(prompt.number), "index": prompt.number}
        stored[prompt.number] = line.store([row])
        info = SampleInfo(sum_tokens=1, dict_info={PROMPT: prompt.number})
        entries.append((prompt, info, stored[prompt.number], 0))
    line.call("put", 0, FIRST, entries, None)
    return stored


def training_side(ranks, line) -> TrainingSide:
    return TrainingSide(
        group=0,
        rollouts=SeparateRollouts(line),
        ranks=PicklingRanks(ranks.exchange, ranks.rank, ranks.size),
        publisher=Publisher(),
        max_failed_share=0.0,
        max_staleness=0,
    )


def take(ranks, line) -> list[float]:
    side = training_side(ranks, line)
    return side.get(step=1, prompts=BATCH).batch["reward"].tolist()


def test_each_of_two_training_ranks_fetches_the_rows_of_its_own_share(line):
    put(line, line.call("work", FIRST, {0: 1}, 0).prompts[0])
    parts = on_threads(take, [(line,)] * RANKS)
    assert [len(part) for part in parts] == [2, 2]
    assert sorted(parts[0] + parts[1]) == [0.0, 1.0, 2.0, 3.0]


def test_rows_that_died_with_their_rank_are_rolled_out_again_before_any_rank_trains(line):
    """A replacement puts the rows of prompt 2 again while both ranks wait for the step."""
    stored = put(line, line.call("work", FIRST, {0: 1}, 0).prompts[0])
    line.dead.add(stored[2])

    def replacement():
        while not (again := line.call("work", FIRST, {0: 1}, 0).prompts[0]):
            pass
        put(line, again)

    thread = threading.Thread(target=replacement)
    thread.start()
    parts = on_threads(take, [(line,)] * RANKS)
    thread.join()
    assert sorted(parts[0] + parts[1]) == [0.0, 1.0, 2.0, 3.0]
    assert line.call("totals", 0)["used"] == BATCH


def test_each_rank_of_a_resumed_run_knows_the_steps_of_versions_before_it(line):
    """Rank 1 reports the age of the rows in the checkpoint."""
    ledger = RolloutLedger(batch=BATCH, max_staleness=0, ranks=1, streaming=False, version=21)
    state = {"rollouts": {"ledger": ledger.state_dict(), "rows": [], "versions": {42: 21}}}

    def resumed(ranks):
        side = training_side(ranks, line)
        side.rollouts.begin_step(21)
        side.rollouts.open(step=21, positions={0: 0}, resumed=state)
        return side.publisher.steps_of_versions

    assert on_threads(resumed, [()] * RANKS) == [{42: 21}] * RANKS


def test_the_peaks_of_a_step_are_the_largest_of_all_reports_and_ranks():
    """Rank 0 reports twice."""
    peaks = [(0, 5.0, 7.0), (0, 3.0, 2.0), (1, 4.0, 9.0)]
    reports = [
        (rank, Report({"memory/host_peak_bytes": host, "memory/gpu_peak_bytes": gpu}))
        for rank, host, gpu in peaks
    ]
    found = _of_rollouts(reports)
    assert found == {"memory/host_peak_bytes": 5.0, "memory/gpu_peak_bytes": 9.0}
