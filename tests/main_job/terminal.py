"""A command in the foreground of a pseudo-terminal, on which a test presses Ctrl-C.

The kernel signals the whole foreground group, as for a user's key. A thread reads the screen.
"""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import threading
import time
from pathlib import Path
from subprocess import Popen

from real_run import hears_signals

from benchmarks.processes import processes_of_session

CTRL_C = b"\x03"
SCREEN = struct.pack("HHHH", 40, 80, 0, 0)


class Terminal:
    """A `python -m` command that owns a terminal of 80 columns."""

    def __init__(self, *words: str, folder: Path) -> None:
        self._keys, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, SCREEN)
        self.process = Popen(
            [sys.executable, "-m", *words],
            cwd=folder,
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            preexec_fn=_own_the_terminal,
        )
        os.close(end)
        self._screen = bytearray()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def text(self) -> str:
        """Everything that was printed."""
        return self._screen.decode(errors="replace").replace("\r\n", "\n")

    def wait_for(self, words: str, *, timeout_s: float) -> None:
        """Wait until `words` are on the screen, or the command has ended."""
        deadline = time.monotonic() + timeout_s
        while words not in self.text and self.process.poll() is None:
            assert time.monotonic() < deadline, f"no {words!r} within {timeout_s} s:\n{self.text}"
            time.sleep(0.02)

    def wait_until_it_listens(self, *, timeout_s: float) -> None:
        """Wait until the command handles signals; before, it is Python's start that is ended."""
        deadline = time.monotonic() + timeout_s
        while not hears_signals(self.process.pid):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)

    def press_ctrl_c(self) -> None:
        """Type it; nothing happens after the command's end."""
        os.write(self._keys, CTRL_C)

    def processes(self) -> dict[int, str]:
        """Title by number of the living processes of the command."""
        return processes_of_session(self.process.pid)

    def kill_all(self) -> None:
        """End every process of the command with force."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._keys)

    def _read(self) -> None:
        while True:
            try:
                self._screen += os.read(self._keys, 1 << 16)
            except OSError:  # the last process that had the terminal has ended
                return


def _own_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
