"""Queues of a node's samples: one per step, and leftovers of earlier steps."""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import ConfigError, InvariantError

FilterPlugin = Callable[[SampleInfo], bool]
"""Accepts or rejects a sample by its metadata alone; the answer for a sample never changes."""

VIEWS = 8  # filters that a queue remembers; the least recently used one is dropped

Order = tuple[int, int, int]
"""(step, source rank, arrival): independent of which rank was faster."""


def accepts(filter_plugin: FilterPlugin, info: SampleInfo) -> bool:
    """A filter's verdict on a sample.

    Raises:
        ConfigError: It raised an exception.
    """
    try:
        return filter_plugin(info)
    except Exception as error:
        raise ConfigError(
            f"The filter {filter_plugin!r} raised {type(error).__name__} for sample {info.uid!r}: "
            f"{error}."
        ) from error


class QueueKey(NamedTuple):
    """Destination node id and training step."""

    node: str
    step: int

    def __str__(self) -> str:
        return f"node {self.node!r}, step {self.step}"


class QueuedSample(NamedTuple):
    """A sample in a queue; sorted by `order`, which is unique."""

    order: Order
    info: SampleInfo
    ref: Any
    """Reference to fetch the sample by; None while it is in the memory of `source`."""
    source: int | None
    """The rank that put it; None if unknown."""


class Leftover(NamedTuple):
    """A sample that a step left over, as a checkpoint stores it; lists keep their order."""

    info: SampleInfo
    ref: Any
    source: int | None
    """The rank that put it; the division among ranks depends on it, so a resumed run must know
    it."""


@dataclass(frozen=True)
class PartitionRequest:
    """Division of a step's samples; the same for all ranks."""

    partitions: int
    """Number of ranks that get a part."""
    equal_counts: bool = False
    """Same number of samples (of groups, with `keep_groups`) for every rank; the surplus is left
    over for the next step.
    """
    keep_groups: bool = False
    """Samples with the same group id (`index`) stay together."""


@dataclass(frozen=True)
class Transfers:
    """One rank's transfers, after which every rank of a divided step has its part."""

    leaving: Mapping[int, Sequence[str]]
    """Ids of the rows in its memory that go to another rank, by that rank."""
    arriving: Mapping[int, Sequence[str]]
    """Ids of the rows that come from another rank's memory, by that rank."""
    fetched: Mapping[str, Any]
    """References of the rows of its part that are in no rank's memory, by id."""
    left_over: Sequence[str]
    """Ids of the rows in its memory that wait for the next step; `keep` registers their
    location."""
    exchange: bool
    """Whether any rank sends a row: the same for all ranks of the step."""


@dataclass(frozen=True)
class Share:
    """A rank's part of a step; acknowledge `lease_id` when its rows are used."""

    lease_id: int
    transfers: Transfers


class WaitingEntries:
    """Entries in order; takes the first of all, or of those that a filter accepts.

    A filter is called once for each entry, however often it is used: accepted entries are queued
    for it. A taken entry is dropped from the other queues when it reaches their front.
    """

    def __init__(self) -> None:
        self._entries: dict[Order, QueuedSample] = {}
        self._order: list[Order] = []  # a heap, including orders of entries that were taken since
        self._views: dict[FilterPlugin, _View] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: QueuedSample) -> None:
        """Queue an entry."""
        self._entries[entry.order] = entry
        heapq.heappush(self._order, entry.order)
        for view in self._views.values():
            view.unseen.append(entry)
        if len(self._order) > 2 * len(self._entries) + VIEWS:
            self._forget_taken()

    def take(
        self, count: int, filter_plugin: FilterPlugin | None = None
    ) -> list[QueuedSample] | None:
        """Remove the first `count` (of those accepted); None, without removing any, if fewer."""
        if len(self._entries) < count:
            return None
        if filter_plugin is None:
            return [self._pop(self._order) for _ in range(count)]
        view = self._view(filter_plugin)
        while view.unseen:
            entry = view.unseen[-1]
            if entry.order in self._entries and accepts(filter_plugin, entry.info):
                view.accepted.add(entry.order)
                heapq.heappush(view.order, entry.order)
            view.unseen.pop()
        if len(view.accepted) < count:
            return None
        return [self._pop(view.order) for _ in range(count)]

    def take_all(self) -> list[QueuedSample]:
        """Remove all."""
        return [self._pop(self._order) for _ in range(len(self._entries))]

    def _forget_taken(self) -> None:
        """Drop taken entries from queues that are no longer read."""
        self._order = sorted(self._entries)
        for view in self._views.values():
            view.order = sorted(view.accepted)
            view.unseen = [entry for entry in view.unseen if entry.order in self._entries]

    def _view(self, filter_plugin: FilterPlugin) -> "_View":
        view = self._views.pop(filter_plugin, None) or _View(unseen=list(self._entries.values()))
        self._views[filter_plugin] = view  # the most recently used one is last
        if len(self._views) > VIEWS:
            del self._views[next(iter(self._views))]
        return view

    def _pop(self, order: list[Order]) -> QueuedSample:
        while (first := heapq.heappop(order)) not in self._entries:
            pass
        for view in self._views.values():
            view.accepted.discard(first)
        return self._entries.pop(first)


