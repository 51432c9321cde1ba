"""When the check of exchanged weights, which vLLM computes beside its requests, is awaited."""

import asyncio
import threading
from concurrent.futures import Future, wait
from types import SimpleNamespace
from typing import Any

import pytest

from siirl.engine.rollout.vllm.async_vllm_engine import AsyncVLLMEngine
from siirl.errors import EngineDied, InvariantError


class EngineDeadError(Exception):
    """As vLLM raises it."""


async def never() -> None: ...


async def dies(*_: Any) -> Any:
    raise EngineDeadError
    yield  # makes it a generator


def engine() -> AsyncVLLMEngine:
    """An engine without vLLM, whose exchanges pause and resume nothing."""
    made = AsyncVLLMEngine.__new__(AsyncVLLMEngine)
    made.dead_error = EngineDeadError
    made.requests = 0
    made.vllm = SimpleNamespace(
        errored=False,
        pause_generation=lambda **_: never(),
        resume_generation=never,
        generate=dies,
    )
    made.loop = asyncio.new_event_loop()
    threading.Thread(target=made.loop.run_forever, daemon=True).start()
    return made


def exchange(made: AsyncVLLMEngine, verification: Future[None]) -> None:
    """Another exchange while the check of the last one is `verification`."""
    made.verification = verification
    with made._paused():
        assert made.verification is None


def test_of_two_checks_in_a_row_that_wait_for_room_one_is_awaited() -> None:
    made = engine()
    dropped: Future[None] = Future()
    exchange(made, dropped)
    assert dropped.cancelled()
    differs: Future[None] = Future()
    timer = threading.Timer(0.1, differs.set_exception, [InvariantError("other weights")])
    timer.start()
    with pytest.raises(InvariantError, match="other weights"):
        exchange(made, differs)


def test_a_check_that_has_ended_is_neither_dropped_nor_counted_as_dropped() -> None:
    made = engine()
    agrees: Future[None] = Future()
    agrees.set_result(None)
    exchange(made, agrees)
    waits: Future[None] = Future()
    exchange(made, waits)
    assert waits.cancelled()


def test_a_vllm_that_dies_during_a_check_is_reported_as_dead() -> None:
    made = engine()
    check = asyncio.run_coroutine_threadsafe(made._output([1], None), made.loop)
    wait([check])
    with pytest.raises(EngineDied, match="vLLM's process died"):
        exchange(made, check)
