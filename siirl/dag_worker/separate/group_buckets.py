"""Weights from training rank 0 to the rollout ranks of a transfer, in a gloo group of their own.

    training rank 0                          rollout ranks
    OpenGroup, connect        <-------->     Arriving(...)
    SentBuckets.deliver       --------->     Arriving.rows         one bucket after another
    SentBuckets.commit        --------->     Arriving.sent_checksum
                              <---------     Arriving.confirm

If all are on one machine they map the bucket, and the group carries only what is in it; otherwise
the bucket is broadcast. A process that dies closes its connections, and then the others, which see
that, theirs: the transfer has ended for all of them. Left out: NCCL. Weights of a GPU pass through
a bucket of host memory.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from siirl.engine.rollout.server.weight_group import WeightGroup, join_group, open_store
from siirl.engine.training.port_guard import admit_ranks_only, open_sockets
from siirl.engine.training.weight_buckets import (
    Broadcast,
    Entry,
    MappedBuffers,
    SharedMemory,
    WeightTransport,
    receive,
)
from siirl.models.weight_rows import Rows

SILENCE_S = 30.0  # longest wait for another process, in which it connects or copies a bucket
SENDER = 0
CPU = torch.device("cpu")


class TransferBroken(Exception):
    """A process of the group is lost."""


def machine_name() -> str:
    """The same text in processes that can map each other's memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"


class OpenGroup:
    """A store at which the members of a group meet.

    Args:
        address: Address of this process, at which it listens.
        members: Number of rollout ranks.
    """

    def __init__(self, address: str, *, members: int) -> None:
        self.address, self.ranks = address, 1 + members
        self._before = open_sockets()
        self._store, self.port = open_store(address, ranks=self.ranks)

    def connect(self) -> WeightGroup:
        """The group, when all have connected.

        Raises:
            RuntimeError: A member did not connect.
            InvariantError: Another process has connected.
        """
        group = WeightGroup(
            self._store,
            address=self.address,
            rank=SENDER,
            ranks=self.ranks,
            timeout_s=SILENCE_S,
        )
        admit_ranks_only(self._store, rank=SENDER, ranks=self.ranks, before=self._before)
        return group


class SentBuckets:
    """A `WeightTransport` to the other members; if one is lost, the rest is dropped.

    The training ranks gather weights together, so this one must consume them to the end.

    Args:
        opened: Where the members meet.
        shared: Whether they map the bucket.
        pins: Whether the weights are on a GPU, which copies faster into pinned memory.
    """

    def __init__(self, opened: OpenGroup, *, shared: bool, pins: bool) -> None:
        self.problem: str | None = None
        """Why the transfer broke off."""
        self.delivered_bytes = 0
        """Bytes of weights in the buckets that were sent, without one in which it broke off."""
        self._pins = pins and not shared
        self._group: Any = None
        self._transport: WeightTransport | None = None
        with self._noting():
            self._group = opened.connect().group
        if self._group is not None:
            self._transport = (
                SharedMemory(self._copied) if shared else Broadcast(self._group, source=SENDER)
            )

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`."""
        if self._pins or self._transport is None:
            return torch.empty(size, dtype=torch.uint8, pin_memory=self._pins)
        return self._transport.buffer(size)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`."""
        if self._transport is not None:
            with self._noting():
                self._transport.deliver(entries, buffer)
                self.delivered_bytes += sum(entry.end - entry.start for entry in entries)

    def finish(self) -> None:
        """See `WeightTransport`."""
        if self._transport is not None:
            with self._noting():
                if isinstance(self._transport, SharedMemory):
                    _announce(self._group, None)
                self._transport.finish()

    def commit(self, checksum: int) -> None:
        """Send the checksum, and wait until all have compared it."""
        if self._transport is not None:
            with self._noting():
                _announce(self._group, checksum)
                _meet(self._group)
        self._leave()

    def _copied(self, handle: Any, packed: list[Any]) -> None:
        """Let the others copy a mapped bucket."""
        _announce(self._group, (handle, packed))
        _meet(self._group)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep the loss of a member as the transfer's problem; the others' transfer ends too."""
        try:
            yield
        except RuntimeError as error:
            self.problem = _cause(error)
            self._leave()

    def _leave(self) -> None:
        """Close the connections and the bucket."""
        if isinstance(self._transport, SharedMemory):
            self._transport.finish()
        self._transport = self._group = None


# The other members


class Arriving:
    """A member's side of a transfer.

    Args:
        host: Address of the sender.
        port: Port of its store.
        rank: Rank of this process in the group.
        ranks: Number of ranks in the group.
        shared: Whether the bucket is mapped.

    Raises:
        TransferBroken: The sender or another member did not connect.
    """

    def __init__(self, host: str, port: int, *, rank: int, ranks: int, shared: bool) -> None:
        self._shared = shared
        try:
            self._group: Any = join_group(host, port, rank=rank, ranks=ranks).group
        except RuntimeError as error:
            raise TransferBroken(str(error)) from None  # its frames hold the connections

    def rows(self) -> Iterator[Rows]:
        """The weights, as views of the bucket; all must be consumed.

        Raises:
            TransferBroken: The sender or another member is lost.
        """
        try:  # a consumer's error does not arise here
            yield from self._mapped() if self._shared else receive(self._group, source=SENDER)
        except RuntimeError as error:
            self._group = None
            raise TransferBroken(str(error)) from None

    def sent_checksum(self) -> int:
        """The checksum that the sender computed; after `rows`.

        Raises:
            TransferBroken: The sender is lost.
        """
        try:
            return int(_heard(self._group))
        except RuntimeError as error:
            self._group = None
            raise TransferBroken(str(error)) from None

    def confirm(self) -> None:
        """Tell the sender that the weights have arrived."""
        with suppress(RuntimeError):  # another member is lost; this one has the weights
            _meet(self._group)
        self._group = None

    def _mapped(self) -> Iterator[Rows]:
        buffers = MappedBuffers()
        while (announced := _heard(self._group)) is not None:
            handle, packed = announced
            buffer = buffers.open(handle, device=CPU)
            yield from (Entry.unpacked(each).rows(buffer) for each in packed)
            _meet(self._group)


def _cause(error: RuntimeError) -> str:
    """Why a member is lost, without gloo's source files and addresses; gloo does not name it."""
    text = str(error)
    if "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
        return "One of them closed its connection, as a process that dies does."
    if "Timed out" in text or "timeout" in text:
        return f"One of them did not answer within {SILENCE_S:.0f} s."
    return text


def _announce(group: Any, thing: Any) -> None:
    distributed.broadcast_object_list([thing], group=group, group_src=SENDER, device=CPU)


def _heard(group: Any) -> Any:
    heard: list[Any] = [None]
    distributed.broadcast_object_list(heard, group=group, group_src=SENDER, device=CPU)
    return heard[0]


def _meet(group: Any) -> None:
    """Wait for all members."""
    group.barrier().wait()
