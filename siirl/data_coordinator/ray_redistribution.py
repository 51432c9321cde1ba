"""The worker's end of the coordinator: rows out, rows in.

Samples travel through Ray's object store, one object a sample; the coordinator sees metadata and
references only. Rows that a rank keeps are not fetched: it takes them from its own memory. An
object lives as long as the worker that made it, so the samples of a dead rank are lost, and the
ranks that were to train on them say so: the run then resumes from its checkpoint.
"""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError
from tensordict import TensorDict

from siirl.data_coordinator.leases import Lease
from siirl.data_coordinator.protocol.batch import check_unique_uids, select_rows
from siirl.data_coordinator.queues import Leftover, PartitionRequest, QueueKey
from siirl.data_coordinator.sample import Dict2Samples, Sample, Samples2Dict
from siirl.errors import InvariantError
from siirl.occupation import OCCUPATION

DEFAULT_TIMEOUT_S = (
    86_400.0  # another rank's rollout may be long; one that hangs is noticed by the watchdog
)


class RayRedistribution:
    """The worker's end (`redistribution.Redistribution`).

    Args:
        coordinator: Handle from `start_coordinator`.
        rank: This rank.
        ranks: How many ranks give rows.
        request: How rows are divided; the same on all ranks. By default among all ranks by work,
            whatever the counts.
        timeout_s: How long to wait for the other ranks.
    """

    def __init__(
        self,
        coordinator: Any,
        *,
        rank: int,
        ranks: int,
        request: PartitionRequest | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.coordinator = coordinator
        self.rank, self.ranks = rank, ranks
        self.request = request or PartitionRequest(partitions=ranks)
        self.timeout_s = timeout_s
        self._leases: list[Lease] = []
        self._nodes: set[str] = set()  # for which there may be leftovers

    def redistribute(self, batch: TensorDict, *, node: str, step: int) -> TensorDict:
        """Give this rank's rows for `node`, get those that it is to work on, padded to the longest;
        possibly none.

        Raises:
            TimeoutError: A rank did not give its rows in time; the message names it.
            InvariantError: Two rows have one id, or the rank that made a row has died.
        """
        check_unique_uids(batch)
        key = QueueKey(node, step)
        self._nodes.add(node)
        own = {sample.uid: sample for sample in Dict2Samples(batch)}
        self._put(key, list(own.values()))
        with OCCUPATION.doing("waits for the rows of the other ranks", waiting=True):
            lease: Lease = ray.get(
                self.coordinator.get_partition.remote(
                    key, self.request, self.rank, None, self.timeout_s
                )
            )
        self._leases.append(lease)
        fetched = self._fetch(lease, own)
        return Samples2Dict(fetched) if fetched else select_rows(batch, [])

    def acknowledge(self) -> None:
        """The rows are used; InvariantError where the coordinator gave them to another rank
        meanwhile.
        """
        leases, self._leases = self._leases, []
        ray.get(
            [self.coordinator.acknowledge.remote(lease.key, lease.lease_id) for lease in leases]
        )

    def state_dict(self) -> dict[str, Any]:
        """Leftovers by node, as plain columns; every rank fetches them, so the state is the same
        everywhere. Call it between steps.

        Raises:
            InvariantError: The rank that made one has died.
        """
        return {node: self._leftovers(node) for node in sorted(self._nodes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give the leftovers back; rank 0 does, before it puts its first share, without which no
        step is divided.
        """
        self._nodes |= state.keys()
        if self.rank != 0:
            return
        for node, rows in state.items():
            samples = [(Sample(row["columns"]), row["source"]) for row in rows]
            leftovers = [
                Leftover(sample.info(), ray.put(sample), source) for sample, source in samples
            ]
            ray.get(self.coordinator.restore_leftovers.remote(node, leftovers))

    def _leftovers(self, node: str) -> list[dict[str, Any]]:
        leftovers: list[Leftover] = ray.get(self.coordinator.leftovers.remote(node))
        samples = self._get(
            [leftover.ref for leftover in leftovers], what=f"left over for node {node!r}"
        )
        return [
            {"columns": sample.columns, "source": leftover.source}
            for sample, leftover in zip(samples, leftovers, strict=True)
        ]

    def _put(self, key: QueueKey, samples: Sequence[Sample]) -> None:
        machine = ray.get_runtime_context().get_node_id()
        refs = [ray.put(sample) for sample in samples]
        infos = [sample.info(node_id=machine) for sample in samples]
        ray.get(
            self.coordinator.put_batch.remote(
                key, infos, refs, self.rank, self.ranks, self.timeout_s
            )
        )

    def _fetch(self, lease: Lease, own: dict[str, Sample]) -> list[Sample]:
        foreign = [
            (info.uid, ref)
            for info, ref in zip(lease.infos, lease.refs, strict=True)
            if info.uid not in own
        ]
        samples = self._get([ref for _, ref in foreign], what=f"for {lease.key}")
        arrived = dict(zip((uid for uid, _ in foreign), samples, strict=True))
        return [own.get(info.uid) or arrived[info.uid] for info in lease.infos]

    def _get(self, refs: list[Any], *, what: str) -> list[Sample]:
        try:
            return list(ray.get(refs))
        except ObjectLostError as error:
            raise InvariantError(
                f"Samples {what} are lost, because the rank that made them died. Resume the run from its last checkpoint."
            ) from error
