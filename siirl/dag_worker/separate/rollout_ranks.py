"""Collectives of the rollout ranks for small objects, through the run's exchange.

They share no process group: a dead rank is replaced while the others continue, and its replacement
runs the current evaluation from the start.
"""

from typing import TypeVar

import torch

from siirl.dag_worker.separate.line import Line
from siirl.occupation import OCCUPATION

Thing = TypeVar("Thing")


class RolloutRanks:
    """Collectives (`siirl.engine.training.collectives`) of the rollout ranks in an evaluation.

    Args:
        line: Connection to the exchange.
        rank: This rank's number in the group.
        size: Number of rollout ranks.
    """

    group = None

    def __init__(self, line: Line, *, rank: int, size: int) -> None:
        self.line, self.rank, self.size = line, rank, size
        self._call = self._number = 0

    def begin(self, call: int) -> None:
        """Begin evaluation number `call`."""
        self._call, self._number = call, 0

    def gather_objects(self, thing: Thing) -> list[Thing]:
        """See Collectives."""
        if self.size == 1:
            return [thing]
        self._number += 1
        with OCCUPATION.doing("waits for the other rollout ranks", waiting=True):
            found: list[Thing] | None = None
            while found is None:
                found = self.line.call("gather", self._call, self._number, self.rank, thing)
        return found

    def broadcast_object(self, thing: Thing) -> Thing:
        """See Collectives."""
        return self.gather_objects(thing)[0]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return torch.stack(self.gather_objects(tensor)).sum(0)

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Collectives."""
        return torch.stack(self.gather_objects(tensor)).amax(0)

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """See Ranks."""
        parts = self.gather_objects(rows)
        start = sum(len(part) for part in parts[: self.rank])
        return torch.cat(parts), slice(start, start + len(rows))
