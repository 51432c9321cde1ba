"""The worker's client of the coordinator: sends metadata, and sends and receives surplus rows.

Rows stay in the memory of the rank that made them. The coordinator sees only metadata and decides
which rows move. These go as whole columns, directly from rank to rank (`row_transport`). Leftover
rows of a step go into Ray's object store, one object per row, so that every rank can put them into
a checkpoint. An object lives as long as the worker that made it. If that worker has died, the ranks
that need its rows raise an error, and the run resumes from its checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError
from tensordict import TensorDict

from siirl.data_coordinator.protocol.batch import (
    check_unique_uids,
    concat,
    select_rows,
    texts,
    without_padding,
)
from siirl.data_coordinator.queues import Leftover, PartitionRequest, QueueKey, Share, Transfers
from siirl.data_coordinator.row_transport import AllToAll, pack, unpack
from siirl.data_coordinator.sample import Dict2Samples, Sample, Samples2Dict, row_infos
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.errors import InvariantError, RunFailed
from siirl.occupation import OCCUPATION

# Another rank's rollout may be long; the watchdog detects one that hangs.
DEFAULT_TIMEOUT_S = 86_400.0


class RayRedistribution:
    """The worker's client (`redistribution.Redistribution`).

    Args:
        coordinator: Handle from `start_coordinator`.
        rank: This rank.
        ranks: Number of ranks that put rows.
        request: How rows are divided; the same on all ranks. By default among all ranks by work,
            with any counts.
        transport: Takes rows to other ranks; by default over the group of all ranks.
        timeout_s: Longest wait for the other ranks.
    """

    def __init__(
        self,
        coordinator: Any,
        *,
        rank: int,
        ranks: int,
        request: PartitionRequest | None = None,
        transport: AllToAll | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.coordinator = coordinator
        self.rank, self.ranks = rank, ranks
        self.request = request or PartitionRequest(partitions=ranks)
        self.transport = transport or AllToAll()
        self.timeout_s = timeout_s
        self.bytes_given = 0
        self._shares: list[tuple[QueueKey, Share]] = []
        self._nodes: set[str] = set()  # nodes that may have leftovers

    def redistribute(
        self, batch: TensorDict, *, node: str, step: int, flops_B: Sequence[float] | None = None
    ) -> TensorDict:
        """Put this rank's rows for `node`; returns the rows that it must process, padded to the
        longest, possibly none. If no row moves, rows are not copied.

        Raises:
            TimeoutError: A rank did not put its rows in time; the message names it.
            RunFailed: The coordinator died.
            InvariantError: Two rows have the same id, or the rank that made a row has died.
        """
        check_unique_uids(batch)
        key = QueueKey(node, step)
        self._nodes.add(node)
        self._put(key, row_infos(batch, node_id=_machine(), flops_B=flops_B))
        with OCCUPATION.doing("waits for the rows of the other ranks", waiting=True):
            share: Share = _answer(
                self.coordinator.get_share.remote(key, self.request, self.rank, self.timeout_s)
            )
        self._shares.append((key, share))
        return self._move(batch, share.transfers, key)

    def acknowledge(self) -> None:
        """Mark the rows as used; InvariantError if another rank has got them meanwhile."""
        shares, self._shares = self._shares, []
        _answer([self.coordinator.acknowledge.remote(key, share.lease_id) for key, share in shares])

    def state_dict(self) -> dict[str, Any]:
        """Leftovers by node, as plain columns; every rank fetches them, so the state is the same
        everywhere. Call it between steps.

        Raises:
            InvariantError: The rank that made a leftover row has died.
        """
        return {node: self._leftovers(node) for node in sorted(self._nodes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the leftovers. Rank 0 does so before it puts its first share; no step is divided
        without that share.
        """
        self._nodes |= state.keys()
        if self.rank != 0:
            return
        for node, rows in state.items():
            samples = [(Sample(row["columns"]), row["source"]) for row in rows]
            leftovers = [
                Leftover(sample.info(), ray.put(sample), source) for sample, source in samples
            ]
            _answer(self.coordinator.restore_leftovers.remote(node, leftovers))

    def _leftovers(self, node: str) -> list[dict[str, Any]]:
        leftovers: list[Leftover] = _answer(self.coordinator.leftovers.remote(node))
        samples = self._get(
            [leftover.ref for leftover in leftovers], what=f"left over for node {node!r}"
        )
        return [
            {"columns": sample.columns, "source": leftover.source}
            for sample, leftover in zip(samples, leftovers, strict=True)
        ]

    def _put(self, key: QueueKey, infos: Sequence[SampleInfo]) -> None:
        _answer(
            self.coordinator.put_batch.remote(
                key, infos, [None] * len(infos), self.rank, self.ranks, self.timeout_s
            )
        )

    def _move(self, batch: TensorDict, transfers: Transfers, key: QueueKey) -> TensorDict:
        place = {uid: row for row, uid in enumerate(texts(batch, "uid"))} if len(batch) else {}
        rows = {}
        for rank, uids in transfers.leaving.items():
            rows[rank] = [place.pop(uid) for uid in uids]
        self._keep(select_rows(batch, [place.pop(uid) for uid in transfers.left_over]), key.node)
        self.bytes_given = 0
        parts = self._exchange(batch, rows) if transfers.exchange else {}
        kept = batch if len(place) == len(batch) else select_rows(batch, list(place.values()))
        parts[self.rank] = without_padding(kept)
        fetched = Samples2Dict(self._get(list(transfers.fetched.values()), what=f"for {key}"))
        ordered = [fetched, *(parts[rank] for rank in sorted(parts))]
        filled = [part for part in ordered if len(part)]
        if not filled:
            return select_rows(batch, [])
        return filled[0] if len(filled) == 1 else concat(filled)

    def _exchange(
        self, batch: TensorDict, rows: Mapping[int, Sequence[int]]
    ) -> dict[int, TensorDict]:
        packed = {
            rank: pack(without_padding(select_rows(batch, places))) for rank, places in rows.items()
        }
        self.bytes_given = sum(len(part) for part in packed.values())
        return {rank: unpack(part) for rank, part in self.transport.exchange(packed).items()}

    def _keep(self, left_over: TensorDict, node: str) -> None:
        """Store the rows that wait for the next step where every rank can fetch them."""
        if not len(left_over):
            return
        refs = {sample.uid: ray.put(sample) for sample in Dict2Samples(left_over)}
        _answer(self.coordinator.keep_leftovers.remote(node, refs))

    def _get(self, refs: list[Any], *, what: str) -> list[Sample]:
        try:
            return list(ray.get(refs))
        except ObjectLostError as error:
            raise InvariantError(
                f"Samples {what} are lost, because the rank that made them died. Resume the run "
                "from its last checkpoint."
            ) from error


def _answer(references: Any) -> Any:
    try:
        return ray.get(references)
    except RayActorError as error:
        raise RunFailed("The process of the data coordinator died.") from error


def _machine() -> str:
    machine: str = ray.get_runtime_context().get_node_id()
    return machine
