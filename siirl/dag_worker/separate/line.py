"""Connection of a rank to the exchange and the stored rows: protocol, and version for threads.

Left out: processes (`siirl.dag_worker.separate.ray_exchange`).
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from siirl.dag_worker.separate.exchange import Exchange

LOST = object()
"""Result of fetching an object whose owner died."""


class Line(Protocol):
    """A rank's connection to the exchange."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the exchange, and wait for its result."""

    async def acall(self, method: str, *arguments: Any) -> Any:
        """The same from a coroutine."""

    def store(self, thing: Any) -> Any:
        """Keep `thing` where the other group can fetch it; returns a reference."""

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """The objects behind the references; `LOST` if the owner died."""


class ThreadLine:
    """Connects threads of one process; the exchange lives on `loop`, which another thread runs."""

    def __init__(self, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        self.exchange, self.loop = exchange, loop

    def call(self, method: str, *arguments: Any) -> Any:
        """See `Line`."""
        coroutine = getattr(self.exchange, method)(*arguments)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def acall(self, method: str, *arguments: Any) -> Any:
        """See `Line`."""
        coroutine = getattr(self.exchange, method)(*arguments)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def store(self, thing: Any) -> Any:
        """See `Line`."""
        return thing

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """See `Line`."""
        return list(references)
