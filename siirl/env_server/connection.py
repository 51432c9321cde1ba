"""A direct connection between a pool and one of its servers: whole messages over TCP, from process
to process, also between nodes.

A message is eight bytes that say how long it is, and then itself; what it means is for the two
ends. The server's end waits for the next one in its thread, because it has nothing else to do; the
pool's end lives in an event loop and never waits, however slowly or incompletely the other side
writes. The end of the stream is the order to close: a pool that died gives it too.

Messages are unpickled by those who use this, which runs whatever a message says. So each side first
proves that it knows a secret (32 random bytes, which reached it by another way), before a byte of a
message is read: both send a random number and answer the other's with an HMAC-SHA256 (RFC 2104)
over both numbers and their own part in this, so that nothing can be recorded and sent again, or
sent back. Who fails is sent away. A server listens until its pool is there, and to nobody
afterwards.

Left out: encryption. Who can read or change the traffic between the machines can read and change
this.
"""

import asyncio
import hmac
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self, cast

HEADER = struct.Struct(">Q")
NUMBER_BYTES = PROOF_BYTES = SECRET_BYTES = 32  # of SHA-256
HANDSHAKE_DEADLINE_S = 60.0  # milliseconds, unless the machine is short of everything
BUFFER_BYTES = (
    1 << 18
    # six observations of 64 x 64 pixels are 74 kB; longer messages get a longer buffer for themselves
)
# some firewalls forget a connection that was silent for minutes, and a policy's update may take
# longer
KEEP_ALIVE_S = 60

Address = tuple[str, int]


def listen(host: str) -> socket.socket:
    """A socket that listens at `host`, an address of this machine, and a free port that the system
    chooses.
    """
    listener = socket.create_server((host, 0), family=_family(host))
    listener.setblocking(False)
    return listener


async def accept(
    listener: socket.socket, *, secret: bytes, deadline_s: float = HANDSHAKE_DEADLINE_S
) -> "ServerEnd":
    """Wait for the first peer that knows `secret`, and close `listener`. Strangers keep nobody
    waiting, also if they say nothing.
    """
    loop = asyncio.get_running_loop()
    admitted: asyncio.Future[socket.socket] = loop.create_future()
    peers: dict[socket.socket, asyncio.Task[None]] = {}
    with listener:
        while not admitted.done():
            arrival: asyncio.Future[Any] = asyncio.ensure_future(loop.sock_accept(listener))
            await asyncio.wait((arrival, admitted), return_when=asyncio.FIRST_COMPLETED)
            if arrival.done():
                peer, _ = arrival.result()
                peers[peer] = loop.create_task(
                    _admit(peer, secret=secret, admitted=admitted, deadline_s=deadline_s)
                )
        for waiting in (arrival, *peers.values()):
            waiting.cancel()
        await asyncio.gather(arrival, *peers.values(), return_exceptions=True)
    for stranger in peers.keys() - {admitted.result()}:
        stranger.close()
    return ServerEnd(admitted.result())


