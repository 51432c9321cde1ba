"""What a formula needs of the other ranks: sums over all of them, and the rows of all of them.

A group may be spread over ranks and a whitening counts all tokens, so a formula that saw only its
own rows would give other numbers on two ranks than on one. The formulas ask this interface;
`siirl.engine.training.collectives` has the one with processes behind it.
"""

from typing import Protocol

import torch


class Ranks(Protocol):
    """A set of processes that work on parts of the same batch and call these methods in the same
    order.
    """

    @property
    def size(self) -> int:
        """Number of ranks."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum of `tensor` over the ranks; the same shape everywhere."""

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """All ranks' rows in rank order (ranks may have different numbers of them), and the slice
        where this rank's lie.
        """


class OneRank:
    """The only rank there is."""

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
