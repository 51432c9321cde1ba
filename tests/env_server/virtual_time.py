"""An event loop whose clock stops while a task runs, and jumps to the next timer when all wait.

Deadlines then expire in the order in which they were set, on any load of the machine. For tests
whose tasks all run on the loop: it does not wait for threads or processes.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the clock by the time that the loop would have waited."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits, and none for a time"
        self.now += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See above; seconds count from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine like asyncio.run."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)
