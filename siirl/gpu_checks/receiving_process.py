"""A process that receives weights in buckets, as vLLM's workers do, and returns their checksum.

It maps the sender's buckets: by CUDA IPC on a GPU, by shared memory on a CPU.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from siirl.engine.training.weight_buckets import (
    BUCKET_BYTES,
    CudaIpc,
    Delivery,
    Entry,
    MappedBuffers,
    SharedMemory,
    WeightTransport,
    send,
)
from siirl.engine.training.weight_sync import ChecksumPair
from siirl.models.checksum import RunningChecksum
from siirl.models.weight_rows import Rows

MakeTransport = Callable[[Delivery, torch.device], WeightTransport]


def mapped(call: Delivery, device: torch.device) -> WeightTransport:
    """The transport to a process of the same device."""
    return CudaIpc(call, device) if device.type == "cuda" else SharedMemory(call)


class ReceivingProcess:
    """Weights of another process (`siirl.engine.training.weight_sync.ActingWeights`).

    Args:
        device: The GPU that both processes use, or the CPU.
        bucket_bytes: Size of a bucket.
        weight_dtypes: Types in which it takes weights.
        transport: Delivers the buckets.
    """

    version = -1

    def __init__(
        self,
        device: torch.device,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        weight_dtypes: Mapping[str, torch.dtype] | None = None,
        transport: MakeTransport = mapped,
    ) -> None:
        self.weight_dtypes = {} if weight_dtypes is None else weight_dtypes
        self.arrived: int | None = None
        """Checksum of the last weights, by the other process."""
        self.buckets = 0
        """Buckets that it has received."""
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._transport = transport

    def __enter__(self) -> Self:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_receive, args=(theirs, self._device), daemon=True)
        self._process.start()
        theirs.close()
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        self._process.join()

    def has_weights(self) -> bool:
        """See `ActingWeights`."""
        return True

    def take_weights(self, weights: Iterable[Rows]) -> list[ChecksumPair]:
        """See `ActingWeights`."""
        transport = self._transport(self._call, self._device)
        sent = send(weights, transport, bucket_bytes=self._bucket_bytes)
        self._pipe.send(None)
        self.arrived = self._pipe.recv()
        assert self.arrived is not None
        return [ChecksumPair(trained=sent, acting=self.arrived)]

    def update_weights(self, version: int) -> None:
        """See `siirl.engine.training.weight_sync.VersionedEngine`."""
        self.version = version

    def _call(self, handle: Any, packed: list[Any]) -> None:
        self._pipe.send((handle, packed))
        self._pipe.recv()
        self.buckets += 1


def _receive(sender: Connection, device: torch.device) -> None:
    """Map buckets and answer each; answer None, the end of the weights, with their checksum."""
    buffers, digest = MappedBuffers(), RunningChecksum()
    while True:
        try:
            message: tuple[Any, Sequence[Any]] | None = sender.recv()
        except EOFError:
            return
        if message is None:
            buffers.close()
            sender.send(digest.value)
            digest = RunningChecksum()
            continue
        handle, packed = message
        buffer = buffers.open(handle, device=device)
        for each in packed:
            digest.add(Entry.unpacked(each).rows(buffer))
        sender.send(True)
