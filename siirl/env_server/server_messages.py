"""Messages between a pool and a server: pickles, with large arrays sent separately.

An array's bytes are left out of the pickle (protocol 5, PEP 574), so that each side copies them
once. If both processes are on one machine and the place is free, the arrays of an answer lie in
shared memory (`SharedArea`). Otherwise they follow the message on the connection.

    answers:  length of the head, 8 bytes big-endian | head | arrays that follow
    head:     pickle of [(pickle of a value, [(place or -1, size) of each array])], busy_s

Each value is pickled separately: if one cannot be pickled, only its environment is at fault.

Linux clears every page that it gives to a process: 150 kB of new memory take 70 microseconds before
anything is written, while a copy into used memory takes 5. Observations have a fixed size and are
often dropped within a step, so the pool reuses their memory (`RecycledMemory`).

Unpickling can execute code: only an authenticated connection may bring these messages
(`siirl.env_server.connection`).
"""

import asyncio
import pickle
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from siirl.env_server.connection import MAX_MESSAGE_BYTES, ServerEnd
from siirl.env_server.server import Answers, EnvServer, RaisedError, Request
from siirl.env_server.shared_area import LARGE, SharedArea, aligned

LENGTH = struct.Struct(">Q")
FOLLOWS = -1
"""Place of an array that follows the head."""
HEAD_ROOM = 1 << 20
"""Bytes reserved in a message for the parts of the head other than the values."""

# Exceptions of pickling and unpickling: those that `pickle` documents, and those of methods of a
# user's class.
UNPICKLABLE = (
    *(pickle.PickleError, AttributeError, EOFError, ImportError, LookupError),
    *(ArithmeticError, NameError, RuntimeError, TypeError, ValueError),
)
MAX_SIZE = 1 << 21
"""Largest recycled array in bytes: an image has 0.2 to 1 MB; videos have many sizes."""
NUM_SIZES = 4
NUM_KEPT = 32
"""Arrays of each size; with `MAX_SIZE` and `NUM_SIZES`, at most 256 MiB are kept, in practice 5."""
NUMBER = struct.Struct(">Q")
"""Precedes a message to the server: its number."""
PART = struct.Struct(">QI")
"""Precedes a message of answers: number of the message that they answer, and their count. Their
positions in that message follow, four bytes each.
"""
# An environment without an answer after this time is taken to be awaiting something.
AWAITS_S = 0.001


class Order(NamedTuple):
    """Requests of one message, and for each whether its environment's place is free."""

    requests: list[Request]
    place_is_free: list[bool]


class AnswerWriter:
    """The server's end.

    Args:
        area: Memory that the pool has mapped, or None.
        room: Bytes of each environment's place in it.
    """

    def __init__(self, *, area: SharedArea | None, room: int) -> None:
        self._area = area
        self._room = room

    def message_of(self, answers: Answers, order: Order) -> tuple[bytes, list[memoryview]]:
        """The answers to `order` as a message, and the arrays that follow it."""
        following: list[memoryview] = []
        packed, left = [], MAX_MESSAGE_BYTES - HEAD_ROOM
        for value, request, free in zip(answers.values, *order, strict=True):
            place = request.env * self._room if free and self._area is not None else None
            content, places = self._pack(value, place=place, left=left, following=following)
            packed.append((content, places))
            left -= len(content) + sum(size for where, size in places if where == FOLLOWS)
        head = pickle.dumps((packed, answers.busy_s), pickle.HIGHEST_PROTOCOL)
        return LENGTH.pack(len(head)) + head, following

    def _pack(
        self, value: Any, *, place: int | None, left: int, following: list[memoryview]
    ) -> tuple[bytes, list[tuple[int, int]]]:
        """Pickle a value and find a place for each of its arrays."""
        try:
            content, arrays = _pickled(value, large=LARGE)
        except UNPICKLABLE as error:
            return _fault(f"its return value cannot be pickled: {error}")
        size = len(content) + sum(array.nbytes for array in arrays)
        if size > left:
            return _fault(
                f"its return value has {size:,} bytes, but the message has room for {left:,}"
            )
        places, end = [], 0 if place is None else place + self._room
        for array in arrays:
            if place is not None and place + array.nbytes <= end:
                assert self._area is not None
                self._area.write(place, array)
                places.append((place, array.nbytes))
                place += aligned(array.nbytes)
            else:
                following.append(array)
                places.append((FOLLOWS, array.nbytes))
        return content, places


