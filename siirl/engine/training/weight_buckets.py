"""Moves weights to another process in buckets: one buffer that is filled, delivered and reused.

`send` packs rows of weights into the buffer of a transport. The transports:

- `SharedMemory`: host memory that a process of the same machine maps; for engines on a CPU.
- `CudaIpc`: GPU memory that a process with the same GPU maps.
- `Broadcast`: a collective call of a process group (gloo or NCCL), over any number of machines.

Additional memory is one bucket that both sides map, or one on each side: weights larger than a
bucket are cut. Sender and receiver each compute a checksum over the bits; they must agree.

Left out: compression.
"""

import itertools
import mmap
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import distributed

from siirl.errors import ConfigError
from siirl.models.checksum import RunningChecksum
from siirl.models.weight_rows import Rows

BUCKET_BYTES = 512 * 1024 * 1024
ALIGNMENT = 16  # bytes; a view of any dtype must begin at a multiple of its size


@dataclass(frozen=True)
class Entry:
    """Place of some rows of a weight in a bucket."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Shape of the whole weight."""
    first: int
    """Number of the first row."""
    count: int
    """Number of rows."""
    start: int
    """Offset in bytes."""

    @classmethod
    def of(cls, rows: Rows, *, start: int) -> "Entry":
        """The place of `rows` from byte `start` on."""
        count = len(rows.values) if rows.shape else 1
        return cls(rows.name, rows.values.dtype, rows.shape, rows.first, count, start)

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.start + self.dtype.itemsize * self.count * torch.Size(self.shape[1:]).numel()

    def rows(self, buffer: torch.Tensor) -> Rows:
        """The rows in the bucket, as a view."""
        flat = buffer[self.start : self.end].view(self.dtype)
        values = flat.view((self.count, *self.shape[1:]) if self.shape else ())
        return Rows(self.name, values, self.shape, first=self.first)

    def packed(self) -> tuple[str, str, tuple[int, ...], int, int, int]:
        """The entry as plain data, for calls that cannot carry classes."""
        dtype = str(self.dtype).removeprefix("torch.")
        return self.name, dtype, self.shape, self.first, self.count, self.start

    @classmethod
    def unpacked(cls, packed: Sequence[Any]) -> "Entry":
        """The inverse of `packed`."""
        name, dtype, shape, *numbers = packed
        return cls(name, getattr(torch, dtype), tuple(shape), *numbers)


class WeightTransport(Protocol):
    """Owns the buffer of a bucket and delivers it."""

    def buffer(self, size: int) -> torch.Tensor:
        """A buffer of at least `size` bytes, uint8; it replaces the previous one."""

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """Hand the bucket to the receivers; returns when `buffer` may be overwritten."""

    def finish(self) -> None:
        """Tell the receivers that no bucket follows, and free the buffer."""


