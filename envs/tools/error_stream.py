"""What a process writes to its standard error: taken away as it comes, so that the process never
waits, and only the end of it is kept.

A pipe holds 64 KiB on Linux, and who writes more waits until somebody reads. The event loop of
whoever hosts the process may stand still for long (it runs while somebody waits for an episode, and
not while a policy is trained), so a thread reads: one for all streams of this process, which ends
with the last of them.
"""

import os
import select
import threading

KEPT_BYTES = 2000  # the end of a traceback, with the exception; a run's last sentence quotes it
CHUNK_BYTES = (
    1 << 16
)  # what a pipe holds: one read takes everything that a process left when it ended


class ErrorStream:
    """A pipe for one process."""

    def __init__(self) -> None:
        self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.write_end = os.fdopen(write_end, "w")
        """For the process; close it as soon as that has its own."""
        self._kept = b""
        self._cut = self._closed = False
        self._lock = threading.Lock()
        _reader.add(self)

    def tail(self) -> str:
        """The last `KEPT_BYTES` of what was written so far; empty if nothing was. Also after
        `close`.
        """
        self.take()
        with self._lock:
            text = self._kept.decode(errors="replace").strip()
            return f"…{text}" if self._cut else text

    def close(self) -> None:
        """Take what is left and end; may be called twice."""
        self.take()
        _reader.remove(self)
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.read_end)
                self.write_end.close()

    def take(self) -> bool:
        """Read what is there, without waiting, and keep the end; whether more may come."""
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
            self._streams = {
                stream.read_end: stream
            }  # in a process that was forked there were its parent's, for the parent to read
            self._wake = os.pipe()
            self._thread = threading.Thread(
                target=self._read, name="standard errors of tools", daemon=True
            )
            self._thread.start()

    def remove(self, stream: ErrorStream) -> None:
        """Read it no longer; the descriptor is the caller's to close."""
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
        """Nobody writes to it any more, which `poll` would tell for ever."""
        with self._lock:
            if self._streams.get(stream.read_end) is stream:
                del self._streams[stream.read_end]


_reader = _Reader()
