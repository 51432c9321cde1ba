"""Keeps tensors in host memory while they are idle.

The tensors stay the same objects: their storage is freed and allocated again, so that views of it
(FSDP2's shards, optimiser state) remain valid. Left out: overlap of the copies with computing.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch

from siirl.models.stored_tensors import local_part


class Resident:
    """Tensors that stay on their device; `Offloaded` leaves it."""

    def resident(self) -> contextlib.AbstractContextManager[None]:
        """Have the tensors on their device for the time of the block, which may be nested."""
        return contextlib.nullcontext()

    def leave(self) -> None:
        """Do nothing."""


STAYING = Resident()


class Offloaded(Resident):
    """Tensors that are on their device only within `resident`.

    Args:
        tensors: Returns the tensors, plain or sharded; called each time they leave.
    """

    def __init__(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._tensors = tensors
        self._away: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._depth = 0

    @contextlib.contextmanager
    def resident(self) -> Iterator[None]:
        """Bring the tensors back for the time of the block, which may be nested."""
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
        """Copy the tensors to host memory and free theirs."""
        storages = {
            local_part(tensor).untyped_storage().data_ptr(): local_part(tensor)
            for tensor in self._tensors()
            if tensor.ndim
        }
        for part in storages.values():
            device = torch.empty(0, dtype=torch.uint8, device=part.device)
            bytes_ = device.set_(part.untyped_storage())
            host = torch.empty(
                len(bytes_), dtype=torch.uint8, pin_memory=part.device.type == "cuda"
            )
            host.copy_(bytes_)
            self._away.append((bytes_, host))
            bytes_.untyped_storage().resize_(0)

    def _come_back(self) -> None:
        while self._away:
            bytes_, host = self._away.pop()
            bytes_.untyped_storage().resize_(len(host))
            bytes_.copy_(host)
