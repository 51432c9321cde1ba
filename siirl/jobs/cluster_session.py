"""The Ray session of a command, from the config group `cluster`."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from siirl import stacks
from siirl.execution.scheduler.ray_session import (
    MESSAGES_FILE,
    ClusterSettings,
    ray_session,
)
from siirl.jobs.threads import short_waits
from siirl.params.cluster_args import ClusterArguments
from siirl.preflight.ray_address import resolve_address


def session(
    cluster: ClusterArguments, *, folder: Path | None = None, store_bytes: float = 0.0
) -> AbstractContextManager[None]:
    """Ray session for `cluster`; empty with cluster=local. Ray's messages go to a file in
    `folder`; None: to stderr. A private Ray's object store has at least `store_bytes`.
    """
    if cluster.mode == "local":
        return nullcontext()
    settings = cluster_settings(cluster, folder=folder)
    return ray_session(replace(settings, store_bytes=store_bytes))


def cluster_settings(cluster: ClusterArguments, *, folder: Path | None = None) -> ClusterSettings:
    """Cluster settings; processes share cores, so each gets one OpenMP thread."""
    address = None if cluster.address is None else resolve_address(cluster.address)
    inherited = {name: os.environ[name] for name in (stacks.VARIABLE,) if name in os.environ}
    return ClusterSettings(
        address=address,
        env_vars={"OMP_NUM_THREADS": "1", **short_waits(), **inherited},
        messages=None if folder is None else folder.absolute() / MESSAGES_FILE,
    )
