"""Direct connection between a pool and one of its servers: messages over TCP, also between
machines.

A message has eight bytes with its length, followed by the content, which this module does not
interpret. The server's end blocks its thread until the next message, because it has no other work.
The pool's end runs in an event loop and never blocks, even if the other side writes slowly or
incompletely. The end of the stream tells a server to close; a dying pool also ends the stream.

Callers unpickle the messages, which can execute arbitrary code. Before any message is read, each
side therefore proves that it knows a secret (32 random bytes, received on another channel). Both
send a random number and answer the other's with an HMAC-SHA256 (RFC 2104) over both numbers and
their role, which prevents replay and reflection. A peer that fails is disconnected. A server
listens only until its pool has connected.

Left out: encryption. An attacker who can read or change the traffic between the machines can read
and change messages.
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
NUMBER_BYTES = PROOF_BYTES = SECRET_BYTES = 32  # as in SHA-256
HANDSHAKE_DEADLINE_S = 60.0  # takes milliseconds, unless the machine is overloaded
# six observations of 64 x 64 pixels are 74 kB; the buffer grows for a longer message
BUFFER_BYTES = 1 << 18
# a buffer that has grown to at most this size is kept: observations arrive all the time, videos
# once per episode
KEPT_BYTES = 1 << 24
# A video of 300 frames of 1024 x 1024 pixels has 0.9 GB. A longer message is refused, so that a
# corrupt length does not exhaust the memory.
MAX_MESSAGE_BYTES = 1 << 32
# some firewalls drop a connection that is idle for minutes, and a policy update may take longer
KEEP_ALIVE_S = 60

Address = tuple[str, int]


def listen(host: str) -> socket.socket:
    """A socket that listens at `host`, an address of this machine, and a free port."""
    listener = socket.create_server((host, 0), family=_family(host))
    listener.setblocking(False)
    return listener


async def accept(
    listener: socket.socket, *, secret: bytes, deadline_s: float = HANDSHAKE_DEADLINE_S
) -> "ServerEnd":
    """Wait for the first peer that knows `secret`, and close `listener`.

    Other peers cause no delay, even if they send nothing.
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
    """The server's end of a connection; it blocks the calling thread."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        _tune(connected)
        self._socket = connected
        self._stream = connected.makefile("rb")

    def messages(self) -> Iterator[bytes]:
        """Messages until the other side ends the stream or is lost; drops an incomplete message."""
        while (header := self._read(HEADER.size)) is not None:
            (size,) = HEADER.unpack(header)
            message = self._read(size) if size <= MAX_MESSAGE_BYTES else None
            if message is None:
                return
            yield message

    def send(self, message: bytes, *rest: bytes | memoryview) -> None:
        """Send a message; `rest` continues its content. After the connection is lost, do nothing
        (`messages` ends).
        """
        size = len(message) + sum(len(part) for part in rest)
        with suppress(OSError):
            self._socket.sendall(HEADER.pack(size) + message)
            for part in rest:
                self._socket.sendall(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # the other side is gone
            # otherwise `close` would wait for a thread that waits in `messages`
            self._socket.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        # OSError: reset, or timed out by the system; ValueError: closed between two reads
        with suppress(OSError, ValueError):
            part = self._stream.read(size)
            return part if len(part) == size else None
        return None


class ClientEnd(asyncio.BufferedProtocol):
    """The pool's end of a connection, for one event loop.

    `on_message` is called with each complete message, in order; its memory is reused after the
    call. `on_lost` is called once, when the connection has ended or was lost.
    """

    def __init__(
        self,
        *,
        on_message: Callable[[memoryview], None],
        on_lost: Callable[[ConnectionError], None],
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._buffer = bytearray(BUFFER_BYTES)
        self._filled = 0
        self._transport: asyncio.Transport | None = None
        self._because: ConnectionError | None = None

    async def connect(
        self, address: Address, *, secret: bytes, deadline_s: float = HANDSHAKE_DEADLINE_S
    ) -> None:
        """Connect to the server that listens at `address`.

        Raises:
            OSError: No answer within `deadline_s`, or the peer does not know the secret.
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
        """Send a message, buffered if necessary; drop it if the connection is lost.

        Raises:
            ValueError: The message is longer than `MAX_MESSAGE_BYTES`.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"A message has {len(message):,} bytes; at most {MAX_MESSAGE_BYTES:,} are sent."
            )
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(HEADER.pack(len(message)) + message)

    def finish(self) -> None:
        """End the outgoing stream; answers still arrive."""
        if self._transport is not None:
            with suppress(OSError):  # lost; `on_lost` follows
                self._transport.write_eof()

    def abort(self, because: ConnectionError | None = None) -> None:
        """End the connection; the event loop then calls `on_lost`, with `because` if given."""
        if self._transport is not None:
            self._because = self._because or because
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`: the free part of the buffer."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`: pass on complete messages."""
        self._filled += nbytes
        begin = 0
        with memoryview(self._buffer) as received:
            while (end := self._end_of_message(begin)) <= self._filled:
                with received[begin + HEADER.size : end] as message:
                    self._on_message(message)
                begin = end
        if end - begin > HEADER.size + MAX_MESSAGE_BYTES:
            self.abort(ConnectionError(f"it announced a message of {end - begin:,} bytes"))
            return
        self._keep_from(begin, room=end - begin)

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`: False closes this end too."""
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
        """End of the message that begins at `begin`, or of its header if that is incomplete."""
        end = begin + HEADER.size
        return end if self._filled < end else end + int(HEADER.unpack_from(self._buffer, begin)[0])

    def _keep_from(self, begin: int, *, room: int) -> None:
        """Move the rest of the buffer to its front, and make room for a message of `room` bytes."""
        rest = self._buffer[begin : self._filled]
        if len(self._buffer) < room or len(self._buffer) > max(KEPT_BYTES, room):
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
    except OSError:  # wrong secret, disconnected, or timed out
        peer.close()
        return
    if not admitted.done():
        admitted.set_result(peer)


async def _prove(peer: socket.socket, *, secret: bytes, own_part: bytes, other_part: bytes) -> None:
    """Prove to `peer` that this side knows the secret, and verify the peer's proof.

    Raises:
        OSError: The peer does not know the secret (`ConnectionError`), or disconnected.
    """
    loop = asyncio.get_running_loop()
    own = secrets.token_bytes(NUMBER_BYTES)
    await loop.sock_sendall(peer, own)
    other = await _receive(peer, NUMBER_BYTES)
    await loop.sock_sendall(peer, _proof(secret, own_part, own, other))
    proof = await _receive(peer, PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, other_part, other, own)):
        raise ConnectionError("the peer does not know the secret")


def _proof(secret: bytes, part: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.digest(secret, part + own + other, "sha256")


async def _receive(peer: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = await asyncio.get_running_loop().sock_recv(peer, size - len(received))
        if not more:
            raise ConnectionError(
                "the peer closed the connection instead of showing that it knows the secret"
            )
        received += more
    return received


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _tune(connected: socket.socket) -> None:
    # messages are sent whole, so that Nagle's algorithm would only delay them
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_S)
