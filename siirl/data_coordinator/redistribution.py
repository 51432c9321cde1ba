"""Interface of the `data_rebalance` stage: this rank's share of the rows of all ranks in a step.

A filter on metadata may precede it, so that rejected rows are not transferred.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from tensordict import TensorDict

from siirl.data_coordinator.coordinator import FilterPlugin
from siirl.data_coordinator.protocol.batch import concat, select_rows
from siirl.data_coordinator.sample import Sample, Samples2Dict, row_infos


class Redistribution(Protocol):
    """Moves rows between ranks; `ray_redistribution.RayRedistribution` through the coordinator,
    `StayOnRank` not at all.
    """

    bytes_given: int
    """Rows that this rank gave to others in the last call of `redistribute`."""

    def redistribute(
        self, batch: TensorDict, *, node: str, step: int, flops_B: Sequence[float] | None = None
    ) -> TensorDict:
        """Give this rank's rows for `node`, get those that it is to work on; possibly none.

        `flops_B` is the work of each row, where it is known; otherwise its tokens count.
        """

    def acknowledge(self) -> None:
        """The rows that this rank got are used: call it at the end of the step."""

    def state_dict(self) -> dict[str, Any]:
        """The rows that earlier steps left over; the same on every rank."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; every rank calls it, before the first step."""


class StayOnRank:
    """Redistribution on a single rank: rows stay where they are, behind those that a checkpoint
    of several ranks had left over.
    """

    bytes_given = 0

    def __init__(self) -> None:
        self._leftovers: dict[str, list[dict[str, Any]]] = {}

    def redistribute(
        self, batch: TensorDict, *, node: str, step: int, flops_B: Sequence[float] | None = None
    ) -> TensorDict:
        """`batch` itself, unless something was left over."""
        rows = self._leftovers.pop(node, [])
        return (
            concat([Samples2Dict([Sample(row["columns"]) for row in rows]), batch])
            if rows
            else batch
        )

    def acknowledge(self) -> None:
        """Nothing was leased."""

    def state_dict(self) -> dict[str, Any]:
        """Rows that were loaded from a checkpoint and not taken yet."""
        return {node: list(rows) for node, rows in self._leftovers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Redistribution."""
        self._leftovers = {node: list(rows) for node, rows in state.items() if rows}


def accepted_rows(batch: TensorDict, filter_plugin: FilterPlugin) -> TensorDict:
    """The rows whose metadata the filter accepts."""
    infos = row_infos(batch)
    return select_rows(batch, [row for row, info in enumerate(infos) if filter_plugin(info)])
