"""The size of Ray's object store, from which separate rollout ranks fetch weights if training ranks
do not send them (`siirl.params.agents.sends_weights`).

Ray writes what exceeds it to the disk without a word, and an exchange may then take seconds.
"""

import math
from collections.abc import Callable, Sequence

from siirl.errors import ConfigError, SiirlError
from siirl.execution.scheduler.placement import ClusterLayout, ClusterMachine
from siirl.execution.scheduler.ray_session import SHARED_MEMORY_USED
from siirl.params import sizes
from siirl.params.sizes import GIB
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.memory import IMAGES_PART, PUBLISHED, Parts, size_text

FULL = 0.8  # share of its store above which Ray 2.60 writes objects to the disk
ROWS_BYTES = 100e6  # texts, log-probs and messages


def store_bytes(parts: Parts) -> float:
    """Size of a store with room for the weights for rollout ranks and for rows, out of the `parts`
    of a job's memory; 0 if no weights are stored.
    """
    weights = _sum(parts, PUBLISHED)
    return (weights + _sum(parts, IMAGES_PART) + ROWS_BYTES) / FULL if weights else 0.0


def store_problems(
    config: SiiRLArguments, parts: Parts, *, shared_memory_bytes: Callable[[], float]
) -> list[SiirlError]:
    """Weights for rollout ranks beyond this machine's /dev/shm, of which `shared_memory_bytes` are
    free: Ray would keep them on the disk. For a running cluster see `small_stores`.
    """
    weights = _sum(parts, PUBLISHED)
    if not weights or config.cluster.address is not None:
        return []
    needed, free = weights / FULL / SHARED_MEMORY_USED, shared_memory_bytes()
    if needed <= free:
        return []
    policy, trainer = config.actor_rollout_ref, config.trainer
    enough = math.ceil(store_bytes(parts) / SHARED_MEMORY_USED / GIB)
    remedies = [f"make it larger (in Docker --shm-size={enough}g)"]
    if policy.model.lora.rank == 0:
        remedies.append("train adapters (actor_rollout_ref.model.lora.rank)")
    if trainer.max_staleness > 0 and not sizes.streams(trainer, config.dag, policy.rollout):
        remedies.append("lower trainer.max_staleness")
    return [
        ConfigError(
            f"The weights for the rollout ranks of dag.groups take {size_text(weights)} in Ray's "
            f"object store, which needs {size_text(needed)} of /dev/shm, but this machine has "
            f"{size_text(free)} free there: {', or '.join(remedies)}."
        )
    ]


def small_stores(
    needed: float, layout: ClusterLayout, there: Sequence[ClusterMachine]
) -> str | None:
    """Warning for a running cluster: stores with less than the `needed` bytes (`store_bytes`) on
    machines that may get ranks; None if there are none.
    """
    small = [
        machine
        for machine in there
        if machine.gpus >= layout.gpus_per_node and machine.store_bytes < needed
    ]
    if not small:
        return None
    has = ", ".join(f"{machine.address} with {size_text(machine.store_bytes)}" for machine in small)
    return (
        f"The rollout ranks of dag.groups need {size_text(needed)} of Ray's object store on a "
        f"machine, and the cluster has {has}: Ray writes the rest to the disk, and an exchange "
        f"may take seconds. Start Ray with --object-store-memory={math.ceil(needed)} there."
    )


def _sum(parts: Parts, name: str) -> float:
    """Bytes of the part `name`, over all agents."""
    return sum(size for part, size in parts if part.endswith(name))
