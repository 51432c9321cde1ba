"""Messages with arrays beside the pickle, the memory that two processes share for them, and its
reuse in the pool.
"""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from siirl.env_server.connection import MAX_MESSAGE_BYTES
from siirl.env_server.server import Answers, RaisedError, Request
from siirl.env_server.server_messages import (
    MAX_SIZE,
    NUM_KEPT,
    NUM_SIZES,
    UNPICKLABLE,
    AnswerReader,
    AnswerWriter,
    Order,
    RecycledMemory,
)
from siirl.env_server.shared_area import LARGE, AreaHandle, SharedArea, aligned

ROOM = 4 * LARGE
NUM_ENVS = 3


@contextmanager
def shared_area(size: int = NUM_ENVS * ROOM) -> Iterator[tuple[SharedArea, SharedArea]]:
    """The same memory as server and pool see it."""
    own = SharedArea.make(size)
    assert own is not None
    seen = SharedArea.open(own.handle)
    yield own, seen
    own.close()
    seen.close()


def order_of(envs: list[int], *, free: bool = True) -> Order:
    return Order([Request(env, "frames", ()) for env in envs], [free] * len(envs))


def message(writer: AnswerWriter, values: list[object], order: Order) -> bytearray:
    head, following = writer.message_of(Answers(values, 0.5), order)
    return bytearray(b"".join([head, *following]))


def same(first: object, second: object) -> bool:
    """Equal in values, types, shapes and memory order."""
    if isinstance(first, np.ndarray):
        assert isinstance(second, np.ndarray)
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and first.tobytes() == second.tobytes()
    if isinstance(first, dict):
        assert isinstance(second, dict)
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        assert type(first) is type(second)
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def every(value: object) -> Iterator[np.ndarray]:
    """The arrays in a value."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from every(part)


def array_of(size: int, dtype: str, layout: str) -> np.ndarray:
    """An array of about `size` bytes whose memory is C, Fortran or cut from a larger one."""
    count = max(2, size // np.dtype(dtype).itemsize // 2 * 2)
    found = (np.arange(2 * count) % 251).astype(dtype).reshape(2, -1)
    return {"C": found[0], "F": np.asfortranarray(found), "cut": found[:, ::2]}[layout]


ARRAYS = st.builds(
    array_of,
    st.sampled_from([0, 100, LARGE - 1, LARGE, LARGE + 1, ROOM, 2 * ROOM]),
    st.sampled_from(["uint8", "float32", "int64", "bool"]),
    st.sampled_from(["C", "F", "cut"]),
)
SMALL = arrays.arrays(np.float32, arrays.array_shapes(max_side=3), elements=st.just(1.5))
VALUES = st.recursive(
    ARRAYS | SMALL | st.integers() | st.text(max_size=5) | st.none(),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.tuples(parts, parts)
        | st.dictionaries(st.text(max_size=3), parts, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=NUM_ENVS), st.sampled_from(["shared", "taken", "apart"]))
def test_any_answers_come_as_they_were_and_their_arrays_can_be_changed(values, memory):
    order = order_of(list(range(len(values))), free=memory != "taken")
    with shared_area() as (own, seen):
        writer = AnswerWriter(area=None if memory == "apart" else own, room=ROOM)
        reader = AnswerReader(area=None if memory == "apart" else seen)
        sent = message(writer, values, order)
        got = reader.answers_of(memoryview(sent))
        sent[:] = bytes(len(sent))
        own.write(0, memoryview(bytes(NUM_ENVS * ROOM)))
        assert same(values, got.values) and got.busy_s == 0.5
        for array in every(got.values):
            array[...] = 0


@given(st.data())
def test_a_damaged_message_is_an_error_and_never_reads_beyond_its_memory(data):
    with shared_area() as (own, seen):
        values = [array_of(3 * ROOM, "uint8", "C"), array_of(LARGE, "uint8", "C")]
        sent = message(AnswerWriter(area=own, room=ROOM), values, order_of([0, 1]))
        cut = data.draw(st.integers(0, len(sent) - 1))
        with pytest.raises(UNPICKLABLE):
            AnswerReader(area=seen).answers_of(memoryview(sent)[:cut])


@pytest.mark.parametrize(("place", "size"), [(-64, 8), (0, -1), (0, 65), (64, 1), (1 << 62, 1)])
def test_a_place_outside_of_the_shared_memory_is_refused(place, size):
    with shared_area(64) as (_, seen), pytest.raises(ValueError, match="outside the 64 shared"):
        seen.content(place, size)


def test_a_pool_without_the_memory_refuses_an_answer_that_lies_there():
    with shared_area() as (own, _):
        writer = AnswerWriter(area=own, room=ROOM)
        sent = message(writer, [array_of(LARGE, "uint8", "C")], order_of([0]))
    with pytest.raises(ValueError, match="never shared"):
        AnswerReader(area=None).answers_of(memoryview(sent))


def test_an_environment_whose_answer_was_not_read_keeps_its_place():
    """Its episode was abandoned while a step was under way, and the next one has begun."""
    first, second = np.full(LARGE, 1, np.uint8), np.full(LARGE, 2, np.uint8)
    with shared_area() as (own, seen):
        writer, reader = AnswerWriter(area=own, room=ROOM), AnswerReader(area=seen)
        sent = [
            message(writer, [first], order_of([1])),
            message(writer, [second], order_of([1], free=False)),
        ]
        got = [reader.answers_of(memoryview(each)).values[0] for each in sent]
    assert [set(each.tolist()) for each in got] == [{1}, {2}]


def test_a_value_that_no_message_can_hold_is_a_fault_of_its_environment_only():
    huge = np.empty(MAX_MESSAGE_BYTES, np.uint8)  # Linux gives it no page until it is written
    writer = AnswerWriter(area=None, room=ROOM)
    sent = message(writer, [huge, "sound"], order_of([0, 1]))
    raised, sound = AnswerReader(area=None).answers_of(memoryview(sent)).values
    assert isinstance(raised, RaisedError) and "has 4,294,967," in raised.summary
    assert sound == "sound"


SERVER = (
    "import sys, time\n"
    "from siirl.env_server.shared_area import SharedArea\n"
    "area = SharedArea.make(8192)\n"
    "area.write(64, memoryview(b'seen'))\n"
    "print(*area.handle[:3], area.handle.token.hex(), flush=True)\n"
    "time.sleep(3600)\n"
)
READER = (
    "import sys\n"
    "from siirl.env_server.shared_area import AreaHandle, SharedArea\n"
    "process, descriptor, size, token = sys.argv[1:]\n"
    "handle = AreaHandle(int(process), int(descriptor), int(size), bytes.fromhex(token))\n"
    "print(bytes(SharedArea.open(handle).content(64, 4)).decode(), flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def server_process() -> Iterator[tuple["subprocess.Popen[str]", AreaHandle]]:
    """A process that shares memory; the handle that it prints."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        process, descriptor, size, token = server.stdout.readline().split()
        try:
            yield server, AreaHandle(int(process), int(descriptor), int(size), bytes.fromhex(token))
        finally:
            server.kill()


