"""The connection between a pool and its servers, with real sockets: whole messages, accepted
peers, and the cleanup of a lost connection.
"""

import asyncio
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.env_server.connection import (
    BUFFER_BYTES,
    HEADER,
    Address,
    ClientEnd,
    ServerEnd,
    accept,
    listen,
)

SECRET, OTHER_SECRET = bytes(range(32)), bytes(32)
SIZES = (0, 1, 1000, BUFFER_BYTES - HEADER.size, BUFFER_BYTES, 3 * BUFFER_BYTES)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread and no socket stays after a test."""

    def open_now() -> tuple[int, int]:
        with os.scandir("/proc/self/fd") as files:
            return threading.active_count(), sum(
                os.readlink(file).startswith("socket:") for file in files
            )

    before = open_now()
    yield
    assert open_now() == before


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request) -> Iterator[Callable[..., object]]:
    """Runs a coroutine on Python's event loop, and on the one that Ray's workers prefer."""
    factory = (
        asyncio.new_event_loop
        if request.param == "asyncio"
        else pytest.importorskip("uvloop").new_event_loop
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner.run


@contextmanager
def echo_server(host: str = "127.0.0.1", **options: float) -> Iterator[tuple[Address, list[bytes]]]:
    """Address of an echo server in a thread, and the messages that it received."""
    listener, got = listen(host), []
    address = listener.getsockname()[:2]

    def serve() -> None:
        loop = asyncio.new_event_loop()
        with loop.run_until_complete(accept(listener, secret=SECRET, **options)) as end:
            for message in end.messages():
                got.append(message)
                end.send(message)
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield address, got
    thread.join()


@contextmanager
def fake_server(behave: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Another program at a server's address; `behave` gets the first connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                behave(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        thread.join()


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection, as sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


class Inbox:
    """A pool's end and what it received: messages as bytes, then the error of the lost connection."""

    def __init__(self) -> None:
        self._come: asyncio.Queue[bytes | ConnectionError] = asyncio.Queue()
        self.end = ClientEnd(
            on_message=lambda message: self._come.put_nowait(bytes(message)),
            on_lost=self._come.put_nowait,
        )

    async def next(self) -> bytes | ConnectionError:
        return await self._come.get()

    @property
    def is_empty(self) -> bool:
        return self._come.empty()


async def echoed(
    address: Address, messages: list[bytes], *, secret: bytes = SECRET
) -> list[bytes | ConnectionError]:
    """Answers to `messages`, sent all at once by a pool that then closes its side."""
    inbox = Inbox()
    await inbox.end.connect(address, secret=secret)
    for message in messages:
        inbox.end.send(message)
    inbox.end.finish()
    come = [await inbox.next()]
    while isinstance(come[-1], bytes):
        come.append(await inbox.next())
    return come


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_messages_of_any_size_come_whole_and_in_order_and_then_the_end(run, host):
    messages = [bytes([index]) * size for index, size in enumerate(SIZES)]
    with echo_server(host) as (address, got):
        *come, end = run(echoed(address, messages))
    assert come == got == messages
    assert isinstance(end, ConnectionError) and "closed by its process" in str(end)


@given(
    st.lists(st.sampled_from(SIZES), max_size=4),
    st.lists(st.integers(0, 10 * BUFFER_BYTES), max_size=8),
)
def test_messages_do_not_depend_on_how_the_stream_was_cut(sizes, cuts):
    messages = [bytes([index]) * size for index, size in enumerate(sizes)]
    stream = b"".join(HEADER.pack(len(message)) + message for message in messages)
    got: list[bytes] = []
    end = ClientEnd(
        on_message=lambda message: got.append(bytes(message)), on_lost=lambda error: None
    )
    for begin, stop in pairwise(
        sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    ):
        while begin < stop:
            buffer = end.get_buffer(-1)
            size = min(len(buffer), stop - begin)
            buffer[:size] = stream[begin : begin + size]
            end.buffer_updated(size)
            begin += size
    assert got == messages


def test_a_wrong_secret_is_refused_by_both_sides_and_the_right_one_still_gets_in(run):
    with echo_server() as (address, got):
        with pytest.raises(ConnectionError, match=r"does not know the secret|instead of showing"):
            run(echoed(address, [b"stolen"], secret=OTHER_SECRET))
        assert run(echoed(address, [b"hello"]))[0] == b"hello"
    assert got == [b"hello"]


def test_peers_that_stay_silent_or_leave_delay_no_one(run):
    with (
        echo_server() as (address, _),
        socket.create_connection(address),
        socket.create_connection(address) as leaves,
    ):
        leaves.close()
        assert run(echoed(address, [b"hello"]))[0] == b"hello"


def test_a_silent_peer_is_disconnected_after_the_deadline(run):
    with echo_server(deadline_s=3.0) as (address, _):
        with socket.create_connection(address) as stranger:
            assert len(stranger.recv(1000)) == 32  # the server's number
            assert stranger.recv(1000) == b""
        assert run(echoed(address, [b"hello"]))[0] == b"hello"


def test_a_closed_pool_accepts_no_connection(run):
    async def second(address: Address) -> None:
        inbox = Inbox()
        await inbox.end.connect(address, secret=SECRET)
        inbox.end.send(b"hello")
        await inbox.next()
        with pytest.raises(ConnectionRefusedError):
            await Inbox().end.connect(address, secret=SECRET)
        inbox.end.finish()
        await inbox.next()

    with echo_server() as (address, _):
        run(second(address))


