"""Publishes weights from training for rollout ranks, in buckets in the object store. Frozen weights
are stored once.

The sender never waits, and a replaced rollout rank fetches the buckets like the others. Left out:
receiving them (`siirl.dag_worker.separate.received_weights`).
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from siirl.dag_worker.separate.exchange_messages import Bucket, Weights
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.frozen_weights import FrozenWeights
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_buckets import ALIGNMENT, Entry, send
from siirl.engine.training.weight_sync import CheckedWeights
from siirl.models.checksum import RunningChecksum, joined_checksum
from siirl.reporting.metrics import Value

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine

# About 14 for a 7B model in bfloat16: small against the weights, large against the cost of a call.
BUCKET_BYTES = 1 << 30


class StoredBuckets:
    """A `siirl.engine.training.weight_buckets.WeightTransport` that stores each bucket.

    Args:
        line: Connection to the exchange.
        device: Device of the weights; from a GPU they are copied several times as fast into pinned
            memory.
    """

    def __init__(self, line: "ExchangeLine", device: torch.device) -> None:
        self.line = line
        self.pins = device.type == "cuda"
        self.buckets: list[Bucket] = []
        self.stored_bytes = 0

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=self.pins)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`."""
        used = buffer[: entries[-1].end].numpy()
        self.stored_bytes += len(used)
        packed = tuple(entry.packed() for entry in entries)
        self.buckets.append((packed, self.line.store(used)))

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
        probe: Makes `Weights.probe`; every rank calls it. None: there is none.
    """

    def __init__(
        self,
        *,
        group: int,
        trained: TrainEngine,
        ranks: Collectives,
        line: "ExchangeLine",
        acting_dtype: torch.dtype | None,
        probe: Callable[[], tuple[list[int], float]] | None = None,
    ) -> None:
        self.group = group
        self.trained = trained
        self.ranks = ranks
        self.line = line
        self.acting_dtype = acting_dtype
        self.probe = probe
        self.step = 0
        """The running training step, or the resumed one."""
        self.version = 0
        self.acting = None
        """None: no copy of the weights acts on this rank."""
        self.transferred_bytes = 0
        """Bytes that the last sync stored for the rollout ranks; 0 on ranks that store none, and
        if weights are sent (`transfers`)."""
        self.sending_s = 0.0
        """Seconds of all transfers so far in which weights were sent."""
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
        probe = None if self.probe is None else self.probe()
        if self.ranks.rank == 0:
            self.transferred_bytes = changing.num_bytes + first * frozen.num_bytes
            published = Weights(
                step=self.step,
                version=version,
                frozen=frozen.buckets,
                buckets=changing.buckets,
                checksum=joined_checksum([frozen.checksum, changing.checksum]),
                probe=probe,
            )
            self.line.call("publish", self.group, published)
        self.unchanged = version > self.version and changing.checksum == self._checksum
        self._checksum = changing.checksum
        self.version = version

    def end_step(self) -> None:
        """`sync`, also with the weights of the step before: the rollout ranks wait for those of
        every step.
        """
        self.sync()

    def step_done(self) -> None:
        """Record that the running step ended with the last published weights."""
        self.steps_of_versions[self.version] = self.step

    def serve(self) -> None:
        """Do nothing: rollout ranks fetch stored weights themselves."""

    def transfers(self) -> dict[str, Value]:
        """Metrics of the weights sent since the last call; empty, because stored ones are counted
        by `sync`.
        """
        return {}

    def acting_dtypes(self) -> dict[str, torch.dtype]:
        """Types in which weights act, by name; others act in their own."""
        if self.acting_dtype is None:
            return {}
        parameters = self.trained.module.named_parameters(remove_duplicate=False)
        return {name: self.acting_dtype for name, _ in parameters}

    def _store(self, names: Set[str], *, version: int) -> "StoredWeights":
        """Store the weights with these names, as they act: all ranks gather them, rank 0 stores
        them.
        """
        state = self.trained.module.state_dict()
        without = state.keys() - names
        weights = CheckedWeights(
            self.trained.weights_in_turn(without=without, dtypes=self.acting_dtypes())
        )
        transport = StoredBuckets(self.line, self.trained.device)
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
