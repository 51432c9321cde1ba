"""Recycles the memory of unused arrays for later arrays of the same size.

Linux clears every page that a process gets: 150 kB of new memory take 70 microseconds before
anything is written, and a copy into memory in use takes 5. Observations have one size and are often
dropped within a step, so their memory can be reused.

An array holds its memory through a lease, a view that is collected with the last array on it. Its
end returns the memory, however long the arrays are kept.
"""

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

MAX_SIZE = 1 << 21
"""Largest recycled array in bytes: an image has 0.2 to 1 MB; videos have many sizes."""
NUM_SIZES = 4
NUM_KEPT = 32
"""Arrays of each size; with `MAX_SIZE` and `NUM_SIZES` at most 256 MiB stay, in practice 5."""


class RecycledMemory:
    """Lends memory for arrays of one event loop; arrays may end in any thread."""

    def __init__(self) -> None:
        self._free: dict[int, deque[bytearray]] = {}

    def take(self, size: int) -> NDArray[np.uint8]:
        """Memory of `size` bytes [size], with old content; it is returned by its end."""
        if size > MAX_SIZE:
            return np.empty(size, np.uint8)
        if size not in self._free:
            if len(self._free) >= NUM_SIZES:
                self._free.clear()
            self._free[size] = deque(maxlen=NUM_KEPT)
        free = self._free[size]
        # only this thread takes: what is there stays until it is taken
        memory = free.pop() if free else bytearray(size)
        lease = np.frombuffer(memory, np.uint8)
        weakref.finalize(lease, free.append, memory).atexit = False
        return lease
