"""Sends weights from training to rollout ranks, in buckets, into a second copy. The copy is swapped
in between two forward passes. Frozen weights are stored once, and a copy that has them does not
fetch them again.

The sender puts buckets into the object store, so it never waits. A replaced rollout rank fetches
them like the others. The receiver copies them into separate tensors while the policy acts, verifies
the checksum over their bits, and swaps the two copies by reference. Left out: engines with their
own copy of the weights (vLLM).
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from siirl.dag_worker.separate.exchange_messages import LOST, Bucket, PublishedWeights, Weights
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.frozen_weights import FrozenWeights
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_buckets import ALIGNMENT, Entry, send
from siirl.engine.training.weight_sync import CheckedWeights, VersionedEngine
from siirl.errors import InvariantError
from siirl.models.checksum import RunningChecksum, joined_checksum

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine

# About 14 for a 7B model in bfloat16: small against the weights, large against the cost of a call.
BUCKET_BYTES = 1 << 30


class StoredBuckets:
    """A `siirl.engine.training.weight_buckets.WeightTransport` that stores each bucket."""

    def __init__(self, line: "ExchangeLine") -> None:
        self.line = line
        self.buckets: list[Bucket] = []
        self.stored_bytes = 0

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`."""
        return torch.empty(size, dtype=torch.uint8)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`."""
        used = buffer[: entries[-1].end].numpy()
        self.stored_bytes += len(used)
        packed = tuple(entry.packed() for entry in entries)
        self.buckets.append((packed, self.line.store(used.copy())))

    def finish(self) -> None:
        """See `WeightTransport`."""


class WeightPublisher:
    """Publishes the trained weights; replaces `WeightSync` on a training rank.

    They act from the end of the step on, together with those of other agent groups.

    Args:
        group: The agent group.
        trained: The engine of its policy.
        ranks: The training ranks; rank 0 publishes.
        line: Connection to the exchange.
        acting_dtype: Type of the acting weights; None: that of the trained ones. Buffers keep their
            dtype.
    """

    def __init__(
        self,
        *,
        group: int,
        trained: TrainEngine,
        ranks: Collectives,
        line: "ExchangeLine",
        acting_dtype: torch.dtype | None,
    ) -> None:
        self.group = group
        self.trained = trained
        self.ranks = ranks
        self.line = line
        self.acting_dtype = acting_dtype
        self.step = 0
        """The running training step, or the resumed one."""
        self.version = 0
        self.acting = None
        """None: no copy of the weights acts on this rank."""
        self.transferred_bytes = 0
        """Bytes that the last sync stored for the rollout ranks; 0 on ranks that store none."""
        self.unchanged = False
        """Whether optimiser steps before the last sync changed no weight in the type in which it
        acts: a small update may vanish in bfloat16.
        """
        self.steps_of_versions: dict[int, int] = {}
        """By version: the last training step that ended with it."""
        self._checksum: int | None = None
        # not `trained.frozen`, which begins anew when a checkpoint is loaded
        self._frozen = FrozenWeights(trained.module)
        self._stored: StoredWeights | None = None
        """The weights that were frozen at the first sync."""

    def sync(self) -> None:
        """Publish the current weights as those of the running step.

        Raises:
            InvariantError: The weights are not finite.
        """
        version = self.trained.steps
        first = self._stored is None
        if self._stored is None:
            self._frozen.begin()
            self._stored = self._store(self._frozen.names(self.ranks), version=version)
        frozen = self._stored
        still = frozen.names & self._frozen.names(self.ranks)
        changing = self._store(self.trained.module.state_dict().keys() - still, version=version)
        if self.ranks.rank == 0:
            self.transferred_bytes = changing.num_bytes + first * frozen.num_bytes
            published = Weights(
                step=self.step,
                version=version,
                frozen=frozen.buckets,
                buckets=changing.buckets,
                checksum=joined_checksum([frozen.checksum, changing.checksum]),
            )
            self.line.call("publish", self.group, published)
        self.unchanged = version > self.version and changing.checksum == self._checksum
        self._checksum = changing.checksum
        self.version = version

    def step_done(self) -> None:
        """Record that the running step ended with the last published weights."""
        self.steps_of_versions[self.version] = self.step

    def _store(self, names: Set[str], *, version: int) -> "StoredWeights":
        """Store the weights with these names, as they act: all ranks gather them, rank 0 stores
        them.
        """
        state = self.trained.module.state_dict()
        without = state.keys() - names
        dtypes = {}
        if self.acting_dtype is not None:
            parameters = self.trained.module.named_parameters(remove_duplicate=False)
            dtypes = {name: self.acting_dtype for name, _ in parameters}
        weights = CheckedWeights(self.trained.weights_in_turn(without=without, dtypes=dtypes))
        transport = StoredBuckets(self.line)
        if self.ranks.rank == 0:
            size = sum(state[name].numel() * state[name].element_size() for name in names)
            bucket_bytes = min(BUCKET_BYTES, size + ALIGNMENT * len(names) + 1)
            checksum = send(weights, transport, bucket_bytes=bucket_bytes)
        else:
            checksum = RunningChecksum(weights).value
        weights.require_finite(self.ranks, version=version)
        return StoredWeights(
            frozenset(names), tuple(transport.buckets), checksum, transport.stored_bytes
        )


@dataclass(frozen=True)
class StoredWeights:
    """Weights in the object store."""

    names: frozenset[str]
    buckets: tuple[Bucket, ...]
    """Empty on ranks that store none."""
    checksum: int
    num_bytes: int


class SecondCopy:
    """Second copy of an acting module's weights: receives new ones, then swaps the two.

    Args:
        module: The acting module.
        line: Connection to the exchange.
        engine: Gets the version of its weights.
    """

    def __init__(self, module: nn.Module, line: "ExchangeLine", engine: VersionedEngine) -> None:
        self.module = module
        self.line = line
        self.engine = engine
        self.acting: Weights | None = None
        """The weights that act; None before the first arrival."""
        self.steps_of_versions: dict[int, int] = {}
        kept = module.state_dict().keys()
        self._own: dict[str, torch.Tensor] = {
            name: tensor
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
            if name in kept
        }
        self._spare = {name: torch.empty_like(tensor.data) for name, tensor in self._own.items()}
        # the buckets of frozen weights that each of the two has, with their checksum
        self._own_frozen: tuple[tuple[Bucket, ...], int] | None = None
        self._spare_frozen: tuple[tuple[Bucket, ...], int] | None = None

    def receive(self, weights: Weights) -> None:
        """Copy published weights into the second copy while the first acts; callable from any
        thread.

        Raises:
            InvariantError: The checksum differs from the sender's, or a weight was not sent.
        """
        self._require_all(weights)
        if self._spare_frozen is None or self._spare_frozen[0] != weights.frozen:
            self._spare_frozen = weights.frozen, self._copy(weights.frozen, step=weights.step)
        changing = self._copy(weights.buckets, step=weights.step)
        arrived = joined_checksum([self._spare_frozen[1], changing])
        if arrived != weights.checksum:
            raise InvariantError(
                f"The weights of step {weights.step} arrived with the checksum {arrived}, but "
                f"were sent with {weights.checksum}. Report this with the run's config; the last "
                "checkpoint is intact."
            )

    def _require_all(self, weights: Weights) -> None:
        """Refuse weights that leave some of the second copy as they were, perhaps uninitialised."""
        sent = {
            Entry.unpacked(each).name
            for packed, _ in (*weights.frozen, *weights.buckets)
            for each in packed
        }
        missing = sorted(self._spare.keys() - sent)
        if missing:
            raise InvariantError(
                f"The weights of step {weights.step} lack {len(missing)} of the acting ones, the "
                f"first of them {missing[0]!r}."
            )

    def _copy(self, buckets: Iterable[Bucket], *, step: int) -> int:
        """Copy buckets into the second copy; returns their checksum there."""
        digest = RunningChecksum()
        for packed, reference in buckets:
            [array] = self.line.fetch([reference])
            if array is LOST:
                raise InvariantError(
                    f"The weights of step {step} are lost, because the training rank died."
                )
            buffer = torch.from_numpy(np.array(array, copy=True))
            for rows in (Entry.unpacked(each).rows(buffer) for each in packed):
                if rows.name in self._spare:
                    place = rows.of(self._spare[rows.name])
                    place.copy_(rows.values)
                    rows = rows.with_values(place)
                digest.add(rows)
        return digest.value

    def swap(self, weights: Weights) -> None:
        """Let the received weights act."""
        for name, tensor in self._own.items():
            tensor.data, self._spare[name] = self._spare[name], tensor.data
        self._own_frozen, self._spare_frozen = self._spare_frozen, self._own_frozen
        self.acting = weights
        self.engine.update_weights(weights.version)


class SecondCopies:
    """Second copies of all policies that act on a rank; they are swapped together.

    Args:
        copies: Second copies, by the agent group that owns the weights.
        owners: For each agent group, the group that owns its weights.
    """

    def __init__(self, copies: Mapping[int, SecondCopy], *, owners: Mapping[int, int]) -> None:
        self.copies, self.owners = dict(copies), dict(owners)
        self.step = -1
        """Step whose weights act; -1 before the first arrival."""

    def receive(self, published: PublishedWeights) -> None:
        """Receive the weights that do not act yet; see `SecondCopy`."""
        for copy, weights in self._new(published):
            copy.receive(weights)

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

    def _new(self, published: PublishedWeights) -> list[tuple[SecondCopy, Weights]]:
        pairs = [(copy, published.of_groups[owner]) for owner, copy in self.copies.items()]
        return [
            (copy, weights)
            for copy, weights in pairs
            if copy.acting is None or copy.acting.step != weights.step
        ]


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
        copies: SecondCopies,
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
            published = self.line.call("weights", None, self.copies.step)
            if published is None:
                continue
            self._free.clear()
            if self._over.is_set():  # `stop` set `_free` before it was cleared
                return
            self.copies.receive(published)
            self.arrived(published)
