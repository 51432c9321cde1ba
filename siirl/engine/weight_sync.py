"""Weights from training to rollout, and the proof that they arrived.

On one rank the rollout engine holds the training module itself, and there is nothing to copy. On several ranks the training module is
sharded, and its forward pass needs all ranks at once, which episodes of different lengths cannot give: each rank then has a
whole copy for acting, which is filled here.
"""

from collections.abc import Mapping

import torch
from torch import nn

from siirl.engine.collectives import Collectives
from siirl.engine.rollout.embodied_engine import EmbodiedEngine
from siirl.engine.train_engine import TrainEngine
from siirl.errors import InvariantError


def checksum(tensors: Mapping[str, torch.Tensor]) -> float:
    """A number that changes when any weight does: the sum over tensors of position-weighted entries, in float64."""
    total = 0.0
    for place, name in enumerate(sorted(tensors), start=1):
        flat = tensors[name].detach().double().flatten()
        total += place * float(flat @ torch.linspace(1.0, 2.0, len(flat), dtype=torch.float64, device=flat.device))
    return total


class WeightSync:
    """Keeps the module that acts equal to the one that is trained.

    Args:
        trained: The engine of the policy.
        acting: The module that acts; the trained one itself, or a copy of it.
        engine: Told the version of its weights.
        ranks: All act with the same weights, or the run stops.
    """

    def __init__(self, *, trained: TrainEngine, acting: nn.Module, engine: EmbodiedEngine, ranks: Collectives) -> None:
        self.trained, self.acting, self.engine, self.ranks = trained, acting, engine, ranks
        self.version = 0

    def sync(self) -> None:
        """Give the present weights to what acts; they are a new version if an optimiser step was taken since the last call.

        Raises:
            InvariantError: What acts does not have the trained weights, or ranks act with different ones.
        """
        self.trained.upload_weights(self, self.trained.steps)

    def receive_weights(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """See `siirl.engine.train_engine.WeightReceiver`; the version is the number of optimiser steps."""
        if self.acting is not self.trained.module:
            self.acting.load_state_dict(state)
        expected, found = checksum(state), checksum(self.acting.state_dict())
        everywhere = self.ranks.gather_objects((expected, found))
        if any(pair != (expected, expected) for pair in everywhere):
            raise InvariantError(
                f"After a weight sync (trained, acting) checksums of the ranks are {everywhere}: what acts is not what is trained. "
                "Report this with the run's config; the last checkpoint is whole."
            )
        self.version = version
        self.engine.update_weights(version)
