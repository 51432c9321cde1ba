"""Places ranks on machines of a Ray cluster: equally many on each, rank 0 on the command's machine.

By default Ray places actors that request no CPU anywhere: both ranks of a two-machine job ran on
one. All machines are reserved together or not at all, so two jobs never wait for each other with
half of the GPUs each.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from siirl.errors import ConfigError
from siirl.execution.scheduler.vitals import Server, Vitals

logger = logging.getLogger(__name__)

# A bundle must request something. Ranks on CPUs reserve no core, because a laptop has fewer cores
# than the job has processes.
SOMETHING: Mapping[str, float] = {"memory": 1}  # byte
A_SHARE = 0.001  # any request for the resource `node:ADDRESS` selects that machine
TELL_AFTER_S = 10

# A dead raylet does not come back. A GCS may be restarted if it has persistent storage; Ray's
# workers wait a minute for that, and then Ray's C++ ends them.
RAYLET_PATIENCE_S, GCS_PATIENCE_S = 2.0, 30.0


@dataclass(frozen=True)
class ClusterLayout:
    """Number of machines, and the resources of each."""

    nodes: int = 1
    ranks_per_node: int = 1
    gpus: tuple[int, ...] = ()
    """GPUs of each rank; empty: ranks on CPUs."""

    @property
    def ranks(self) -> int:
        """Number of ranks on all machines."""
        return self.nodes * self.ranks_per_node

    @property
    def gpus_per_node(self) -> int:
        """GPUs that every machine must have: those of the ranks on the one that needs most. Ray
        places bundles of unequal size one after another, and may then find no machine for the last.
        """
        firsts = range(0, self.ranks, self.ranks_per_node)
        return max(sum(self.gpus[first : first + self.ranks_per_node]) for first in firsts)

    def gpus_of_rank(self, rank: int) -> int:
        """GPUs of a rank."""
        return self.gpus[rank] if self.gpus else 0


class ClusterMachine(NamedTuple):
    """A machine of a Ray cluster."""

    node_id: str
    address: str
    gpus: int
    """All GPUs, in use or not."""
    store_bytes: float = 0.0
    """Size of its object store."""


class Placement:
    """Reserves machines of the connected cluster for the ranks of a job, until `release` or the end
    of this process.

    Waits for machines in use by other jobs, and prints that it waits.

    Raises:
        RunFailed: The cluster died meanwhile.
    """

    def __init__(self, layout: ClusterLayout, vitals: Vitals) -> None:
        import ray
        from ray.util import placement_group

        bundles = [
            dict(SOMETHING) | ({"GPU": layout.gpus_per_node} if layout.gpus_per_node else {})
            for _ in range(layout.nodes)
        ]
        [here] = [
            machine
            for machine in machines()
            if machine.node_id == ray.get_runtime_context().get_node_id()
        ]
        if here.gpus >= layout.gpus_per_node:
            bundles[0][f"node:{here.address}"] = A_SHARE
        self.layout = layout
        self._group: Any = placement_group(bundles, strategy="STRICT_SPREAD")
        if not self._group.wait(TELL_AFTER_S):
            wanted = f"{layout.gpus_per_node} free GPUs" if layout.gpus_per_node else "free memory"
            logger.warning(
                "Waiting for %d machine(s) with %s each; others use them now (see `ray status`).",
                layout.nodes,
                wanted,
            )
            while not self._group.wait(TELL_AFTER_S):
                vitals.check()

    def of_rank(self, rank: int) -> Any:
        """The `scheduling_strategy` of a rank's actor; neighbouring ranks share a machine."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=rank // self.layout.ranks_per_node
        )

    def release(self) -> None:
        """Release the machines; actors that still run there are ended."""
        from ray.util import remove_placement_group

        remove_placement_group(self._group)


def require_machines(layout: ClusterLayout, there: Sequence[ClusterMachine]) -> None:
    """Refuse a job that would wait forever.

    Raises:
        ConfigError: Fewer than `layout.nodes` machines have enough GPUs.
    """
    fitting = sum(machine.gpus >= layout.gpus_per_node for machine in there)
    if fitting < layout.nodes:
        of_rank = " or ".join(map(str, sorted(set(layout.gpus))))
        each = (
            f" with {layout.gpus_per_node} GPUs, {of_rank} for each rank"
            if layout.gpus_per_node
            else ""
        )
        has = ", ".join(
            f"{machine.address} with {machine.gpus}"
            for machine in sorted(there, key=lambda machine: machine.address)
        )
        raise ConfigError(
            f"trainer.nnodes={layout.nodes} with trainer.n_gpus_per_node={layout.ranks_per_node} "
            f"asks for {layout.nodes} machine(s){each}, but the Ray cluster has {fitting} (its "
            f"GPUs: {has}): change one of the two keys, or add machines to the cluster."
        )


def machines() -> list[ClusterMachine]:
    """Resources of the connected cluster."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [
        ClusterMachine(
            node["NodeID"],
            node["NodeManagerAddress"],
            int(node["Resources"].get("GPU", 0)),
            node["Resources"].get("object_store_memory", 0.0),
        )
        for node in nodes
        if node["Alive"]
    ]


def is_this_machine_alive() -> bool:
    """Whether the connected cluster counts this machine as alive."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return any(node["NodeID"] == here and node["Alive"] for node in nodes)


def servers_of_cluster() -> list[Server]:
    """The connected cluster's GCS, and the raylet that connects this process to it."""
    import ray

    here = ray.get_runtime_context()
    host, _, port = here.gcs_address.rpartition(":")
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    [raylet] = [node for node in nodes if node["NodeID"] == here.get_node_id()]
    return [
        Server(
            "Ray's raylet on this machine",
            raylet["NodeManagerAddress"],
            raylet["NodeManagerPort"],
            RAYLET_PATIENCE_S,
        ),
        Server("Ray's GCS", host.strip("[]"), int(port), GCS_PATIENCE_S),
    ]
