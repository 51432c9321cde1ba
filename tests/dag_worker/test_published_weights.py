"""The thread that receives weights ends with its rank, whatever arrives meanwhile."""

import threading
import time

import pytest
import torch

from siirl.dag_worker.separate.exchange_messages import PublishedWeights, Weights
from siirl.dag_worker.separate.published_weights import SecondCopies, SecondCopy, WeightThread
from siirl.errors import InvariantError

LIMIT_S = 10.0  # only a hang takes longer


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


def copies(line) -> SecondCopies:
    return SecondCopies({0: SecondCopy(torch.nn.Linear(1, 1), line, Engine())}, owners={0: 0})


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
        for _ in range(1000):
            thread.check()
            time.sleep(LIMIT_S / 1000)