class ServerEnd:
    """The server's end of a connection. It waits in the thread that calls it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        _tune(connected)
        self._socket, self._stream = connected, connected.makefile("rb")

    def messages(self) -> Iterator[bytes]:
        """Messages as they come, until the other side says that there are no more, or is gone; a
        part of a message is none.
        """
        while (header := self._read(HEADER.size)) is not None:
            message = self._read(*HEADER.unpack(header))
            if message is None:
                return
            yield message

    def send(self, message: bytes) -> None:
        """Send a message; if nobody is there any more, `messages` ends."""
        with suppress(OSError):
            self._socket.sendall(HEADER.pack(len(message)) + message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        with suppress(OSError):  # reset, or silent for so long that the system gave it up
            part = self._stream.read(size)
            return part if len(part) == size else None
        return None


class ClientEnd(asyncio.BufferedProtocol):
    """The pool's end of a connection, for one event loop.

    `on_message` is called with each message, whole and in order; its memory is used again after the
    call. `on_lost` is called once, when the connection has ended or was lost.
    """

    def __init__(
        self,
        *,
        on_message: Callable[[memoryview], None],
        on_lost: Callable[[ConnectionError], None],
    ) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._buffer, self._filled = bytearray(BUFFER_BYTES), 0
        self._transport: asyncio.Transport | None = None
        self._because: ConnectionError | None = None

    async def connect(
        self, address: Address, *, secret: bytes, deadline_s: float = HANDSHAKE_DEADLINE_S
    ) -> None:
        """Connect to the server that listens at `address`.

        Raises:
            OSError: Nobody is there or answers within `deadline_s`, or whoever is there does not
                know the secret.
        """
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            connected = stack.enter_context(socket.socket(_family(address[0])))
            connected.setblocking(False)
            try:
                async with asyncio.timeout(deadline_s):
                    await loop.sock_connect(connected, address)
                    await _prove(connected, secret=secret, own_part=b"pool", other_part=b"server")
            except TimeoutError as error:
                raise ConnectionError(f"no answer within {deadline_s:g} s") from error
            _tune(connected)
            await loop.create_connection(lambda: self, sock=connected)
            stack.pop_all()  # the event loop closes it from here on

    def send(self, message: bytes) -> None:
        """Send a message, at once or when the other side takes it; into a lost connection, never."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(HEADER.pack(len(message)) + message)

    def finish(self) -> None:
        """Say that there are no more messages; answers still come."""
        if self._transport is not None:
            with suppress(OSError):  # lost, which `on_lost` is about to tell
                self._transport.write_eof()

    def abort(self, because: ConnectionError | None = None) -> None:
        """End the connection; `on_lost` is called in the next turn of the event loop, with the
        reason if one is given.
        """
        if self._transport is not None:
            self._because = self._because or because
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no child of that class

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`: where to put what comes next."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`: hand on the messages that are complete now."""
        self._filled += nbytes
        begin = 0
        with memoryview(self._buffer) as received:
            while (end := self._end_of_message(begin)) <= self._filled:
                with received[begin + HEADER.size : end] as message:
                    self._on_message(message)
                begin = end
        self._keep_from(begin, room=end - begin)

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`: the server has ended, so does this end."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = None
        place = "in the middle of an answer" if self._filled else "by its process"
        lost = ConnectionError(
            f"the connection to it was closed {place}"
            if error is None
            else f"the connection to it was lost: {error}"
        )
        self._on_lost(self._because or lost)

    def _end_of_message(self, begin: int) -> int:
        """Where the message that begins at `begin` ends, as far as is known."""
        end = begin + HEADER.size
        return end if self._filled < end else end + int(HEADER.unpack_from(self._buffer, begin)[0])

    def _keep_from(self, begin: int, *, room: int) -> None:
        """Move the rest of the buffer to its front and see that a message of `room` bytes fits."""
        rest = self._buffer[begin : self._filled]
        if len(self._buffer) != max(BUFFER_BYTES, room):
            self._buffer = bytearray(max(BUFFER_BYTES, room))
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)


async def _admit(
    peer: socket.socket,
    *,
    secret: bytes,
    admitted: "asyncio.Future[socket.socket]",
    deadline_s: float,
) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            await _prove(peer, secret=secret, own_part=b"server", other_part=b"pool")
    except OSError:  # a stranger, or gone again, or silent for too long
        peer.close()
        return
    if not admitted.done():
        admitted.set_result(peer)


async def _prove(peer: socket.socket, *, secret: bytes, own_part: bytes, other_part: bytes) -> None:
    """Show `peer` that this side knows the secret, and have it show the same.

    Raises:
        OSError: It does not know the secret (`ConnectionError`), or is gone.
    """
    loop = asyncio.get_running_loop()
    own = secrets.token_bytes(NUMBER_BYTES)
    await loop.sock_sendall(peer, own)
    other = await _receive(peer, NUMBER_BYTES)
    await loop.sock_sendall(peer, _proof(secret, own_part, own, other))
    if not hmac.compare_digest(
        await _receive(peer, PROOF_BYTES), _proof(secret, other_part, other, own)
    ):
        raise ConnectionError("whoever is there does not know the secret")


def _proof(secret: bytes, part: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.digest(secret, part + own + other, "sha256")


async def _receive(peer: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = await asyncio.get_running_loop().sock_recv(peer, size - len(received))
        if not more:
            raise ConnectionError(
                "it closed the connection instead of showing that it knows the secret"
            )
        received += more
    return received


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _tune(connected: socket.socket) -> None:
    connected.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # a message is sent whole: there is nothing to wait for
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_S)
