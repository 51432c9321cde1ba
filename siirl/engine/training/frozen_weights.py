"""Finds the weights of a module that do not change in a run: a checkpoint need not repeat them, and
a copy that acts need not get them again.

Such a weight has no gradient. A user's module may still change one, such as a target network that
follows the trained weights. Torch counts writes in place, so the count tells; a write to `.data` is
not counted, so a sample of the values is compared as well. A write to `.data` of a few entries
outside the sample is missed: checkpoints and copies then keep the value before it.
"""

from collections.abc import Iterator

import torch
from torch import nn

from siirl.engine.training.collectives import Collectives
from siirl.engine.training.saved_state import saved_weights
from siirl.engine.training.tensor_files import Types
from siirl.models.checksum import checksum
from siirl.models.stored_tensors import local_part

SAMPLED = 4096  # entries of a weight; reading all would take over a second per GB on a CPU


class FrozenWeights:
    """The frozen weights of a module, from the call of `begin` on; none before it.

    A weight that has changed once is not returned again, because copies of it have other values
    since. A write on one rank changes it for all.

    Args:
        module: Whole or sharded.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._start: dict[str, tuple[int, int, int]] = {}

    def begin(self) -> None:
        """Take the current values as those at the start."""
        self._start = {name: _condition(weight) for name, weight in self._without_gradient()}

    def types(self, ranks: Collectives) -> Types:
        """Type and whole shape of each that is frozen on all ranks; a tied weight appears once.

        Every rank calls it.
        """
        names, weights = self.names(ranks), saved_weights(self._module)
        return {name: (each.dtype, each.shape) for name, each in weights.items() if name in names}

    def names(self, ranks: Collectives) -> set[str]:
        """All names, of which a tied weight has several, of those that are frozen on all ranks.

        Every rank calls it.
        """
        unchanged = {id(weight) for _, weight in self._unchanged()}
        every = self._module.named_parameters(remove_duplicate=False)
        own = {name for name, weight in every if id(weight) in unchanged}
        return set.intersection(*ranks.gather_objects(own))

    def _unchanged(self) -> list[tuple[str, torch.Tensor]]:
        """The weights of this rank that have been as at the start in every call."""
        found = [
            (name, weight)
            for name, weight in self._without_gradient()
            if self._start.get(name) == _condition(weight)
        ]
        self._start = {name: self._start[name] for name, _ in found}
        return found

    def _without_gradient(self) -> Iterator[tuple[str, torch.Tensor]]:
        return (
            (name, tensor)
            for name, tensor in saved_weights(self._module).items()
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        )


def _condition(weight: torch.Tensor) -> tuple[int, int, int]:
    """Numbers of writes in place, to it and to this rank's part, and a checksum of entries of the
    part at equal distances.
    """
    part = local_part(weight)
    flat = part.reshape(-1)
    sample = {"": flat[:: max(1, len(flat) // SAMPLED)]}
    return weight._version, part._version, checksum(sample)
