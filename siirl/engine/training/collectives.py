"""Collective calls other than gradients: sums, rows, small objects, and joint failure of all ranks.

`OneProcess` is a world of one; `GroupOfProcesses` uses torch.distributed. Every rank of a group
calls the same methods in the same order. Decisions (skip, stop, refuse) use only their results,
which are equal on all ranks, so no rank waits for one that has left.
"""

# B row

import datetime
import functools
import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from siirl.algos.ranks import OneRank, Ranks
from siirl.engine.training.network import listen_towards, meet
from siirl.engine.training.port_guard import admit_ranks_only, guard_new_ports, open_sockets
from siirl.errors import InvariantError, SiirlError
from siirl.occupation import OCCUPATION

Thing = TypeVar("Thing")

# A rank may wait for the slowest rollout of another rank as long as that makes progress. The
# launcher detects a rank that exits, the watchdog (siirl.execution.scheduler.watchdog, at most 20
# hours) a rank that hangs, and writes stack traces; this limit applies only if both are missing.
TIMEOUT = datetime.timedelta(hours=24)
# torch ends a process whose NCCL thread makes no progress for 8 minutes; the watchdog comes first.
NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
AFTER_WATCHDOG_S = 300


class Collectives(Ranks, Protocol):
    """`siirl.algos.ranks.Ranks`, and the further calls of engines and stages."""

    @property
    def rank(self) -> int:
        """This process's number in the group."""

    @property
    def group(self) -> distributed.ProcessGroup | None:
        """The process group, or None for a single process."""

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Maximum of each entry over the ranks."""

    def gather_objects(self, thing: Thing) -> list[Thing]:
        """Every rank's object, in rank order; pickled, so for small objects."""

    def broadcast_object(self, thing: Thing) -> Thing:
        """Rank 0's object; the arguments of the others are ignored."""


class OneProcess(OneRank):
    """A single process: each result is its own argument."""

    rank = 0
    group = None

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself."""
        return tensor

    def gather_objects(self, thing: Thing) -> list[Thing]:
        """The one object."""
        return [thing]

    def broadcast_object(self, thing: Thing) -> Thing:
        """`thing` itself."""
        return thing


class GroupOfProcesses:
    """The ranks of a process group.

    Args:
        device: Device on which the group's backend needs tensors; results return to the device of
            the input.
        group: The process group; None: the group of all ranks.
    """

    def __init__(
        self, *, device: torch.device | str = "cpu", group: distributed.ProcessGroup | None = None
    ) -> None:
        self.device = torch.device(device)
        self.group: distributed.ProcessGroup | None = (
            group if group is not None else distributed.group.WORLD
        )
        self.rank = distributed.get_rank(self.group)
        self.size = distributed.get_world_size(self.group)
        self.meshes: dict[tuple[str, int], DeviceMesh] = {}
        """By type of the device and number of ranks that share one copy."""

    def mesh(self, device_type: str, *, shard_ranks: int) -> DeviceMesh:
        """Mesh of the ranks: one axis, or groups of `shard_ranks` neighbours with one copy per
        group.

        Made once, because NCCL takes memory of the GPU for each group of processes.
        """
        key = device_type, shard_ranks
        if key not in self.meshes:
            self.meshes[key] = self._new_mesh(device_type, shard_ranks)
        return self.meshes[key]

    def _new_mesh(self, device_type: str, shard_ranks: int) -> DeviceMesh:
        assert self.group is not None
        if shard_ranks == self.size:
            return DeviceMesh.from_group(self.group, device_type)
        shape, axes = (self.size // shard_ranks, shard_ranks), ("replicate", "shard")
        with guard_new_ports() if "gloo" in distributed.get_backend_config() else nullcontext():
            mesh = init_device_mesh(device_type, shape, mesh_dim_names=axes)
            self.sum(torch.zeros(()))  # the last rank has connected
        for axis in axes:
            distributed.distributed_c10d._set_pg_timeout(TIMEOUT, mesh.get_group(axis))
        return mesh

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return self._reduced(tensor, distributed.ReduceOp.SUM)

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Collectives."""
        return self._reduced(tensor, distributed.ReduceOp.MAX)

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """See Ranks. Rows of shorter ranks are padded for the transfer."""
        counts = self.gather_objects(len(rows))
        padded = torch.zeros((max(counts), *rows.shape[1:]), dtype=rows.dtype, device=self.device)
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        with _waiting("gather_rows"):
            distributed.all_gather(parts, padded, group=self.group)
        start = sum(counts[: self.rank])
        gathered = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return gathered.to(rows.device), slice(start, start + len(rows))

    def gather_objects(self, thing: Thing) -> list[Thing]:
        """See Collectives."""
        things: list[Any] = [None] * self.size
        with _waiting("gather_objects"):
            distributed.all_gather_object(things, thing, group=self.group)
        return things

    def broadcast_object(self, thing: Thing) -> Thing:
        """See Collectives."""
        things = [thing if self.rank == 0 else None]
        with _waiting("broadcast_object"):
            distributed.broadcast_object_list(things, group=self.group, group_src=0)
        return things[0]  # type: ignore[return-value]

    def _reduced(
        self, tensor: torch.Tensor, operation: distributed.ReduceOp.RedOpType
    ) -> torch.Tensor:
        result = tensor.detach().to(self.device, copy=True)
        with _waiting("all_reduce"):
            distributed.all_reduce(result, op=operation, group=self.group)
        return result.to(tensor.device)


