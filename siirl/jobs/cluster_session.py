"""The Ray session of a command, by the group `cluster`."""

import os
from contextlib import AbstractContextManager, nullcontext

from siirl import stacks
from siirl.execution.scheduler.ray_session import ClusterSettings, ray_session
from siirl.params.cluster_args import ClusterArguments
from siirl.params.threads import short_waits
from siirl.preflight.ray_address import resolve_address


def session(cluster: ClusterArguments) -> AbstractContextManager[None]:
    """Ray session for `cluster`; empty with cluster=local."""
    return nullcontext() if cluster.mode == "local" else ray_session(cluster_settings(cluster))


def cluster_settings(cluster: ClusterArguments) -> ClusterSettings:
    """Where processes run by `cluster`; each has one OpenMP thread, as they share cores."""
    address = None if cluster.address is None else resolve_address(cluster.address)
    inherited = {name: os.environ[name] for name in (stacks.VARIABLE,) if name in os.environ}
    return ClusterSettings(
        address=address, env_vars={"OMP_NUM_THREADS": "1", **short_waits(), **inherited}
    )
