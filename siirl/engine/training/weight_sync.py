"""Transfers weights from training to rollout, and checks that they arrived.

On one rank the rollout engine holds the training module itself: nothing is copied. On several ranks
the training module is sharded. Its forward pass needs all ranks at once, but episodes differ in
length; so each rank acts with a whole copy, which is filled here. An engine with its own weights
(vLLM) loads them and returns checksums of what it loaded.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from siirl.engine.training.checksum import checksum
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.train_engine import TrainEngine
from siirl.errors import InvariantError

__all__ = [
    "ActingModule",
    "ActingWeights",
    "ChecksumPair",
    "VersionedEngine",
    "WeightSync",
    "acting_copy",
    "checksum",
]


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

    def take_weights(self, state: Mapping[str, torch.Tensor]) -> list[ChecksumPair]:
        """Replace all weights by `state`, and return the numbers before and after.

        `state` holds whole tensors under the trained module's names.
        """


class VersionedEngine(Protocol):
    """An engine that marks generated samples with the version of its weights."""

    def update_weights(self, version: int) -> None:
        """Set the version of the current weights."""


def acting_copy(module: nn.Module, compute_dtype: torch.dtype | None) -> Any:
    """A whole copy, in evaluation mode, of a module that several ranks will train.

    Its weights have the type of the passes, as FSDP2 gathers them in training. Weights kept in
    float32 and cast at use leave sums between layers in float32: log-probs of the shipped model
    then differed by 1e-2 to 2e-2 in the mean. Buffers keep their type.
    """
    copied = copy.deepcopy(module).eval()
    if compute_dtype is not None:
        for weight in copied.parameters():
            weight.data = weight.data.to(compute_dtype)
    return copied


class ActingModule:
    """A module that acts: the trained one itself, or a copy, perhaps in lower precision."""

    def __init__(self, module: nn.Module, *, trained: nn.Module) -> None:
        self.module = module
        self.trained = trained

    def take_weights(self, state: Mapping[str, torch.Tensor]) -> list[ChecksumPair]:
        """See `ActingWeights`."""
        if self.module is self.trained:  # one set of weights, one checksum
            only = checksum(state)
            return [ChecksumPair(trained=only, acting=only)]
        own = self.module.state_dict()
        state = {name: tensor.to(own[name].dtype) for name, tensor in state.items()}
        self.module.load_state_dict(state)
        return [ChecksumPair(trained=checksum(state), acting=checksum(self.module.state_dict()))]


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
        self.acting: ActingWeights = (
            ActingModule(acting, trained=trained.module)
            if isinstance(acting, nn.Module)
            else acting
        )
        self.version = 0
        self.unchanged = False
        """Whether optimiser steps before the last sync left the trained weights unchanged."""
        self._checksums: list[float] = []

    def sync(self) -> None:
        """Copy the current weights to the acting ones.

        Their version is the number of optimiser steps.

        Raises:
            InvariantError: The weights are not finite, the acting weights differ from the trained
                ones, or the ranks act with different weights.
        """
        version = self.trained.steps
        state = self.trained.upload_weights()
        finite = all(bool(tensor.isfinite().all()) for tensor in state.values())
        if not all(self.ranks.gather_objects(finite)):
            raise InvariantError(
                f"The policy's weights are not finite after {version} updates. Before the first "
                "update: check the initial weights (actor_rollout_ref.model.path, or the policy's "
                "own); later: lower actor_rollout_ref.actor.optim.lr."
            )
        everywhere = self.ranks.gather_objects(self.acting.take_weights(state))
        exact = [[pair for pair in pairs if pair.tolerance == 0.0] for pairs in everywhere]
        arrived = all(pair.agrees for pairs in everywhere for pair in pairs)
        if not arrived or any(pairs != exact[0] for pairs in exact):
            found = [[(pair.trained, pair.acting) for pair in pairs] for pairs in everywhere]
            raise InvariantError(
                f"After a weight sync the ranks found (trained, acting) {found}: the acting "
                "weights are not the trained ones. Report this with the run's config; the last "
                "checkpoint is intact."
            )
        checksums = [pair.trained for pair in exact[0]]
        self.unchanged = bool(checksums) and version > self.version and checksums == self._checksums
        self._checksums = checksums
        self.version = version
        self.engine.update_weights(version)
