"""What the `data_rebalance` stage asks for: this rank's share of a step's rows, once all ranks have given theirs."""

from typing import Protocol

from tensordict import TensorDict


class Redistribution(Protocol):
    """Moves rows between ranks; `ray_redistribution.RayRedistribution` through the coordinator, `StayOnRank` not at all."""

    def redistribute(self, batch: TensorDict, *, node: str, step: int) -> TensorDict:
        """Give this rank's rows for `node`, get those that it is to work on; possibly none."""

    def acknowledge(self) -> None:
        """The rows that this rank got are used: call it at the end of the step."""


class StayOnRank:
    """One rank has nobody to share with: rows stay where they are."""

    def redistribute(self, batch: TensorDict, *, node: str, step: int) -> TensorDict:
        """`batch` itself."""
        return batch

    def acknowledge(self) -> None:
        """Nothing was leased."""