def send(
    weights: Iterable[Rows], transport: WeightTransport, *, bucket_bytes: int = BUCKET_BYTES
) -> int:
    """Send all weights through `transport`; returns their checksum.

    Args:
        weights: Consumed one at a time.
        transport: Delivers the buckets.
        bucket_bytes: Size of a bucket; it grows to the size of the largest row.
    """
    digest = RunningChecksum()
    buffer = transport.buffer(bucket_bytes)
    entries: list[Entry] = []
    used = 0
    for rows in itertools.chain.from_iterable(part.cut(bucket_bytes) for part in weights):
        digest.add(rows)
        entry = Entry.of(rows, start=used)
        if entry.end > len(buffer):
            if entries:
                transport.deliver(entries, buffer)
            entries = []
            entry = Entry.of(rows, start=0)
            if entry.end > len(buffer):
                del buffer  # before the larger one is made
                buffer = transport.buffer(entry.end)
        entry.rows(buffer).values.copy_(rows.values)
        entries.append(entry)
        used = -(-entry.end // ALIGNMENT) * ALIGNMENT
    if entries:
        transport.deliver(entries, buffer)
    del buffer
    transport.finish()
    return digest.value


# Processes of one machine

Delivery = Callable[[Any, list[Any]], None]
"""Call in the receiving processes with the handle of a buffer and the packed entries.

It returns when all have copied what they need; `receive_mapped` is its other end.
"""


_NUMBERS = itertools.count()  # identify buffers, because descriptors are reused


class SharedMemory:
    """A bucket in host memory that other processes of this user and machine map.

    The memory has no name in a file system, so nothing is left behind if a process is killed.

    Args:
        call: Carries the handle of the buffer to the receivers.
    """

    def __init__(self, call: Delivery) -> None:
        self.call = call
        self.descriptor: int | None = None
        self.number = 0

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`.

        Raises:
            OSError: Not enough memory.
        """
        self._close()
        self.number = next(_NUMBERS)
        self.descriptor = os.memfd_create("siirl-weights", os.MFD_CLOEXEC)
        os.posix_fallocate(self.descriptor, 0, size)  # a missing page would be a SIGBUS later
        return torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`."""
        handle = ("memory", os.getpid(), self.descriptor, len(buffer), self.number)
        self.call(handle, [entry.packed() for entry in entries])

    def finish(self) -> None:
        """See `WeightTransport`."""
        self._close()

    def _close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class CudaIpc:
    """A bucket in the memory of this process's GPU, which processes with the same GPU map.

    Args:
        call: Carries the handle of the buffer to the receivers.
        device: This process's GPU.
    """

    def __init__(self, call: Delivery, device: torch.device) -> None:
        self.call = call
        self.device = device
        self.handle: bytes | None = None

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`."""
        from torch.multiprocessing.reductions import reduce_tensor

        buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
        # A handle is made once: the receivers keep the mapping of a buffer, and each new handle
        # counts as a reference that one of them must release.
        _, arguments = reduce_tensor(buffer)
        self.handle = pickle.dumps(arguments)
        return buffer

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`."""
        torch.cuda.synchronize(self.device)  # the copies into the buffer are asynchronous
        self.call(("cuda", self.handle), [entry.packed() for entry in entries])

    def finish(self) -> None:
        """See `WeightTransport`."""
        self.handle = None
        torch.cuda.ipc_collect()


def require_peer_access(device: torch.device, *, num_gpus: int) -> None:
    """Refuse GPUs that could not read a bucket of `CudaIpc`, which is in the memory of `device`.

    Args:
        device: The sender's GPU.
        num_gpus: Number of GPUs that read it: those of one engine, from the process's first on.

    Raises:
        ConfigError: One of them has no peer access to `device`.
    """
    place = device.index or 0
    others = [number for number in range(num_gpus) if number != place]
    apart = [str(gpu) for gpu in others if not torch.cuda.can_device_access_peer(gpu, place)]
    if apart:
        raise ConfigError(
            f"GPU {', '.join(apart)} of this rank cannot read the memory of its GPU {place}, "
            "through which an engine on several GPUs gets weights: set "
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1, or use GPUs that "
            "`nvidia-smi topo -p2p r` shows as connected."
        )


class MappedBuffers:
    """The receivers' side of `SharedMemory` and `CudaIpc`."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._buffer: torch.Tensor | None = None

    def open(self, handle: Any, *, device: torch.device) -> torch.Tensor:
        """The buffer that the sender names, uint8; an open buffer is not mapped again.

        Args:
            handle: Handle that `WeightTransport.deliver` passes to the receiver.
            device: The GPU of this process; not read for host memory.
        """
        handle = tuple(handle)
        if self._buffer is None or handle != self._handle:
            self.close()
            kind, *place = handle
            self._buffer = _mapped(*place) if kind == "memory" else _on_gpu(*place, device=device)
            self._handle = handle
        return self._buffer

    def close(self) -> None:
        """Drop the mapping."""
        self._handle = self._buffer = None


def _mapped(process: int, descriptor: int, size: int, number: int) -> torch.Tensor:
    with open(f"/proc/{process}/fd/{descriptor}", "rb+") as memory:
        return torch.frombuffer(mmap.mmap(memory.fileno(), size), dtype=torch.uint8)


def _on_gpu(handle: bytes, *, device: torch.device) -> torch.Tensor:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    arguments = list(pickle.loads(handle))  # made by this run's own rank
    # The sender's number of the device; CUDA_VISIBLE_DEVICES may number it differently here.
    arguments[DEVICE_OF_REBUILD] = device.index or 0
    return rebuild_cuda_tensor(*arguments)


DEVICE_OF_REBUILD = 6  # position of `storage_device` in torch's rebuild_cuda_tensor


# Ranks of a process group


class Broadcast:
    """Every bucket goes from one rank of a process group to all others, which call `receive`.

    Args:
        group: The process group; all its ranks take part.
        source: This process's rank in the group.
        device: Device of the buffer: the GPU with NCCL, `cpu` with gloo.
    """

    def __init__(
        self,
        group: distributed.ProcessGroup,
        *,
        source: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.group = group
        self.source = source
        self.device = torch.device(device)

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`."""
        self._announce([entry.packed() for entry in entries])
        distributed.broadcast(buffer[: entries[-1].end], group=self.group, group_src=self.source)

    def finish(self) -> None:
        """See `WeightTransport`."""
        self._announce(None)

    def _announce(self, entries: list[Any] | None) -> None:
        distributed.broadcast_object_list(
            [entries], group=self.group, group_src=self.source, device=self.device
        )


def receive(
    group: distributed.ProcessGroup, *, source: int, device: torch.device | str = "cpu"
) -> Iterator[Rows]:
    """Weights that rank `source` of the group sends by `Broadcast`.

    They are views of the bucket: copy what must outlive the next one. All must be consumed.
    """
    buffer = torch.empty(0, dtype=torch.uint8, device=device)
    while True:
        announced: list[Any] = [None]
        distributed.broadcast_object_list(
            announced, group=group, group_src=source, device=torch.device(device)
        )
        if announced[0] is None:
            return
        entries = [Entry.unpacked(packed) for packed in announced[0]]
        if entries[-1].end > len(buffer):
            buffer = torch.empty(entries[-1].end, dtype=torch.uint8, device=device)
        distributed.broadcast(buffer[: entries[-1].end], group=group, group_src=source)
        yield from (entry.rows(buffer) for entry in entries)
