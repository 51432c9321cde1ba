"""Receives stored weights on a rollout rank while the old ones act, and swaps them in between two
forward passes.

A module has a second copy of its tensors: arriving weights are copied into it, and the two are
swapped by reference. For an engine with its own copy of the weights (vLLM), arriving weights stay
in the object store's memory until the engine takes them. Both verify the checksum over the bits,
and fetch frozen weights once. Left out: publishing (`siirl.dag_worker.separate.published_weights`),
and weights that training ranks send (`siirl.dag_worker.separate.arriving_weights`).
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from siirl.dag_worker.separate.exchange_messages import (
    LOST,
    Bucket,
    PublishedWeights,
    RolloutProcess,
    Weights,
)
from siirl.dag_worker.separate.rollout_ranks import RolloutParts
from siirl.dag_worker.separate.weight_copies import WeightCopies, require_all
from siirl.engine.training.saved_state import saved_weights
from siirl.engine.training.weight_buckets import Entry
from siirl.engine.training.weight_sync import VersionedEngine
from siirl.errors import InvariantError
from siirl.models.adapters import adapters_first
from siirl.models.checksum import RunningChecksum, joined_checksum
from siirl.models.weight_rows import Rows

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine


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
        self.acting_step: int | None = None
        """Step of the weights that act; None before the first arrival. The weights themselves would
        keep their buckets in the object store.
        """
        self.steps_of_versions: dict[int, int] = {}
        self._own = saved_weights(module)
        self._spare = self._second()
        # the buckets of frozen weights that each of the two has, with their checksum
        self._own_frozen: tuple[tuple[Bucket, ...], int] | None = None
        self._spare_frozen: tuple[tuple[Bucket, ...], int] | None = None

    def _second(self) -> dict[str, torch.Tensor]:
        """Memory of the second copy."""
        return {name: torch.empty_like(tensor.data) for name, tensor in self._own.items()}

    @property
    def nbytes(self) -> float:
        """See `WeightCopy`; memory that is in both copies counts once."""
        tensors = (*self._own.values(), *self._spare.values())
        return float(sum({each.data_ptr(): each.nbytes for each in tensors}.values()))

    def receive(self, weights: Weights) -> None:
        """Copy published weights into the second copy while the first acts; callable from any
        thread.

        Raises:
            InvariantError: The checksum differs from the sender's, or a weight was not sent.
        """
        require_all(self._spare, _sent(weights), step=weights.step)
        if self._spare_frozen is None or self._spare_frozen[0] != weights.frozen:
            self._spare_frozen = weights.frozen, self._copy(weights.frozen, step=weights.step)
        changing = self._copy(weights.buckets, step=weights.step)
        _require_arrived(weights, frozen=self._spare_frozen[1], changing=changing)

    def _copy(self, buckets: Iterable[Bucket], *, step: int) -> int:
        """Copy buckets into the second copy; returns their checksum there."""
        digest = RunningChecksum()
        for rows in _fetched(self.line, buckets, step=step):
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
        self.acting_step = weights.step
        self.engine.update_weights(weights.version)


class EngineWithWeights(Protocol):
    """An engine with its own copy of the weights, which takes new ones between two passes."""

    model: nn.Module
    """The trained module, without memory: names of its weights."""

    def replace_weights(
        self, weights: Iterable[Rows], *, version: int, probe: tuple[list[int], float] | None
    ) -> None:
        """Act with `weights` from now on, also in requests that are running.

        Args:
            weights: All weights under the trained module's names, adapters before the weights that
                they change.
            version: Their version.
            probe: A text and its mean log-prob by the trained module; None: not compared.

        Raises:
            InvariantError: Other weights have arrived, or act otherwise.
        """


class StoredCopy:
    """Second copy of an engine's weights: the object store's memory, from which the engine takes
    them.

    Args:
        engine: Holds the weights that act.
        line: Connection to the exchange.
    """

    nbytes = 0.0

    def __init__(self, engine: EngineWithWeights, line: "ExchangeLine") -> None:
        self.engine = engine
        self.line = line
        self.acting_step: int | None = None
        """See `SecondCopy`."""
        self.steps_of_versions: dict[int, int] = {}
        self._needed = saved_weights(engine.model).keys()
        self._frozen_buckets: tuple[Bucket, ...] = ()
        self._frozen, self._changing = HeldRows(()), HeldRows(())

    def receive(self, weights: Weights) -> None:
        """Bring published weights to this machine; see `SecondCopy`."""
        require_all(self._needed, _sent(weights), step=weights.step)
        if self._frozen_buckets != weights.frozen:
            self._frozen = HeldRows(_fetched(self.line, weights.frozen, step=weights.step))
            self._frozen_buckets = weights.frozen
        self._changing = HeldRows(_fetched(self.line, weights.buckets, step=weights.step))
        _require_arrived(weights, frozen=self._frozen.checksum, changing=self._changing.checksum)

    def swap(self, weights: Weights) -> None:
        """Let the received weights act; they are then dropped, but for the frozen ones, which an
        engine with merged adapters needs again.
        """
        held = self._frozen.by_name | self._changing.by_name
        rows = (part for _, parts in adapters_first(held) for part in parts)
        self.engine.replace_weights(rows, version=weights.version, probe=weights.probe)
        self._changing = HeldRows(())
        self.acting_step = weights.step


class HeldRows:
    """Rows of weights by name, and their checksum; stored ones are views of the object store."""

    def __init__(self, rows: Iterable[Rows]) -> None:
        digest = RunningChecksum()
        self.by_name: dict[str, list[Rows]] = defaultdict(list)
        for part in rows:
            digest.add(part)
            self.by_name[part.name].append(part)
        self.checksum = digest.value


def _fetched(line: "ExchangeLine", buckets: Iterable[Bucket], *, step: int) -> Iterator[Rows]:
    """The rows in the buckets, as read-only views of the object store's memory."""
    # they are only read
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    for packed, reference in buckets:
        [array] = line.fetch([reference])
        if array is LOST:
            raise InvariantError(
                f"The weights of step {step} are lost, because the training rank died."
            )
        buffer = torch.from_numpy(array)
        yield from (Entry.unpacked(each).rows(buffer) for each in packed)


