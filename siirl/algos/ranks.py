"""Interface of the formulas to other ranks: sums over all ranks, and their rows.

A group may span ranks and whitening counts all tokens, so a formula that saw only its own rank's
rows would give different results on two ranks and on one. `siirl.engine.training.collectives`
implements the interface for several processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from siirl.errors import TensorError


class Ranks(Protocol):
    """Processes that share a batch; all call these methods in the same order."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum of `tensor` over the ranks; the same shape everywhere."""

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """All ranks' rows in rank order, and the slice of this rank's rows.

        Ranks may have different numbers of rows.
        """


class OneRank:
    """A single rank."""

    @property
    def size(self) -> int:
        """One."""
        return 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself."""
        return tensor

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """`rows` themselves."""
        return rows, slice(0, len(rows))


ALONE = OneRank()


@contextmanager
def reject_on_all_ranks(ranks: Ranks) -> Iterator[None]:
    """Raise on every rank if the block rejects the numbers of any, so that none waits for it."""
    try:
        yield
    except TensorError:
        ranks.sum(torch.ones(()))
        raise
    if float(ranks.sum(torch.zeros(()))):
        raise TensorError("Another rank rejected its numbers; its own message names the row.")