def test_a_peer_that_echoes_the_pool_is_not_a_server(run):
    def mirror(peer: socket.socket) -> None:
        while said := peer.recv(1000):
            peer.sendall(said)

    with (
        fake_server(mirror) as address,
        pytest.raises(ConnectionError, match="does not know the secret"),
    ):
        run(Inbox().end.connect(address, secret=SECRET))


def test_a_pools_proof_for_one_server_opens_no_other(run):
    recorded = b""

    def relay(pool: socket.socket) -> None:
        nonlocal recorded
        with socket.create_connection(address) as server:
            for _ in range(2):  # the numbers, then the proofs
                recorded += (said := pool.recv(32, socket.MSG_WAITALL))
                server.sendall(said)
                pool.sendall(server.recv(32, socket.MSG_WAITALL))
            pool.recv(1)

    async def introduce() -> None:
        inbox = Inbox()
        await inbox.end.connect(fake, secret=SECRET)
        inbox.end.finish()
        await inbox.next()

    with echo_server() as (address, _), fake_server(relay) as fake:
        run(introduce())
    assert len(recorded) == 64
    with echo_server() as (address, got):
        with socket.create_connection(address) as thief:
            thief.sendall(recorded + HEADER.pack(5) + b"hello")
            with suppress(ConnectionResetError):  # unread bytes make the kernel reset it
                while thief.recv(1000):
                    pass
        run(echoed(address, [b"goodbye"]))
    assert got == [b"goodbye"]


def test_an_address_without_an_answer_is_an_error(run):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with pytest.raises(ConnectionError, match=r"no answer within 0\.05 s"):
            run(Inbox().end.connect(address, secret=SECRET, deadline_s=0.05))
    with pytest.raises(ConnectionRefusedError):
        run(Inbox().end.connect(address, secret=SECRET))


FILLED = 1 << 16
"""Bytes that the system holds for a reader who does not read: less than its buffers take."""


def unread_bytes(port: int) -> int:
    """Bytes that wait in this machine's connection to `port`, as Linux counts them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    queues = [line[4] for line in lines if int(line[2].partition(":")[2], 16) == port]
    return max((int(queue.partition(":")[2], 16) for queue in queues), default=0)


def test_a_server_that_dies_within_a_message_blocks_no_one_and_is_reported(run):
    """It sends more than the system's buffers take while the pool does not read, so that it is
    stopped in the middle.
    """
    program = (
        "import asyncio\n"
        "from siirl.env_server.connection import accept, listen\n"
        "listener = listen('127.0.0.1')\n"
        "print(listener.getsockname()[1], flush=True)\n"
        f"with asyncio.new_event_loop().run_until_complete(accept(listener, secret={SECRET!r})) as "
        "end:\n"
        "    print('sends', flush=True)\n"
        "    end.send(bytes(1 << 26))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = ("127.0.0.1", int(server.stdout.readline()))

        async def receive() -> ConnectionError | bytes:
            inbox = Inbox()
            await inbox.end.connect(address, secret=SECRET)
            assert server.stdout is not None and server.stdout.readline() == "sends\n"
            while unread_bytes(address[1]) < FILLED:  # the event loop does not run meanwhile
                time.sleep(0.01)
            server.send_signal(signal.SIGSTOP)
            for _ in range(20):  # iterations of the loop, which read what was sent
                await asyncio.sleep(0.01)
            assert inbox.is_empty
            server.send_signal(signal.SIGKILL)
            return await inbox.next()

        assert "closed in the middle of an answer" in str(run(receive()))


def test_an_aborted_end_reports_the_cause_and_sends_nothing_more(run):
    async def aborted(address: Address) -> ConnectionError | bytes:
        inbox = Inbox()
        await inbox.end.connect(address, secret=SECRET)
        inbox.end.abort(ConnectionError("the answer was garbage"))
        inbox.end.send(b"hello")
        inbox.end.finish()
        inbox.end.abort()
        return await inbox.next()

    with echo_server() as (address, got):
        error = run(aborted(address))
    assert str(error) == "the answer was garbage"
    assert got == []


def test_an_incomplete_request_is_dropped():
    pool, server = connected_pair()
    with ServerEnd(server) as end:
        pool.sendall(HEADER.pack(2) + b"ab" + HEADER.pack(10) + b"abc")
        pool.close()
        assert list(end.messages()) == [b"ab"]


def test_answering_a_pool_that_is_gone_ends_the_messages():
    pool, server = connected_pair()
    with ServerEnd(server) as end:
        # close by a reset, as a crash does
        pool.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pool.close()
        end.send(bytes(1 << 24))
        assert list(end.messages()) == []


def test_a_server_that_ends_while_a_thread_waits_for_a_request_does_not_wait_for_it():
    pool, server = connected_pair()
    received: list[bytes] = []
    rescue = threading.Timer(30.0, pool.shutdown, [socket.SHUT_RDWR])
    rescue.start()
    with ServerEnd(server) as end:
        waiting = threading.Thread(target=lambda: received.extend(end.messages()))
        waiting.start()
        pool.sendall(HEADER.pack(8) + b"half")
        while unread_by(server):  # until the thread waits in the middle of a message
            time.sleep(0.001)
    in_time = rescue.is_alive()
    for thread in (rescue, waiting):
        rescue.cancel()
        thread.join()
    pool.close()
    assert in_time and received == []


def unread_by(connected: socket.socket) -> int:
    return struct.unpack("i", fcntl.ioctl(connected, termios.FIONREAD, bytes(4)))[0]
