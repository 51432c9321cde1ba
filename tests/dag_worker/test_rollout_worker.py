"""A rollout rank whose parts fail: it ends with their error, and leaves nothing open."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from siirl.dag_worker.accounting import MemoryPeaks
from siirl.dag_worker.separate.exchange_messages import PublishedWeights, Work
from siirl.dag_worker.separate.rollout_worker import RolloutWorker


class Line:
    """An exchange that publishes weights once, and has no prompts."""

    def __init__(self) -> None:
        self.published = [PublishedWeights(1, {})]
        self.swapped = asyncio.Event()
        self.asked = 0

    def call(self, method: str, *arguments: object) -> PublishedWeights | None:
        assert method == "weights"
        return self.published.pop() if self.published else None

    async def acall(self, method: str, *arguments: object) -> Work:
        assert method == "work"
        await self.swapped.wait()
        self.asked += 1
        return Work(over=self.asked == 2)


class Copies:
    """Weights that arrive but do not fit."""

    step = 0

    def __init__(self, line: Line) -> None:
        self.line = line

    def receive(self, published: PublishedWeights) -> PublishedWeights:
        return published

    def close(self) -> None:
        """Nothing waits."""

    def swap(self, published: PublishedWeights) -> None:
        self.line.swapped.set()
        raise ValueError("they do not fit")


def rank_on(line: Any, loop: asyncio.AbstractEventLoop, groups: int = 1) -> RolloutWorker:
    worker = RolloutWorker(
        graph=cast(Any, SimpleNamespace(agent_groups=lambda: list(range(groups)))),
        rank=1,
        line=line,
        build=dict,
        receives=cast(Any, None),
        streaming=True,
        peaks=MemoryPeaks(torch.device("cpu")),
    )
    worker._loop = loop
    return worker


def test_weights_that_cannot_be_swapped_in_end_the_rank() -> None:
    """Its thread would wait until they act, and the rank would go on with the old ones."""
    line = Line()
    with asyncio.Runner() as runner:
        worker = rank_on(line, runner.get_loop())
        worker.copies = cast(Any, Copies(line))
        with pytest.raises(ValueError, match="they do not fit"):
            worker._stream()


class Runner:
    """A prompt that fails while the rank asks for others."""

    running: frozenset[Any] = frozenset()
    idle_s = 0.0

    def wanted(self) -> int:
        return 1

    def check(self) -> None:
        raise ValueError("a prompt failed")


def test_an_error_leaves_no_question_to_the_exchange() -> None:
    async def never(*arguments: object) -> None:
        await asyncio.Event().wait()

    async def until_command() -> None:
        prompt = asyncio.ensure_future(asyncio.sleep(0))
        worker._runners = {0: cast(Any, Runner())}
        worker._runners[0].running = {prompt}
        await worker._until_command()

    with asyncio.Runner() as runner:
        worker = rank_on(SimpleNamespace(acall=never), runner.get_loop())
        worker.copies = cast(Any, SimpleNamespace(step=0))
        with pytest.raises(ValueError, match="a prompt failed"):
            runner.run(until_command())
        worker._close()
        assert asyncio.all_tasks(runner.get_loop()) == set()


def test_a_part_that_cannot_be_closed_keeps_no_other_open() -> None:
    closed = []

    def part(name: str) -> Any:
        def close() -> None:
            closed.append(name)
            raise ValueError(f"{name} stays open")

        return SimpleNamespace(close=close)

    with asyncio.Runner() as runner:
        worker = rank_on(None, runner.get_loop(), groups=2)
        worker._parts = {
            group: cast(Any, SimpleNamespace(rollout=part(f"r{group}"), closes=[part(f"p{group}")]))
            for group in range(2)
        }
        with pytest.raises(ValueError, match="stays open"):
            worker._close()
    assert closed == ["r1", "p1", "r0", "p0"]