class AnswerReader:
    """The pool's end.

    Args:
        area: The server's memory, or None.
    """

    def __init__(self, *, area: SharedArea | None) -> None:
        self._area = area
        self._memory = RecycledMemory()

    def answers_of(self, message: memoryview) -> Answers:
        """The answers of a message; their arrays own their memory and can be changed.

        Raises:
            UNPICKLABLE: The message is damaged, or has a value of a type that this process lacks.
        """
        if len(message) < LENGTH.size:
            raise ValueError(f"a message of {len(message)} bytes has no head")
        begin = LENGTH.size + int(LENGTH.unpack_from(message)[0])
        packed, busy_s = pickle.loads(message[LENGTH.size : begin])
        values = []
        for content, places in packed:
            arrays = []
            for place, size in places:
                if place == FOLLOWS:
                    if not 0 <= size <= len(message) - begin:
                        raise ValueError(f"{size} bytes of an array are beyond the message's end")
                    found = message[begin : begin + size]
                    begin += size
                elif self._area is None:
                    raise ValueError("an array lies in memory that was never shared")
                else:
                    found = self._area.content(place, size)
                arrays.append(self._memory.take(size))
                arrays[-1].data[:] = found
            values.append(pickle.loads(content, buffers=arrays))
        return Answers(values, busy_s)

    def close(self) -> None:
        """Unmap the server's memory; a second call has no effect."""
        if self._area is not None:
            self._area.close()


def pickled(value: Any) -> bytes:
    """Pickle a value with its arrays.

    Raises:
        UNPICKLABLE: It cannot be pickled.
    """
    content, _ = _pickled(value, large=sys.maxsize)
    return content


def _pickled(value: Any, *, large: int) -> tuple[bytes, list[memoryview]]:
    """Pickle `value`, and return its arrays of at least `large` bytes separately. Uses cloudpickle
    if the value was defined in a script, a notebook or a function.

    pickle takes half as long as cloudpickle.
    """
    try:
        content, arrays = _without_arrays(pickle.dumps, value, large)
    except UNPICKLABLE:
        return _without_arrays(cloudpickle.dumps, value, large)
    if b"__main__" in content:
        return _without_arrays(cloudpickle.dumps, value, large)
    return content, arrays


def _without_arrays(
    dump: Callable[..., bytes], value: Any, large: int
) -> tuple[bytes, list[memoryview]]:
    arrays: list[memoryview] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes < large:
            return True
        arrays.append(content)
        return False

    return dump(value, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=stays_inside), arrays


def _fault(text: str) -> tuple[bytes, list[tuple[int, int]]]:
    return pickled(RaisedError.of(TypeError(text))), []


class RecycledMemory:
    """Lends memory for arrays of one event loop; arrays may be freed in any thread.

    An array holds its memory through a lease, a view that is collected with the last array on it.
    Collecting the lease returns the memory, however long the arrays are kept.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[bytearray]] = {}

    def take(self, size: int) -> NDArray[np.uint8]:
        """Memory of `size` bytes [size], with old content; it is returned when it is collected."""
        if size > MAX_SIZE:
            return np.empty(size, np.uint8)
        if size not in self._free:
            if len(self._free) >= NUM_SIZES:
                self._free.clear()
            self._free[size] = deque(maxlen=NUM_KEPT)
        free = self._free[size]
        # only this thread takes memory, so an entry stays until it is taken
        memory = free.pop() if free else bytearray(size)
        lease = np.frombuffer(memory, np.uint8)
        weakref.finalize(lease, free.append, memory).atexit = False
        return lease


class Serving:
    """Answers the messages of a connection.

    No method of the actor may be asynchronous, or Ray would run all of them on another loop.
    """

    def __init__(self, server: EnvServer, pool: ServerEnd, writer: AnswerWriter) -> None:
        self._server = server
        self._pool = pool
        self._writer = writer

    async def answer_all(self) -> None:
        """Answer messages until the connection ends.

        If no request is running, this thread waits in the connection itself, which is fastest;
        otherwise another thread waits there.
        """
        messages = self._pool.messages()
        reading: asyncio.Future[bytes | None] | None = None
        running: set[asyncio.Future[None]] = set()
        while True:
            if reading is None and not running:
                message = next(messages, None)
            else:
                reading = reading or asyncio.ensure_future(asyncio.to_thread(next, messages, None))
                either: set[asyncio.Future[Any]] = {reading, *running}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                running = _rest(running)
                if not reading.done():
                    continue
                message, reading = reading.result(), None
            if message is None:
                break
            running.add(asyncio.ensure_future(self._answer(message)))
            await asyncio.wait(running, timeout=AWAITS_S, return_when=asyncio.FIRST_COMPLETED)
            running = _rest(running)
        for task in running:
            task.cancel()

    async def _answer(self, message: bytes) -> None:
        (number,) = NUMBER.unpack_from(message)
        order: Order = pickle.loads(memoryview(message)[NUMBER.size :])

        def send(positions: Sequence[int], answers: Answers) -> None:
            part = Order(
                [order.requests[position] for position in positions],
                [order.place_is_free[position] for position in positions],
            )
            content, arrays = self._writer.message_of(answers, part)
            head = PART.pack(number, len(positions)) + struct.pack(
                f">{len(positions)}I", *positions
            )
            self._pool.send(head + content, *arrays)

        await self._server.handle(order.requests, send)


def _rest(tasks: set[asyncio.Future[None]]) -> set[asyncio.Future[None]]:
    """The tasks that are not done; raises the server's own errors."""
    for task in tasks:
        if task.done():
            task.result()
    return {task for task in tasks if not task.done()}