@contextmanager
def reader_process(handle: AreaHandle) -> "Iterator[subprocess.Popen[str]]":
    """A process that opens the memory, prints what it finds and waits."""
    words = [*map(str, handle[:3]), handle.token.hex()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", READER, *words], **pipes) as reader:
        try:
            yield reader
        finally:
            reader.kill()


def mapped() -> int:
    """How often this process has mapped shared answers."""
    return Path("/proc/self/maps").read_text().count("siirl-answers")


def test_killed_processes_leave_no_memory_behind_and_harm_no_reader():
    """One reader is killed, the server is killed, and the other reader still has what it mapped."""
    named = set(os.listdir("/dev/shm"))
    with server_process() as (server, handle):
        area = SharedArea.open(handle)
        with reader_process(handle) as other:
            assert other.stdout is not None and other.stdout.readline() == "seen\n"
            other.send_signal(signal.SIGKILL)
        server.send_signal(signal.SIGKILL)
        server.wait()
        assert bytes(area.content(64, 4)) == b"seen"
        with pytest.raises(OSError):
            SharedArea.open(handle)
        area.close()
    assert mapped() == 0
    assert {name for name in set(os.listdir("/dev/shm")) - named if "siirl" in name} == set()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_open_the_memory():
    with server_process() as (_, handle):
        stranger = os.fork()  # of this process, because another user may not run this interpreter
        if stranger == 0:
            refused = 1
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                SharedArea.open(handle)
            except PermissionError:
                refused = 0
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]) == 0


def test_the_memory_is_the_owners_and_its_size_is_fixed():
    with shared_area() as (own, _):
        descriptor = own.handle.descriptor
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        for size in (0, 10 * ROOM):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)


def test_another_file_or_another_servers_memory_is_refused(tmp_path):
    """As if the process number belonged to another process, in another container."""
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    with shared_area(64) as (own, _), (tmp_path / "file").open("rb") as other:
        with pytest.raises(OSError):
            SharedArea.open(own.handle._replace(descriptor=other.fileno()))
        with pytest.raises(OSError, match="another server"):
            SharedArea.open(own.handle._replace(token=bytes(32)))
        with pytest.raises(OSError, match="that was announced"):
            SharedArea.open(own.handle._replace(size=128))


def test_memory_that_is_closed_twice_is_closed_once():
    with shared_area(64) as (own, seen):
        for area in (own, seen, own, seen):
            area.close()
        assert mapped() == 0


@given(st.lists(st.tuples(st.sampled_from([10, 20]), st.integers(0, 4)), max_size=30))
def test_memory_is_recycled_and_no_array_in_use_changes(takes):
    """Keeps up to five arrays, of which each new one replaces one."""
    memory, kept = RecycledMemory(), {}
    for number, (size, place) in enumerate(takes):
        view = np.frombuffer(memory.take(size), np.uint8)[1:]
        view[:] = number
        kept[place] = (number, view)
        del view
        assert all(set(each.tolist()) == {label} for label, each in kept.values())


def test_memory_is_used_again_as_soon_as_the_last_view_has_ended():
    memory = RecycledMemory()
    view = memory.take(100)[10:]
    address = view.ctypes.data - 10
    assert memory.take(100).ctypes.data != address
    del view
    taken = [memory.take(100) for _ in range(2)]
    assert address in [each.ctypes.data for each in taken]


def test_little_memory_is_kept():
    memory = RecycledMemory()
    for size in range(100, 110):
        taken = [memory.take(size) for _ in range(2 * NUM_KEPT)]
        del taken
    big = memory.take(MAX_SIZE + 1)
    assert big.shape == (MAX_SIZE + 1,)
    gc.collect()
    assert len(memory._free) <= NUM_SIZES
    assert max(map(len, memory._free.values())) <= NUM_KEPT
    assert aligned(100) == 128
