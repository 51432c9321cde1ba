"""What waits for a node: one queue a step, and what earlier steps left over. Records, with checks
of their own.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import InvariantError


class QueueKey(NamedTuple):
    """Destination node id and training step."""

    node: str
    step: int

    def __str__(self) -> str:
        return f"node {self.node!r}, step {self.step}"


class Entry(NamedTuple):
    """A sample in a queue; sorted by `order`, which is unique."""

    order: tuple[int, int, int]
    """(step, source rank, arrival): does not depend on which rank was faster."""
    info: SampleInfo
    ref: Any
    source: int | None
    """The rank that put it; None where nobody knows any more."""


class Leftover(NamedTuple):
    """A sample that a step left over, as a checkpoint keeps it; a list of them is in their order."""

    info: SampleInfo
    ref: Any
    source: int | None
    """The rank that put it: it decides which rank gets a part, so a resumed run must know it."""


@dataclass(frozen=True)
class PartitionRequest:
    """How a step's samples are divided; the same for all ranks."""

    partitions: int
    """Number of ranks that get a part."""
    equal_counts: bool = False
    """Same number of samples (of groups, with `keep_groups`) for every rank; what is too many is
    left over for the next step.
    """
    keep_groups: bool = False
    """Samples with the same group id (`index`) stay together."""


@dataclass
class StepQueue:
    """Samples of one step for one node."""

    sources: int | None
    """How many ranks put their share; None for a stream."""
    entries: list[Entry] = field(default_factory=list)
    """A heap."""
    uids: set[str] = field(default_factory=set)
    sources_done: set[int] = field(default_factory=set)
    request: PartitionRequest | None = None
    parts: dict[int, list[Entry]] | None = None
    """By rank, those that are not leased now; None before the step is divided."""
    leases: dict[int, int] = field(default_factory=dict)
    """Open lease of each rank's part."""
    leased: int = 0

    @property
    def complete(self) -> bool:
        """Whether all sources have put."""
        return self.sources is not None and len(self.sources_done) == self.sources

    @property
    def done(self) -> bool:
        """Whether every sample is acknowledged."""
        return not (self.entries or self.parts or self.leases or self.leased)

    def add(self, entry: Entry) -> None:
        """Queue a sample."""
        heapq.heappush(self.entries, entry)
        self.uids.add(entry.info.uid)

    def check_put(
        self, key: QueueKey, uids: Sequence[str], *, source: int, sources: int | None
    ) -> None:
        """Refuse what would lose or double samples, with InvariantError."""
        if self.sources != sources:
            raise InvariantError(
                f"Rank {source} says that {sources} ranks put for {key}, and another said {self.sources}."
            )
        if sources is not None and not 0 <= source < sources:
            raise InvariantError(
                f"Rank {source} put for {key}, but only ranks 0 to {sources - 1} do."
            )
        if sources is not None and source in self.sources_done:
            raise InvariantError(f"Rank {source} has put its share for {key} already.")
        for uid, count in Counter(uids).items():
            if count > 1 or uid in self.uids:
                raise InvariantError(
                    f"Sample {uid!r} was put twice for {key}. Each rollout needs an id of its own."
                )


@dataclass
class NodeQueues:
    """All that waits for one node."""

    steps: dict[int, StepQueue] = field(default_factory=dict)
    leftovers: list[Entry] = field(default_factory=list)
    waiting: int = 0
    """Samples in queues, undelivered parts and leftovers; not those leased."""

    def has_undivided_step_before(self, step: int) -> bool:
        """Whether an older step may still leave something over for this one."""
        return any(
            other < step and queue.sources is not None and queue.parts is None
            for other, queue in self.steps.items()
        )
