"""Compiles the blocks of a module for the passes of training and scoring (`torch.compile`).

The first pass compiles, and a pass with other sizes compiles again. Compiling takes seconds for a
small model, minutes for a large one. Results differ by rounding. Acting runs the same blocks
uncompiled, because its sizes change with every token. Left out: modules outside the blocks.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from siirl.errors import ConfigError

COMPILER = "inductor"  # torch's own
# All blocks of a class are variants of one function: with and without gradients, of a mask, of
# adapters, of one lane or several. Beyond torch's limit of 8 a variant silently runs uncompiled.
VARIANTS = 64


class Blocks(Protocol):
    """The blocks of a module, compiled or not."""

    def passes(self) -> contextlib.AbstractContextManager[Any]:
        """The passes of training or scoring, backward passes included."""


class PlainBlocks:
    """Blocks that are not compiled."""

    def passes(self) -> contextlib.AbstractContextManager[Any]:
        """See `Blocks`. Functions that are compiled by themselves (attention in blocks) stay so
        beside an engine of `CompiledBlocks`.
        """
        return torch.compiler.set_stance("default")


class CompiledBlocks:
    """Blocks that are compiled in their first pass.

    Args:
        blocks: They stay the same modules, with the same weights.
        backend: Backend of torch.compile.

    Raises:
        ConfigError: No blocks.
    """

    def __init__(self, blocks: Sequence[nn.Module], *, backend: str = COMPILER) -> None:
        if not blocks:
            raise ConfigError(
                "actor_rollout_ref.actor.use_torch_compile=true compiles a model's blocks (the "
                "layers in its lists), but this model has none: set it to false."
            )
        for block in blocks:
            block.compile(backend=backend)
        settings: Any = torch._dynamo.config
        settings.recompile_limit = max(settings.recompile_limit, VARIANTS)
        torch.compiler.set_stance("force_eager")  # outside of `passes`

    def passes(self) -> contextlib.AbstractContextManager[Any]:
        """See `Blocks`."""
        return torch.compiler.set_stance("default")
