"""Keeps tensors in host memory while they are idle.

The tensors stay the same objects: their storage is freed and allocated again, so that views of it
(FSDP2's shards, optimiser state) remain valid. Left out: overlap of the copies with computing.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from siirl.models.stored_tensors import local_part

LEAST_BYTES = 1 << 20  # size of a separate host allocation; smaller ones are not worth it


class ResidentTensors:
    """Tensors that stay on their device; those of `OffloadedTensors` leave it."""

    def resident(self) -> contextlib.AbstractContextManager[None]:
        """Keep the tensors on their device during the `with` block; may be nested."""
        return contextlib.nullcontext()

    def leave(self) -> None:
        """Do nothing."""


STAYING = ResidentTensors()


class OffloadedTensors(ResidentTensors):
    """Tensors that are on their device only within `resident`.

    Args:
        tensors: Returns the tensors, plain or sharded; called each time they leave.
    """

    def __init__(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._tensors = tensors
        self._away: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self._depth = 0

    @contextlib.contextmanager
    def resident(self) -> Iterator[None]:
        """Bring the tensors back for the `with` block; may be nested."""
        self._depth += 1
        if self._depth == 1:
            self._come_back()
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.leave()

    def leave(self) -> None:
        """Copy the tensors to host memory and free their device memory."""
        storages = {
            local_part(tensor).untyped_storage().data_ptr(): local_part(tensor)
            for tensor in self._tensors()
            if tensor.ndim
        }
        for part in storages.values():
            empty = torch.empty(0, dtype=torch.uint8, device=part.device)
            bytes_ = empty.set_(part.untyped_storage())
            host = [
                torch.empty(size, dtype=torch.uint8, pin_memory=part.device.type == "cuda")
                for size in powers_of_two(len(bytes_))
            ]
            _copy(bytes_, host, to_host=True)
            self._away.append((bytes_, host))
            bytes_.untyped_storage().resize_(0)

    def _come_back(self) -> None:
        while self._away:
            bytes_, host = self._away.pop()
            bytes_.untyped_storage().resize_(len(bytes_))
            _copy(bytes_, host, to_host=False)


def powers_of_two(length: int) -> list[int]:
    """Sizes that add up to `length`: powers of two, and a remainder below `LEAST_BYTES`.

    PyTorch rounds pinned memory up to a power of two: a matrix of Qwen2.5-7B (259 MiB) would take
    512 MiB.
    """
    sizes = []
    while length >= LEAST_BYTES:
        sizes.append(1 << (length.bit_length() - 1))
        length -= sizes[-1]
    return [*sizes, length] if length else sizes


def _copy(bytes_: torch.Tensor, host: Sequence[torch.Tensor], *, to_host: bool) -> None:
    for part, there in zip(bytes_.split([len(each) for each in host]), host, strict=True):
        if to_host:
            there.copy_(part)
        else:
            part.copy_(there)
