"""What ranks tell each other beside gradients: sums, rows, small objects, and whether one of them
failed.

`OneProcess` is the only rank there is; `GroupOfProcesses` speaks through torch.distributed. Every
rank of a group calls the same methods in the same order. Decisions (skip, stop, refuse) are taken
from what these return, which is alike everywhere, so that no rank waits for one that left.
"""

# B row

import datetime
import gc
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from torch import distributed
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from siirl.algos.ranks import OneRank, Ranks
from siirl.engine.training.doors import admit_ranks_only, open_sockets
from siirl.engine.training.network import listen_towards, meet
from siirl.errors import InvariantError, SiirlError
from siirl.occupation import OCCUPATION

Thing = TypeVar("Thing")

# A rank may wait for another's slowest rollout. One that is gone is noticed by its launcher, one
# that hangs by the watchdog (siirl.execution.scheduler.watchdog), whose limit is 20 hours at most;
# this one speaks only where neither watches.
TIMEOUT = datetime.timedelta(hours=24)


class Collectives(Ranks, Protocol):
    """Everything of `siirl.algos.ranks.Ranks`, and what engines and stages need besides."""

    @property
    def rank(self) -> int:
        """This process's number in the group."""

    @property
    def group(self) -> distributed.ProcessGroup | None:
        """The process group, or None for a single process."""

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Largest of each entry over the ranks."""

    def gather_objects(self, thing: Thing) -> list[Thing]:
        """Every rank's object, in rank order; pickled, so for small things."""

    def broadcast_object(self, thing: Thing) -> Thing:
        """Rank 0's object; what the others hand in is ignored."""


class OneProcess(OneRank):
    """A single process: everything is its own."""

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
        device: Where tensors must lie for the group's backend; results come back where the input
            was.
        group: The process group; None is the group of all ranks.
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

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return self._reduced(tensor, distributed.ReduceOp.SUM)

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Collectives."""
        return self._reduced(tensor, distributed.ReduceOp.MAX)

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """See Ranks. Shorter ranks are padded for the journey."""
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


def fail_together(ranks: Collectives, error: SiirlError | None) -> None:
    """Raise on every rank if any of them brings an error: its own where it happened, an
    InvariantError that names the rank elsewhere.

    So that a rank which met a bad sample does not leave the others waiting in the next collective
    call.
    """
    messages = ranks.gather_objects(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message is not None:
            raise InvariantError(f"Rank {rank} failed, so all stop: {message}")


def join(
    *,
    rank: int,
    world_size: int,
    init_method: str,
    device: torch.device | str = "cpu",
    backend: str = "gloo",
) -> OneProcess | GroupOfProcesses:
    """Start this process's part of torch.distributed, and return its collectives; a world of one
    needs none.

    Args:
        rank: Number of this process.
        world_size: Number of processes.
        init_method: Where they meet: `tcp://host:port`, or `file:///path` in a private folder where
            they share a machine.
        device: `cpu`, or this rank's `cuda:i`.
        backend: `siirl.execution.scheduler.process_group_manager.choose_backend` says which.
    """
    if world_size == 1:
        return OneProcess()
    listen_towards(init_method)
    before = open_sockets()
    store = meet(init_method, rank=rank, world_size=world_size, timeout=TIMEOUT)
    if "nccl" in backend:
        before = open_sockets()  # the store stays open: NCCL's threads connect to it again
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT
    )
    admit_ranks_only(store, rank=rank, ranks=world_size, before=before)
    return GroupOfProcesses(device=device)


def leave(ranks: OneProcess | GroupOfProcesses) -> None:
    """End this process's part of torch.distributed, if it has one, and the threads that serve it.

    A group ends its threads when nothing refers to it any more. One that lived until the
    interpreter ends could abort the process: a thread that still wants the GIL then, to free the
    last message, is made to exit in the middle of a destructor.
    """
    if isinstance(ranks, GroupOfProcesses):
        distributed.destroy_process_group(ranks.group)
        ranks.group = None
        # FSDP2's rules for operations; their keys hold the mesh, which holds the group
        _clear_sharding_prop_cache()
        gc.collect()  # and so do the tracebacks of errors that somebody kept
