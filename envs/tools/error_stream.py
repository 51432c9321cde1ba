"""What a process writes to its standard error: taken away as it comes, so that the process never waits, and only the end of it is kept.

Read by the event loop, without a thread: one that hosts a hundred servers would have a hundred of them. While the loop stands still the
process may write what a pipe holds (64 KiB on Linux), and waits with more until the loop runs again.
"""

import asyncio
import os

KEPT_BYTES = 2000  # the end of a traceback, with the exception; a run's last sentence quotes it
CHUNK_BYTES = 1 << 16  # what a pipe holds: one read takes everything that a process left when it ended


class ErrorStream:
    """A pipe for one process, on the running event loop."""

    def __init__(self) -> None:
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.write_end = os.fdopen(write_end, "w")
        """For the process; close it as soon as that has its own."""
        self._kept = b""
        self._cut = self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._take)

    def tail(self) -> str:
        """The last `KEPT_BYTES` of what was written so far; empty if nothing was. Also after `close`."""
        if not self._closed:
            self._take()
        text = self._kept.decode(errors="replace").strip()
        return f"…{text}" if self._cut else text

    def close(self) -> None:
        """Take what is left and end; may be called twice."""
        if self._closed:
            return
        self._take()
        self._closed = True
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        self.write_end.close()

    def _take(self) -> None:
        try:
            new = os.read(self._read_end, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not new:  # nobody writes any more, which the loop would tell for ever
            self._loop.remove_reader(self._read_end)
        self._cut |= len(self._kept) + len(new) > KEPT_BYTES
        self._kept = (self._kept + new)[-KEPT_BYTES:]
