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
    """Moves rows between ranks: `ray_redistribution.RayRedistribution` through the coordinator;
    `StayOnRank` moves none.
    """

    bytes_given: int
    """Bytes of rows that this rank sent in the last call of `redistribute`."""

    def redistribute(
        self, batch: TensorDict, *, node: str, step: int, flops_B: Sequence[float] | None = None
    ) -> TensorDict:
        """Put this rank's rows for `node`; returns those that it must process, possibly none.

        `flops_B` is the work of each row; None: its tokens are counted instead.
        """

    def acknowledge(self) -> None:
        """Mark the received rows as used; call it at the end of the step."""

    def state_dict(self) -> dict[str, Any]:
        """Rows left over by earlier steps; the same on every rank."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint; every rank calls it before the first step."""


class StayOnRank:
    """Redistribution on a single rank: rows stay, preceded by leftovers from a checkpoint of
    several ranks.
    """

    bytes_given = 0

    def __init__(self) -> None:
        self._leftovers: dict[str, list[dict[str, Any]]] = {}

    def redistribute(
        self, batch: TensorDict, *, node: str, step: int, flops_B: Sequence[float] | None = None
    ) -> TensorDict:
        """`batch` itself, unless leftover rows precede it."""
        rows = self._leftovers.pop(node, [])
        return (
            concat([Samples2Dict([Sample(row["columns"]) for row in rows]), batch])
            if rows
            else batch
        )

    def acknowledge(self) -> None:
        """Do nothing: no row was leased."""

    def state_dict(self) -> dict[str, Any]:
        """Rows loaded from a checkpoint and not used yet."""
        return {node: list(rows) for node, rows in self._leftovers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Redistribution."""
        self._leftovers = {node: list(rows) for node, rows in state.items() if rows}


def accepted_rows(batch: TensorDict, filter_plugin: FilterPlugin) -> TensorDict:
    """The rows whose metadata the filter accepts."""
    infos = row_infos(batch)
    return select_rows(batch, [row for row, info in enumerate(infos) if filter_plugin(info)])
