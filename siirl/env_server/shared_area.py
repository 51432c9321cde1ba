"""Memory that a server shares with its pool on the same machine, for the large arrays of answers.

The server makes the memory and sends its process number and file descriptor; the pool maps the same
memory through /proc/<process>/fd, for reading only. The memory has no name in any file system:
nothing is left when both processes have ended, even if they were killed. Its mode is 0600, and
Linux lets only processes of the same user read another's descriptors. Its size is sealed, so that a
reader never loses a mapped page. A random token at its beginning lets the reader verify that it has
opened this memory, and not a file of another process with the same number, for example in another
container.

Each environment has one place in the memory, for its last answer. The pool copies the answer when
its message arrives. If an environment's last answer was not read yet, its next request is marked,
and the answer is sent over the connection (`siirl.env_server.server_messages`).

Left out: systems other than Linux; there the connection carries everything.
"""

import fcntl
import math
import mmap
import os
import secrets
import sys
from contextlib import suppress
from typing import Any, NamedTuple, Self

import gymnasium

from envs.base import EnvSpec

LARGE = 4096
"""Smallest array in bytes that gets a place: smaller ones cost less inside the message."""
ALIGNMENT = 64  # bytes of a cache line
TOKEN_BYTES = 32  # too long to be equal by chance


class AreaHandle(NamedTuple):
    """Data with which another process of the same user and machine opens an area."""

    process: int
    descriptor: int
    size: int
    """Bytes of the places."""
    token: bytes


class SharedArea:
    """Mapped memory with `size` bytes of places; closed by `close`, or with the process."""

    def __init__(self, memory: mmap.mmap, *, size: int) -> None:
        self._memory = memory
        self._places = memoryview(memory)[ALIGNMENT : ALIGNMENT + size]
        self._descriptor: int | None = None

    @classmethod
    def make(cls, size: int) -> Self | None:
        """New memory for `size` bytes; None on a system other than Linux."""
        if sys.platform != "linux":
            return None
        descriptor = os.memfd_create("siirl-answers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, ALIGNMENT + size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        area = cls(mmap.mmap(descriptor, ALIGNMENT + size), size=size)
        area._descriptor = descriptor
        area._memory[:TOKEN_BYTES] = secrets.token_bytes(TOKEN_BYTES)
        return area

    @classmethod
    def open(cls, handle: AreaHandle) -> Self:
        """Map the memory that another process made, for reading.

        Raises:
            OSError: The process has ended, is another user's, or its descriptor is another file.
        """
        path = f"/proc/{handle.process}/fd/{handle.descriptor}"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # raises OSError for a file that has no seals
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
            if not sealed or os.fstat(descriptor).st_size != ALIGNMENT + handle.size:
                raise OSError(f"{path} is not the memory of {handle.size} bytes that was announced")
            memory = mmap.mmap(descriptor, ALIGNMENT + handle.size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        if not secrets.compare_digest(memory[:TOKEN_BYTES], handle.token):
            memory.close()
            raise OSError(f"{path} is the memory of another server")
        return cls(memory, size=handle.size)

    @property
    def handle(self) -> AreaHandle:
        """Argument of `open` in another process; exists only for memory that this process made."""
        assert self._descriptor is not None
        token = self._memory[:TOKEN_BYTES]
        return AreaHandle(os.getpid(), self._descriptor, len(self._places), token)

    def write(self, place: int, content: memoryview) -> None:
        """Copy the bytes `content` to `place`."""
        self._places[place : place + content.nbytes] = content

    def content(self, place: int, size: int) -> memoryview:
        """The `size` bytes at `place`, until the environment's next answer overwrites them.

        Raises:
            ValueError: They are not all inside the area.
        """
        if not 0 <= place <= place + size <= len(self._places):
            raise ValueError(
                f"an array of {size} bytes at {place} is outside the {len(self._places)} shared "
                "bytes"
            )
        return self._places[place : place + size]

    def close(self) -> None:
        """Unmap the memory; a second call has no effect."""
        self._places.release()
        self._memory.close()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def room_of_answer(spec: EnvSpec) -> int:
    """Bytes of the large arrays in an observation of all agents; 0 if it has none."""
    return spec.num_agents * _room_of(spec.observation_space)


def aligned(size: int) -> int:
    """`size`, rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _room_of(space: gymnasium.Space[Any]) -> int:
    match space:
        case gymnasium.spaces.Dict():
            return sum(map(_room_of, space.spaces.values()))
        case gymnasium.spaces.Tuple():
            return sum(map(_room_of, space.spaces))
        case gymnasium.spaces.Box():
            size = space.dtype.itemsize * math.prod(space.shape)
            return aligned(size) if size >= LARGE else 0
        case _:
            return 0


_SEALS = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if sys.platform == "linux" else 0
)