@dataclass
class _View:
    """Entries as one filter sees them."""

    unseen: list[QueuedSample]
    """Entries that the filter has not seen yet."""
    accepted: set[Order] = field(default_factory=set)
    order: list[Order] = field(default_factory=list)
    """A heap of `accepted`; may include orders of taken entries."""


@dataclass
class StepQueue:
    """Samples of one step for one node."""

    sources: int | None
    """Number of ranks that put a share; None for a stream."""
    entries: WaitingEntries = field(default_factory=WaitingEntries)
    uids: set[str] = field(default_factory=set)
    sources_done: set[int] = field(default_factory=set)
    request: PartitionRequest | None = None
    parts: dict[int, list[QueuedSample]] | None = None
    """Samples by rank that are not leased now; None before the step is divided."""
    transfers: list[Transfers] = field(default_factory=list)
    """Transfers of all ranks that put or have a part, by rank; empty before the step is divided."""
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

    def add(self, entry: QueuedSample) -> None:
        """Queue a sample."""
        self.entries.add(entry)
        self.uids.add(entry.info.uid)

    def check_put(
        self, key: QueueKey, uids: Sequence[str], *, source: int, sources: int | None
    ) -> None:
        """Refuse puts that would lose or duplicate samples, with InvariantError."""
        if self.sources != sources:
            raise InvariantError(
                f"Rank {source} expects {sources} ranks to put for {key}, but another rank expects "
                f"{self.sources}."
            )
        if sources is not None and not 0 <= source < sources:
            raise InvariantError(
                f"Rank {source} put for {key}, but only ranks 0 to {sources - 1} may."
            )
        if sources is not None and source in self.sources_done:
            raise InvariantError(f"Rank {source} has already put its share for {key}.")
        for uid, count in Counter(uids).items():
            if count > 1 or uid in self.uids:
                raise InvariantError(
                    f"Sample {uid!r} was put twice for {key}. Each rollout needs a unique id."
                )


@dataclass
class NodeQueues:
    """All samples that wait for one node."""

    steps: dict[int, StepQueue] = field(default_factory=dict)
    leftovers: list[QueuedSample] = field(default_factory=list)
    waiting: int = 0
    """Samples in queues, undelivered parts and leftovers; not those leased."""
    _ascending: list[int] = field(default_factory=list)
    """A heap of `steps`; may include steps that are done."""
    _undivided: list[int] = field(default_factory=list)
    """A heap of steps to divide; may include steps that were divided meanwhile."""

    def add_step(self, step: int, queue: StepQueue) -> None:
        """Register a step's queue."""
        if step in self.steps:
            return
        self.steps[step] = queue
        heapq.heappush(self._ascending, step)
        if queue.sources is not None:
            heapq.heappush(self._undivided, step)

    def oldest_step(self) -> int | None:
        """The first step that has a queue."""
        while self._ascending and self._ascending[0] not in self.steps:
            heapq.heappop(self._ascending)
        return self._ascending[0] if self._ascending else None

    def has_undivided_step_before(self, step: int) -> bool:
        """Whether an older step may still leave samples over for this one."""
        while self._undivided:
            queue = self.steps.get(self._undivided[0])
            if queue is not None and queue.parts is None:
                return self._undivided[0] < step
            heapq.heappop(self._undivided)
        return False
