"""What this process is doing, and since when it has not got on: for whoever must tell a long wait
from an endless one.

A process is one rank, so there is one record, `OCCUPATION`; threads may read it. Whatever shows
that work goes on counts: a node begins, a micro-batch is done, an environment answers. Left out:
the judgement (siirl.execution.scheduler.watchdog).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    """An occupation at one moment. Plain data: it travels between processes."""

    text: str
    """What is being done, the innermost first."""
    waiting: bool
    """Whether for other ranks, who may have good reasons."""
    changes: int
    """Counts up whenever the process gets on."""
    since: float
    """When it last did, in seconds since 1970, by its own machine's clock."""
    words: int = 0
    """Counts up with every snapshot: whoever takes none cannot speak."""


class Occupation:
    """Of the thread that works."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._parts: tuple[tuple[str, bool], ...] = (("starts", False),)
        self._changes, self._since, self._words = 0, clock(), 0

    def got_on(self) -> None:
        """Something is done."""
        self._changes += 1
        self._since = self._clock()

    @contextmanager
    def doing(self, text: str, *, waiting: bool = False) -> Iterator[None]:
        """Be occupied with `text`, as a part of whatever comes around it."""
        outer = self._parts
        self._parts = (*outer, (text, waiting))
        self.got_on()
        try:
            yield
        finally:
            self._parts = outer
            self.got_on()

    def snapshot(self) -> Snapshot:
        """As it is now."""
        parts = self._parts
        self._words += 1
        texts = [text for text, _ in reversed(parts[1:] or parts)]
        return Snapshot(
            text=", ".join(texts),
            waiting=parts[-1][1],
            changes=self._changes,
            since=self._since,
            words=self._words,
        )


OCCUPATION = Occupation()
"""This process's own."""
