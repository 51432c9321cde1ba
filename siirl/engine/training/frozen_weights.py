"""Finds the weights of a module that do not change in a run: a checkpoint need not repeat them.

Such a weight has no gradient. A user's module may still change one, such as a target network that
follows the trained weights. Torch counts writes in place, so the count tells; a write to `.data` is
not counted, so a sample of the values is compared as well. A write to `.data` of a few entries
outside the sample is missed.
"""

from collections.abc import Iterator

import torch
from torch import nn

from siirl.engine.training.saved_state import saved_weights
from siirl.engine.training.tensor_files import Types
from siirl.models.checksum import checksum
from siirl.models.stored_tensors import local_part

SAMPLED = 4096  # entries of a weight; reading all would take over a second per GB on a CPU


class FrozenWeights:
    """The frozen weights of a module, from the call of `begin` on; none before it.

    Args:
        module: Whole or sharded.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._start: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """Take the current values as those at the start."""
        self._start = {name: _condition(weight) for name, weight in self._without_gradient()}

    def types(self) -> Types:
        """Type and whole shape of each; a tied weight appears once."""
        return {
            name: (weight.dtype, weight.shape)
            for name, weight in self._without_gradient()
            if self._start.get(name) == _condition(weight)
        }

    def _without_gradient(self) -> Iterator[tuple[str, torch.Tensor]]:
        return (
            (name, tensor)
            for name, tensor in saved_weights(self._module).items()
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        )


def _condition(weight: torch.Tensor) -> tuple[int, int]:
    """Number of writes in place, and checksum of entries of this rank's part at equal distances."""
    flat = local_part(weight).reshape(-1)
    return weight._version, checksum({"": flat[:: max(1, len(flat) // SAMPLED)]})
