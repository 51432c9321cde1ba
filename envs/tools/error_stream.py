"""Drains a process's standard error, so that the process never blocks, and keeps the last lines.

A pipe holds 64 KiB on Linux; a process that writes more blocks until a reader empties it. The
host's event loop runs only while episodes are awaited, not while a policy trains. So one thread
reads all streams of this process; it ends with the last stream.
"""

import os
import select
import threading

KEPT_BYTES = 2000  # the end of a traceback with the exception, which a run's last message quotes
CHUNK_BYTES = 1 << 16  # a pipe's capacity; one read takes all that an ended process left


class ErrorStream:
    """The standard error of one process."""

    def __init__(self) -> None:
        self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.write_end = os.fdopen(write_end, "w")
        """Write end for the process; close it once the process has inherited it."""
        self._kept = b""
        self._cut = self._closed = False
        self._lock = threading.Lock()
        _reader.add(self)

    def tail(self) -> str:
        """Return the last `KEPT_BYTES` written so far; also works after `close`."""
        self.take()
        with self._lock:
            text = self._kept.decode(errors="replace").strip()
            return f"…{text}" if self._cut else text

    def close(self) -> None:
        """Read the rest and close; a second call does nothing."""
        self.take()
        _reader.remove(self)
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.read_end)
                self.write_end.close()

    def take(self) -> bool:
        """Read without blocking and keep the end; returns whether more may come."""
        with self._lock:
            if self._closed:
                return False
            try:
                new = os.read(self.read_end, CHUNK_BYTES)
            except BlockingIOError:
                return True
            self._cut |= len(self._kept) + len(new) > KEPT_BYTES
            self._kept = (self._kept + new)[-KEPT_BYTES:]
            return bool(new)


class _Reader:
    """The thread that reads all open streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[int, ErrorStream] = {}
        self._thread: threading.Thread | None = None
        self._wake: tuple[int, int]

    def add(self, stream: ErrorStream) -> None:
        """Read `stream` from now on."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                self._streams[stream.read_end] = stream
                os.write(self._wake[1], b".")
                return
            # a forked process inherits its parent's streams, which the parent reads
            self._streams = {stream.read_end: stream}
            self._wake = os.pipe()
            self._thread = threading.Thread(
                target=self._read, name="standard errors of tools", daemon=True
            )
            self._thread.start()

    def remove(self, stream: ErrorStream) -> None:
        """Stop reading `stream`; the caller closes the descriptor."""
        with self._lock:
            if self._streams.get(stream.read_end) is stream:
                del self._streams[stream.read_end]
                os.write(self._wake[1], b".")

    def _read(self) -> None:
        while True:
            with self._lock:
                if not self._streams:
                    self._thread = None
                    for end in self._wake:
                        os.close(end)
                    return
                poll, wake = select.poll(), self._wake[0]
                for descriptor in (wake, *self._streams):
                    poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor == wake:
                    os.read(wake, CHUNK_BYTES)
                elif (stream := self._streams.get(descriptor)) is not None and not stream.take():
                    self._forget(stream)

    def _forget(self, stream: ErrorStream) -> None:
        """Stops polling a stream without writers, which `poll` would report forever."""
        with self._lock:
            if self._streams.get(stream.read_end) is stream:
                del self._streams[stream.read_end]


_reader = _Reader()
