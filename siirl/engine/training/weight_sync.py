"""Weights from training to rollout, and the proof that they arrived.

On one rank the rollout engine holds the training module itself, and there is nothing to copy. On
several ranks the training module is sharded, and its forward pass needs all ranks at once, which
episodes of different lengths cannot give: each rank then has a whole copy for acting, which is
filled here. An engine with weights of its own (vLLM) is given them, and shows what it made of them.
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
    "Evidence",
    "VersionedEngine",
    "WeightSync",
    "acting_copy",
    "checksum",
]


@dataclass(frozen=True)
class Evidence:
    """What the trained weights would give, and what was found where they act."""

    trained: float
    acting: float
    tolerance: float = 0.0
    """Largest difference: none between checksums, rounding where two programs compute the same."""

    @property
    def agrees(self) -> bool:
        """Whether what acts is what is trained; never with NaN."""
        return self.trained == self.acting or abs(self.trained - self.acting) <= self.tolerance


class ActingWeights(Protocol):
    """What acts, with weights of its own."""

    def take_weights(self, state: Mapping[str, torch.Tensor]) -> list[Evidence]:
        """Replace all weights by `state` (whole tensors, under the trained module's names), and
        show that it was done.
        """


class VersionedEngine(Protocol):
    """An engine that marks what it generates with a version."""

    def update_weights(self, version: int) -> None:
        """Tell the engine that its weights are those of `version`."""


def acting_copy(module: nn.Module, compute_dtype: torch.dtype | None) -> Any:
    """A whole copy of a module that several ranks are going to train, for acting, in evaluation
    mode.

    Its weights are in the type of the passes, as FSDP2 gathers them for training: cast from float32
    as they are used, they leave sums between the layers in float32, and log-probs of the shipped
    model differed by 1e-2 to 2e-2 in the mean. Buffers stay as they are.
    """
    copied = copy.deepcopy(module).eval()
    for weight in copied.parameters() if compute_dtype is not None else ():
        weight.data = weight.data.to(compute_dtype)
    return copied


class ActingModule:
    """A module that acts: the trained one itself, or a copy of it, perhaps with fewer digits."""

    def __init__(self, module: nn.Module, *, trained: nn.Module) -> None:
        self.module, self.trained = module, trained

    def take_weights(self, state: Mapping[str, torch.Tensor]) -> list[Evidence]:
        """See `ActingWeights`."""
        if self.module is self.trained:  # one set of weights, and one number for it
            only = checksum(state)
            return [Evidence(trained=only, acting=only)]
        own = self.module.state_dict()
        state = {name: tensor.to(own[name].dtype) for name, tensor in state.items()}
        self.module.load_state_dict(state)
        return [Evidence(trained=checksum(state), acting=checksum(self.module.state_dict()))]


class WeightSync:
    """Keeps what acts equal to what is trained.

    Args:
        trained: The engine of the policy.
        acting: The module that acts (the trained one itself, or a copy of it), or an engine with
            weights of its own.
        engine: Told the version of its weights.
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
        self.trained, self.engine, self.ranks = trained, engine, ranks
        self.acting: ActingWeights = (
            ActingModule(acting, trained=trained.module)
            if isinstance(acting, nn.Module)
            else acting
        )
        self.version = 0
        self.unchanged = False
        """Whether the last sync followed optimiser steps that left the trained weights as they
        were.
        """
        self._given: list[float] = []

    def sync(self) -> None:
        """Give the present weights to what acts; they are a new version if an optimiser step was
        taken since the last call.

        Raises:
            InvariantError: What acts does not have the trained weights, or ranks act with different
                ones.
        """
        self.trained.upload_weights(self, self.trained.steps)

    def receive_weights(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """See `siirl.engine.training.train_engine.WeightReceiver`; the version is the number of
        optimiser steps.
        """
        finite = all(bool(tensor.isfinite().all()) for tensor in state.values())
        if not all(self.ranks.gather_objects(finite)):
            raise InvariantError(
                f"The policy's weights are not finite after {version} updates. Before the first update: look at the weights that the run "
                "starts from (actor_rollout_ref.model.path, or the policy's own); later: lower actor_rollout_ref.actor.optim.lr."
            )
        everywhere = self.ranks.gather_objects(self.acting.take_weights(state))
        exact = [[piece for piece in pieces if piece.tolerance == 0.0] for pieces in everywhere]
        if any(not piece.agrees for pieces in everywhere for piece in pieces) or any(
            pieces != exact[0] for pieces in exact
        ):
            found = [[(piece.trained, piece.acting) for piece in pieces] for pieces in everywhere]
            raise InvariantError(
                f"After a weight sync the ranks found (trained, acting) {found}: what acts is not what is trained. "
                "Report this with the run's config; the last checkpoint is whole."
            )
        given = [piece.trained for piece in exact[0]]
        self.unchanged = bool(given) and version > self.version and given == self._given
        self._given, self.version = given, version
        self.engine.update_weights(version)
