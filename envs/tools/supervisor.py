"""Supervisor of one server process: starts it, and ends with it every process that it started, also
those that left its session.

    python -I -S supervisor.py COMMAND [ARGUMENT ...]

A process that calls `setsid` after a double fork is no member of the server's process group any
more, so a signal to the group misses it. The supervisor is the child subreaper (prctl(2)) of its
descendants: an orphan among them becomes its child. It ends the server at SIGTERM and when its own
parent dies, and ends itself when the server has ended and nothing is left.

This file runs by itself, without the packages beside it. Left out: a server that kills its
supervisor; the sandbox holds programs that are not to be trusted.
"""

import ctypes
import os
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
GRACE_S = (
    1.0  # from SIGTERM to SIGKILL; the client waits for two seconds, and kills the supervisor then
)
LOOK_EVERY_S = 0.01  # for processes that end when they are killed
COMMAND_NOT_FOUND = 127  # as a shell says it


def main(command: list[str]) -> int:
    """Run `command` to its end, end what it left, and return its exit status."""
    kernel = ctypes.CDLL(None)
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    kernel.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGALRM, lambda *_: _signal_children(signal.SIGKILL))
    signal.signal(signal.SIGTERM, _end_with_grace)
    try:  # in a group of its own: a server that kills its group leaves us to tidy up
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
    """Close our ends of the server's standard input and output, or its client would not see the
    server close them.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)


def _status_of(server: int) -> int:
    """Wait for the server, and collect orphans meanwhile."""
    ended, status = os.wait()
    while ended != server:
        ended, status = os.wait()
    return os.waitstatus_to_exitcode(status)


def _end_descendants() -> None:
    """Kill children until none is left: the orphans of those that were killed are children in the
    next round.
    """
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
        os.kill(int(child), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) & 0xFF)