def _sent(weights: Weights) -> set[str]:
    """Names of the weights in the buckets."""
    return {
        Entry.unpacked(each).name
        for packed, _ in (*weights.frozen, *weights.buckets)
        for each in packed
    }


def _require_arrived(weights: Weights, *, frozen: int, changing: int) -> None:
    arrived = joined_checksum([frozen, changing])
    if arrived != weights.checksum:
        raise InvariantError(
            f"The weights of step {weights.step} arrived with the checksum {arrived}, but "
            f"were sent with {weights.checksum}. Report this with the run's config; the last "
            "checkpoint is intact."
        )


class StoredCopies(WeightCopies[SecondCopy | StoredCopy]):
    """Copies of all policies that act on a rank, which fetch stored weights."""

    def receive(self, published: PublishedWeights) -> PublishedWeights:
        """Receive the weights that do not act yet (see `SecondCopy`); returns what arrived."""
        for copy, weights in self._new(published):
            copy.receive(weights)
        return published

    def close(self) -> None:
        """Do nothing: stored weights are there at once."""


def stored_copies(
    parts: Mapping[int, RolloutParts], process: RolloutProcess, *, line: "ExchangeLine"
) -> StoredCopies:
    """Second copies of all policies, which fetch stored weights."""
    return StoredCopies(
        {
            group: SecondCopy(part.acting, line, part.engine)
            if isinstance(part.acting, nn.Module)
            else StoredCopy(part.acting, line)
            for group, part in parts.items()
            if part.owner == group
        },
        owners={group: part.owner for group, part in parts.items()},
    )
