"""Supervisor of one server process; ends all its descendants with it, in any session.

    python -I -S supervisor.py COMMAND [ARGUMENT ...]

A process that calls `setsid` after a double fork leaves the server's process group, so a signal to
the group misses it. The supervisor is the child subreaper (prctl(2)) of its descendants, so an
orphan among them becomes its child. It ends the server at SIGTERM and when its own parent dies, and
exits when the server and all descendants have ended.

This file runs alone, without the packages next to it. Left out: a server that kills its supervisor;
untrusted programs belong in the sandbox.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
GRACE_S = 1.0  # from SIGTERM to SIGKILL; the client waits two seconds, then kills the supervisor
LOOK_EVERY_S = 0.01  # interval of checks for killed processes
COMMAND_NOT_FOUND = 127  # a shell's exit status


def main(command: list[str]) -> int:
    """Run `command` to its end, kill its descendants, and return its exit status."""
    kernel = ctypes.CDLL(None)
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    kernel.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGALRM, lambda *_: _signal_children(signal.SIGKILL))
    signal.signal(signal.SIGTERM, _end_with_grace)
    try:  # in its own group, so that a server that kills its group spares the supervisor
        server = os.posix_spawnp(
            command[0], command, os.environ, setpgroup=0, setsigdef=(signal.SIGPIPE,)
        )
    except OSError as error:
        print(error, file=sys.stderr)
        return COMMAND_NOT_FOUND
    _leave_streams()
    status = _status_of(server)
    _end_descendants()
    return status


def _end_with_grace(*_: Any) -> None:
    signal.setitimer(signal.ITIMER_REAL, GRACE_S)
    _signal_children(signal.SIGTERM)


def _leave_streams() -> None:
    """Closes our copies of the server's streams, so that its client sees their end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)


def _status_of(server: int) -> int:
    """Waits for the server, and reaps orphans meanwhile."""
    ended, status = os.wait()
    while ended != server:
        ended, status = os.wait()
    return os.waitstatus_to_exitcode(status)


def _end_descendants() -> None:
    """Kills children until none remain: orphans of killed ones are children in the next round."""
    while True:
        _signal_children(signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended == 0:
            time.sleep(LOOK_EVERY_S)


def _signal_children(number: int) -> None:
    with open(f"/proc/self/task/{os.getpid()}/children") as listed:
        children = listed.read().split()
    for child in children:
        with suppress(PermissionError):  # another user's, such as one of sudo
            os.kill(int(child), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) & 0xFF)
