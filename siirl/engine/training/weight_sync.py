"""Transfers weights from training to rollout, and checks that they arrived.

On one rank the rollout engine holds the training module itself: nothing is copied. On several ranks
the training module is sharded. Its forward pass needs all ranks at once, but episodes differ in
length. Each rank therefore acts with a whole copy, which is filled here. An engine with its own
weights (vLLM) loads them and returns their checksums.

Weights are sent a few rows at a time: a sync takes no more than one bucket of memory on a rank. A
copy gets them in its own type, and frozen weights, such as those below adapters, only once.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.profiler import record_function

from siirl.engine.training.collectives import Collectives
from siirl.engine.training.frozen_weights import FrozenWeights
from siirl.engine.training.train_engine import TrainEngine
from siirl.errors import InvariantError
from siirl.models.adapters import Adaptable, narrow
from siirl.models.checksum import RunningChecksum, checksum, joined_checksum
from siirl.models.weight_rows import Rows, in_rows
from siirl.models.weights import give_memory, move_to

__all__ = [
    "ActingModule",
    "ActingWeights",
    "ChecksumPair",
    "VersionedEngine",
    "WeightSync",
    "acting_copy",
    "await_weights",
    "checksum",
    "receive_weights",
]

SYNCED = "weight sync"  # a range in the trace of a profiled step


@dataclass(frozen=True)
class ChecksumPair:
    """A number computed from the trained weights, and the same number from the acting weights."""

    trained: float
    acting: float
    tolerance: float = 0.0
    """Largest difference: 0 between checksums, rounding between two programs."""

    @property
    def agrees(self) -> bool:
        """Whether the acting weights are the trained ones; False with NaN."""
        return self.trained == self.acting or abs(self.trained - self.acting) <= self.tolerance


class ActingWeights(Protocol):
    """Weights that act: a module, or an engine with its own copy."""

    @property
    def weight_dtypes(self) -> Mapping[str, torch.dtype]:
        """Types in which it takes weights, by name; others arrive in their own."""

    def has_weights(self) -> bool:
        """Whether it still has the weights that it took last; a restarted server has lost them."""

    def take_weights(self, weights: Iterable[Rows]) -> list[ChecksumPair] | None:
        """Replace all weights by `weights`, and return the checksums of both.

        None: the weights could not be replaced, and the engine refuses every request until a later
        call succeeds.

        Args:
            weights: Weights under the trained module's names. Every rank consumes them to the end,
                one at a time, because each may be gathered over the ranks.
        """


class VersionedEngine(Protocol):
    """An engine that marks generated samples with the version of its weights."""

    def update_weights(self, version: int) -> None:
        """Set the version of the current weights."""


def acting_copy(
    module: nn.Module,
    compute_dtype: torch.dtype | None,
    *,
    device: torch.device | str = "cpu",
) -> Any:
    """A whole copy, in evaluation mode, of a module that several ranks will train; see
    `await_weights`.
    """
    return await_weights(copy.deepcopy(module), compute_dtype, device=device)


def await_weights(
    module: Any,
    compute_dtype: torch.dtype | None,
    *,
    device: torch.device | str = "cpu",
) -> Any:
    """Put a module that acts but does not train on `device`, in evaluation mode; returns it.

    Weights not read yet (`siirl.models.weights.PlannedWeights`) get memory, which the first sync
    fills; no file is read.

    Its weights have the compute dtype, as FSDP2 gathers them in training. Weights kept in
    float32 and cast at use leave sums between layers in float32: log-probs of the shipped model
    then differed by 1e-2 to 2e-2 in the mean. Buffers keep their type.
    """
    if compute_dtype is not None:
        narrow(module.parameters(), compute_dtype)
    give_memory(module, torch.device(device))
    move_to(module, torch.device(device))
    for part in module.modules():
        if isinstance(part, Adaptable):
            part.planned = None
    return module.eval()


class ActingModule:
    """An acting module: the trained one itself, or a copy, possibly in lower precision."""

    def __init__(self, module: nn.Module, *, trained: nn.Module | None) -> None:
        self.module = module
        self.trained = trained
        self._sums: dict[str, RunningChecksum] = {}
        """Checksums of the weights as they were last sent to the copy, by name."""

    @property
    def is_copy(self) -> bool:
        """Whether the module has weights of its own."""
        return self.module is not self.trained

    @property
    def sent(self) -> Set[str]:
        """Names of the weights that the copy has been sent."""
        return self._sums.keys()

    def has_weights(self) -> bool:
        """See `ActingWeights`: a module loses none."""
        return True

    def take_weights(self, weights: Iterable[Rows]) -> list[ChecksumPair]:
        """See `ActingWeights`. A copy keeps the weights that are not sent again; they count in the
        checksums with the values that were sent last.

        Raises:
            InvariantError: An unknown weight, or one that was never sent.
        """
        if not self.is_copy:  # one set of weights, one checksum
            trained = RunningChecksum(weights)
            return [ChecksumPair(trained=trained.value, acting=trained.value)]
        own = self.module.state_dict()
        for rows in weights:
            if rows.name not in own:
                raise InvariantError(
                    f"The acting module has no weight {rows.name!r} of the trained one."
                )
            converted = rows.with_values(rows.values.to(own[rows.name].dtype))
            if rows.first == 0:
                self._sums[rows.name] = RunningChecksum()
            self._sums[rows.name].add(converted)
            rows.of(own[rows.name]).copy_(converted.values)
        missing = sorted(own.keys() - self._sums.keys())
        if missing:
            raise InvariantError(
                f"The trained module lacks {len(missing)} weights of the acting one, the first of "
                f"them {missing[0]!r}."
            )
        sent = joined_checksum(part.value for part in self._sums.values())
        return [ChecksumPair(trained=sent, acting=checksum(self.module.state_dict()))]


def receive_weights(module: nn.Module, weights: Mapping[str, torch.Tensor], *, sent: int) -> None:
    """Let `module` act with whole weights that another process has sent.

    Args:
        module: Acts; its weights keep their type.
        weights: Weights by the trained module's names, in its order.
        sent: The sender's checksum of `weights`.

    Raises:
        InvariantError: Other weights arrived or act, or a name is unknown or missing.
    """
    arrived = checksum(weights)
    [pair] = ActingModule(module, trained=None).take_weights(in_rows(weights.items()))
    if arrived != sent or not pair.agrees:
        raise InvariantError(
            f"Weights were sent with the checksum {sent}, arrived with {arrived}, and act with "
            f"{pair.acting} where {pair.trained} was expected. Report this with the script."
        )


class WeightSync:
    """Keeps the acting weights equal to the trained ones.

    Args:
        trained: The engine of the policy.
        acting: The module that acts (the trained one itself, or a copy), or an engine with its own
            weights.
        engine: Gets the version of its weights.
        ranks: All act with the same weights, or the run stops.
    """

    def __init__(
        self,
        *,
        trained: TrainEngine,
        acting: nn.Module | ActingWeights,
        engine: VersionedEngine,
        ranks: Collectives,
    ) -> None:
        self.trained = trained
        self.engine = engine
        self.ranks = ranks
        self.acting: ActingModule | ActingWeights = (
            ActingModule(acting, trained=trained.module)
            if isinstance(acting, nn.Module)
            else acting
        )
        self.version = 0
        self.unchanged = False
        """Whether optimiser steps before the last sync changed no weight in the type in which it
        acts: a small update may vanish in bfloat16.
        """
        self.transferred_bytes = 0
        """Bytes of weights that the last sync transferred; 0 where the trained module acts."""
        self._checksums: list[float] = []
        self._arrived = False
        """Whether the last sync replaced the weights on every rank."""
        # not `trained.frozen`, which begins anew when a checkpoint is loaded
        self._frozen = FrozenWeights(trained.module)

    def sync(self) -> None:
        """Copy the current weights to the acting ones.

        Their version is the number of optimiser steps.

        Raises:
            InvariantError: The weights are not finite, the acting weights differ from the trained
                ones, or the ranks act with different weights.
        """
        with record_function(SYNCED):
            self._sync()

    def end_step(self) -> None:
        """`sync`, unless the acting weights of every rank are current: no optimiser step was made
        since the last sync, as when all groups of a step are dropped, and no engine lost them.

        Raises:
            InvariantError: See `sync`.
        """
        current = self._arrived and self.trained.steps == self.version and self.acting.has_weights()
        if all(self.ranks.gather_objects(current)):
            self.transferred_bytes = 0
            self.unchanged = False
            return
        self.sync()

    def _sync(self) -> None:
        self._arrived = False
        version = self.trained.steps
        weights = CheckedWeights(self._weights())
        pairs = self.acting.take_weights(weights)
        weights.require_finite(self.ranks, version=version)
        self.transferred_bytes = 0 if self._acts_itself else weights.num_bytes
        gathered = self.ranks.gather_objects(pairs)
        everywhere = [each for each in gathered if each is not None]
        exact = [[pair for pair in each if pair.tolerance == 0.0] for each in everywhere]
        arrived = all(pair.agrees for each in everywhere for pair in each)
        if not arrived or any(each != exact[0] for each in exact):
            found = [[(pair.trained, pair.acting) for pair in each] for each in everywhere]
            raise InvariantError(
                f"After a weight sync the ranks found (trained, acting) {found}: the acting "
                "weights are not the trained ones. Report this with the run's config; the last "
                "checkpoint is intact."
            )
        self._arrived = len(everywhere) == len(gathered)
        checksums = [pair.trained for pair in exact[0]] if exact else []
        self.unchanged = bool(checksums) and version > self.version and checksums == self._checksums
        self._checksums = checksums
        self.version = version
        self.engine.update_weights(version)

    @property
    def _acts_itself(self) -> bool:
        return isinstance(self.acting, ActingModule) and not self.acting.is_copy

    def _weights(self) -> Iterator[Rows]:
        """The weights to send, in the types of the acting ones: to a copy, those that it does not
        have yet.
        """
        if not isinstance(self.acting, ActingModule):
            return self.trained.weights_in_turn(dtypes=self.acting.weight_dtypes)
        if self._acts_itself:
            return self.trained.weights_in_turn()
        if not self.acting.sent:
            self._frozen.begin()
        state = self.acting.module.state_dict()
        return self.trained.weights_in_turn(
            without=self._frozen.names(self.ranks) & self.acting.sent,
            dtypes={name: tensor.dtype for name, tensor in state.items()},
        )


class CheckedWeights:
    """Passes weights on once; records whether all were finite, and their bytes."""

    def __init__(self, weights: Iterable[Rows]) -> None:
        self.weights = weights
        self.finite = True
        self.num_bytes = 0

    def __iter__(self) -> Iterator[Rows]:
        for rows in self.weights:
            self.finite = self.finite and _is_finite(rows.values)
            self.num_bytes += rows.values.nbytes
            yield rows

    def require_finite(self, ranks: Collectives, *, version: int) -> None:
        """Raise InvariantError on all ranks if a weight was not finite on one of them.

        Args:
            ranks: All have consumed the weights.
            version: Optimiser steps that made them.
        """
        if not all(ranks.gather_objects(self.finite)):
            raise InvariantError(
                f"The policy's weights are not finite after {version} updates. Before the first "
                "update: check the initial weights (actor_rollout_ref.model.path, or the policy's "
                "own); later: lower actor_rollout_ref.actor.optim.lr."
            )


def _is_finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    # isfinite() would need twice the memory of its argument; with NaN, both minimum and maximum are
    # NaN
    least, largest = torch.aminmax(tensor)
    return bool(least.isfinite() & largest.isfinite())