def _waiting(call: str) -> AbstractContextManager[None]:
    return OCCUPATION.doing(f"waits for the other ranks in {call}", waiting=True)


@contextmanager
def raise_on_all_ranks(ranks: Collectives) -> Iterator[None]:
    """Raise on every rank if the block raises a SiirlError on any; errors of other types propagate
    at once.

    The failing rank raises its own error; the others raise an InvariantError that names the rank. A
    rank with a bad sample therefore does not leave the others waiting in the next collective call.
    Every rank enters the block, which makes no collective call.
    """
    try:
        yield
    except SiirlError as error:
        ranks.gather_objects(f"{type(error).__name__}: {error}")
        raise
    for rank, message in enumerate(ranks.gather_objects(None)):
        if message is not None:
            raise InvariantError(f"Rank {rank} failed, so all stop: {message}")


def join(
    *,
    rank: int,
    world_size: int,
    init_method: str,
    device: torch.device | str = "cpu",
    backend: str = "gloo",
    hang_s: float | None = None,
    force_group: bool = False,
) -> OneProcess | GroupOfProcesses:
    """Initialise torch.distributed in this process and return its collectives.

    A world of one needs no torch.distributed. NCCL connects here, on `device`, so that a rank that
    cannot be reached fails before a model is loaded.

    Args:
        rank: Number of this process.
        world_size: Number of processes.
        init_method: Meeting point: `tcp://host:port`, or `file:///path` in a private folder for
            ranks on one machine.
        device: `cpu`, or this rank's `cuda:i`.
        backend: Backend of `torch.distributed`: `gloo`, `nccl`, or both.
        hang_s: The watchdog's limit; None: no watchdog.
        force_group: Make a group even for one process, so that FSDP2 and NCCL run on one GPU.
    """
    if world_size == 1 and not force_group:
        return OneProcess()
    device = torch.device(device)
    only_nccl = backend == "nccl"
    listen_towards(init_method)
    before = frozenset() if only_nccl else open_sockets()
    store: distributed.Store = (
        distributed.HashStore()
        if world_size == 1
        else meet(init_method, rank=rank, world_size=world_size, timeout=TIMEOUT)
    )
    if "nccl" in backend:
        if not only_nccl:
            before = open_sockets()  # the store stays open: NCCL's threads connect to it again
        torch.cuda.set_device(device)
        limit_s = TIMEOUT.total_seconds() if hang_s is None else hang_s
        os.environ.setdefault(NCCL_HEARTBEAT, str(int(limit_s + AFTER_WATCHDOG_S)))
    # With gloo beside NCCL, the ports of both open here, but only gloo's may be closed afterwards,
    # because NCCL then connects later. NCCL's own connections begin with a random number of 64
    # bits.
    distributed.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=TIMEOUT,
        device_id=device if only_nccl else None,
    )
    if not only_nccl:
        admit_ranks_only(store, rank=rank, ranks=world_size, before=before)
    return GroupOfProcesses(device=device)


def leave(ranks: OneProcess | GroupOfProcesses) -> None:
    """End torch.distributed in this process, and the threads that serve it.

    A group ends its threads when the last reference to it is dropped. A group that lives until the
    interpreter exits can abort the process. A thread that then needs the GIL to free the last
    message is forced to exit in the middle of a destructor.
    """
    if isinstance(ranks, GroupOfProcesses):
        distributed.destroy_process_group(ranks.group)
        ranks.group = None
        ranks.meshes.clear()
        _clear_caches_of_sharded_tensors()
        gc.collect()  # tracebacks of kept errors also refer to the group


def _clear_caches_of_sharded_tensors() -> None:
    """Clear DTensor's caches: their keys refer to the mesh, which refers to the group."""
    _clear_sharding_prop_cache()
    clear_redistribute_planner_cache()
    cached = (thing for thing in gc.get_objects() if type(thing) is functools._lru_cache_wrapper)
    for function in cached:
        if function.__module__.startswith("torch.distributed.tensor."):
            function.cache_clear()
