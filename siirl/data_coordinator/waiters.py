"""Waiting calls; a put wakes only those that can proceed.

Calls with the same request to the same queue wait in one line: if the first cannot proceed, no
other can. So the cost of a change grows with the number of different requests, not of waiting
calls.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from siirl.data_coordinator.queues import QueueKey
from siirl.errors import SiirlError

Line = deque[tuple[Callable[[], Any], "asyncio.Future[Any]"]]
"""Each waiting call: its attempt (which returns None if it must wait) and its future."""


class Waiters:
    """Lines by queue and request."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[QueueKey, dict[tuple[Any, ...], Line]]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def keys(self, node: str | None = None) -> list[QueueKey]:
        """Queues that have waiting calls, of one node or of all, by step."""
        nodes = self._lines if node is None else [node]
        return sorted(key for name in nodes for key in self._lines.get(name, ()))

    async def wait(
        self, key: QueueKey, wish: tuple[Any, ...], attempt: Callable[[], Any], timeout: float
    ) -> Any:
        """The result of `attempt`, as soon as `serve` finds one.

        Raises:
            TimeoutError: No result after `timeout` seconds.
        """
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = (attempt, result)
        self._lines.setdefault(key.node, {}).setdefault(key, {}).setdefault(wish, deque()).append(
            call
        )
        try:
            async with asyncio.timeout(timeout):
                return await result
        except TimeoutError:
            if result.done() and not result.cancelled():  # resolved in the same loop iteration
                return result.result()
            raise
        finally:
            self._leave(key, wish, call)

    def serve(self, key: QueueKey) -> int:
        """Resolve all calls that can proceed, or fail them with their attempts' errors; returns how
        many.
        """
        served = 0
        for wish, line in list(self._lines.get(key.node, {}).get(key, {}).items()):
            while line and self._attempt(*line[0]):
                served += 1
                line.popleft()
            if not line:
                self._drop(key, wish)
        return served

    def _attempt(self, attempt: Callable[[], Any], waiting: "asyncio.Future[Any]") -> bool:
        if waiting.done():  # timed out
            return True
        try:
            result = attempt()
        except SiirlError as error:  # belongs to the waiting call
            waiting.set_exception(error)
            return True
        if result is None:
            return False
        waiting.set_result(result)
        return True

    def _leave(self, key: QueueKey, wish: tuple[Any, ...], call: Any) -> None:
        line = self._lines.get(key.node, {}).get(key, {}).get(wish)
        if line is None or call not in line:
            return
        line.remove(call)
        if not line:
            self._drop(key, wish)

    def _drop(self, key: QueueKey, wish: tuple[Any, ...]) -> None:
        queues = self._lines[key.node]
        del queues[key][wish]
        if not queues[key]:
            del queues[key]
        if not queues:
            del self._lines[key.node]
