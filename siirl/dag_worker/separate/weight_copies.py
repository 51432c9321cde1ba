"""The weights of a rollout rank's policies: new ones arrive in copies, which are swapped in
together between two forward passes.

Left out: how they arrive, from the object store (`siirl.dag_worker.separate.received_weights`) or
from the training ranks (`siirl.dag_worker.separate.arriving_weights`).
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from siirl.dag_worker.separate.exchange_messages import PublishedWeights, Weights
from siirl.errors import InvariantError

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine


class RunEnded(Exception):
    """The run ends while a rank waits for weights, which then do not come."""


class WeightCopy(Protocol):
    """A copy of one policy's weights."""

    acting_step: int | None
    """Step of the weights that act; None before the first arrival."""
    steps_of_versions: dict[int, int]
    """The last training step whose weights had this version when they acted."""

    @property
    def nbytes(self) -> float:
        """Bytes that it keeps on the rank's device: of the acting weights, and of those beside
        them; not vLLM's.
        """

    def swap(self, weights: Weights) -> None:
        """Let the received weights act."""


Copy = TypeVar("Copy", bound=WeightCopy)


class WeightCopies(ABC, Generic[Copy]):
    """Copies of all policies that act on a rank; they are swapped together.

    Args:
        copies: By the agent group that owns the weights.
        owners: For each agent group, the group that owns its weights.
    """

    def __init__(self, copies: Mapping[int, Copy], *, owners: Mapping[int, int]) -> None:
        self.copies, self.owners = dict(copies), dict(owners)
        self.step = -1
        """Step whose weights act; -1 before the first arrival."""

    @property
    def nbytes(self) -> float:
        """See `WeightCopy`, of all policies."""
        return sum(copy.nbytes for copy in self.copies.values())

    @abstractmethod
    def receive(self, published: PublishedWeights) -> PublishedWeights:
        """Receive the weights that do not act yet, and return what arrived; callable from any
        thread.

        Raises:
            RunEnded: `close` was called while it waited.
        """

    @abstractmethod
    def close(self) -> None:
        """End a `receive` that waits in another thread."""

    def swap(self, published: PublishedWeights) -> None:
        """Let the received weights act, between two forward passes."""
        for copy, weights in self._new(published):
            copy.swap(weights)
        self.step = published.step
        for owner, copy in self.copies.items():
            copy.steps_of_versions[published.of_groups[owner].version] = published.step

    def step_of(self, group: int, version: int) -> int:
        """The last training step whose weights had `version` when they acted for `group`."""
        return self.copies[self.owners[group]].steps_of_versions[version]

    def _new(self, published: PublishedWeights) -> list[tuple[Copy, Weights]]:
        pairs = [(copy, published.of_groups[owner]) for owner, copy in self.copies.items()]
        return [(copy, weights) for copy, weights in pairs if copy.acting_step != weights.step]


def require_all(needed: Iterable[str], sent: Iterable[str], *, step: int) -> None:
    """Refuse weights that leave some of the acting ones as they were, perhaps uninitialised.

    Raises:
        InvariantError: A needed weight was not sent.
    """
    missing = sorted({*needed} - {*sent})
    if missing:
        raise InvariantError(
            f"The weights of step {step} lack {len(missing)} of the acting ones, the first of "
            f"them {missing[0]!r}."
        )


class WeightThread:
    """Receives each new version in a thread, and reports when one can be swapped in.

    Args:
        copies: Receive the weights.
        line: Connection to the exchange.
        arrived: Called in the thread with the received weights; the next weights are received after
            `release`.
    """

    def __init__(
        self,
        copies: WeightCopies[Any],
        line: "ExchangeLine",
        *,
        arrived: Callable[[PublishedWeights], object],
    ) -> None:
        self.copies = copies
        self.line = line
        self.arrived = arrived
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._thread = threading.Thread(target=self._run, name="siirl-weights", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread or that `fail` got, if there is one."""
        if self._error is not None:
            raise self._error

    def fail(self, error: Exception) -> None:
        """Let `check` raise the error of weights that could not be swapped in."""
        self._error = error

    def release(self) -> None:
        """Mark the received weights as acting, so that the second copy may be overwritten."""
        self._free.set()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.copies.close()
        self._free.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._receive_all()
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the rank's thread
            self._error = error

    def _receive_all(self) -> None:
        while True:
            self._free.wait()
            if self._over.is_set():
                return
            self._receive_next()

    def _receive_next(self) -> None:
        """Receive weights if others are published; without a reference to them while it waits."""
        published = self.line.call("weights", None, self.copies.step)
        if published is None:
            return
        self._free.clear()
        if self._over.is_set():  # `stop` set `_free` before it was cleared
            self._free.set()
            return
        try:
            arrived = self.copies.receive(published)
        except RunEnded:  # `stop` follows
            return
        self.arrived(arrived)
