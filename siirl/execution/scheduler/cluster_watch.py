"""Two threads that end the command if its Ray is lost and nothing else would end it.

`ClusterWatch`: Ray has died and the main thread is stuck in Ray's C++. Calls to Ray (placing or
ending an actor) wait for a dead GCS until Ray's C++ ends the process after a minute, without a
message. Left out: the usual case, in which the main thread detects it and raises
(`siirl.execution.scheduler.vitals`).

`StoppedWatch`: a process of the command's own Ray is stopped (SIGSTOP) and not continued. A stopped
process keeps its ports open, so `vitals` does not detect it. Ray 2.60 declares a stopped raylet
dead after a minute, but waits for it without limit when the command shuts Ray down. The operating
system reports the stop at once (state T in /proc). Left out: environment servers, which only get a
warning, because their pool replaces them (`env.deadline_s`); processes stopped by a debugger (state
t), which continues them; clusters that this command has not started.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import psutil

from siirl.errors import RunFailed
from siirl.execution.scheduler.placement import GCS_PATIENCE_S
from siirl.execution.scheduler.vitals import EVERY_S, Vitals
from siirl.interrupts import end_at_once

logger = logging.getLogger(__name__)

FAILED = 1
MAIN_THREAD_S = 10.0  # time for the main thread to raise an error and end its actors
# counts checks, not time: a command that was itself stopped has missed no answer
SILENT_LOOKS = round(GCS_PATIENCE_S / EVERY_S)
LAST_ANSWER_S = 10.0  # of the GCS at the end; it takes milliseconds, on a busy machine a second
LOOK_EVERY_S = 2.0  # each check reads all of /proc, which takes 10 ms
WARN_AFTER_S = 4.0  # two checks: a process that is continued at once needs no warning
# Half of the time that Ray's GCS allows a raylet (health_check_* of Ray 2.60; measured: 62 s).
# After that time, continuing the raylet does not help.
END_AFTER_S = 30.0
NEEDED = {
    "raylet/raylet ": "Ray's raylet on this machine",
    "gcs/gcs_server ": "Ray's GCS",
    "ray::_Rank": "A rank's process",
    "ray::CoordinatorActor": "The data coordinator's process",
}
REPLACED = {"ray::EnvServerActor": "An environment server"}
"""Process names for messages, by a part of the command line: processes that a run needs, and
processes that it replaces.
"""


class ClusterWatch:
    """A thread that checks a cluster as long as the command is connected.

    Args:
        vitals: Checks of the cluster, used by this thread only.
        node_lives: Whether the cluster still counts this machine as a member.
        end: Ends the command with an exit status and a message.
    """

    def __init__(
        self,
        vitals: Vitals,
        *,
        node_lives: Callable[[], bool],
        end: Callable[[int, str], object] = end_at_once,
    ) -> None:
        self._vitals = vitals
        self._node_lives = node_lives
        self._end = end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="siirl-cluster-watch", daemon=True)
        self._asks = threading.Thread(
            target=self._ask, name="siirl-cluster-watch-asks", daemon=True
        )  # may wait forever for a silent GCS
        self._looks_without_answer, self._answer = 0, True

    def __enter__(self) -> None:
        self._asks.start()
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._asks.join(LAST_ANSWER_S)  # a call after `ray.shutdown` would start another Ray

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            found = self._what_is_lost()
            if found is not None:
                if not self._over.wait(MAIN_THREAD_S):
                    self._end(FAILED, f"the run failed: {found}")
                return

    def _what_is_lost(self) -> str | None:
        try:
            self._vitals.check()
        except RunFailed as error:
            return str(error)
        if not self._vitals.all_answer:
            # It also refuses connections, for which `Vitals` has a separate limit.
            self._looks_without_answer = 0
        elif self._asks.is_alive():
            self._looks_without_answer += 1
        if self._looks_without_answer > SILENT_LOOKS:
            return "Ray's GCS accepts connections but does not answer."
        if not self._answer:
            return (
                "Ray's GCS counts this machine as dead, because its raylet has stopped sending "
                "heartbeats: it was stopped, or the machine is overloaded."
            )
        return None

    def _ask(self) -> None:
        while not self._over.wait(EVERY_S):
            if self._vitals.all_answer:
                self._answer = self._node_lives()
                self._looks_without_answer = 0


class RayProcess(NamedTuple):
    """A process of the command's own Ray."""

    pid: int
    title: str
    """Its command line."""


def stopped_processes() -> list[RayProcess]:
    """Currently stopped processes of Ray below this one.

    These are children of this process, and the raylet's children. Programs started by ranks and
    servers are further down, and may stop at any time.
    """
    mine = os.getpid()
    parents = {mine}
    found = []
    for process in psutil.Process().children(recursive=True):  # parents come before their children
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if process.ppid() == mine:
                parents.add(process.pid)
            if process.ppid() in parents and process.status() == psutil.STATUS_STOPPED:
                found.append(RayProcess(process.pid, " ".join([*process.cmdline(), ""])))
    return found


class StoppedWatch:
    """A thread that checks the command's own Ray from before its start until after its end.

    Time is counted in checks. Stopping a command together with its processes (Ctrl-Z), or
    suspending the laptop, therefore does not end the run.

    Args:
        look: Returns the stopped processes.
        end: Ends the command with an exit status and a message.
        every_s: Seconds between two checks.
        end_after_s: Seconds that a process may be stopped.
    """

    def __init__(
        self,
        *,
        look: Callable[[], Iterable[RayProcess]] = stopped_processes,
        end: Callable[[int, str], object] = end_at_once,
        every_s: float = LOOK_EVERY_S,
        end_after_s: float = END_AFTER_S,
    ) -> None:
        self._look = look
        self._end = end
        self._every_s = every_s
        self._end_after_s = end_after_s
        self._stopped_s: dict[int, float] = {}
        self._warned: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="siirl-stopped-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            sentence = self.check()
            if sentence is not None and not self._over.is_set():
                self._end(FAILED, f"the run failed: {sentence}")
                return

    def check(self) -> str | None:
        """Check once and warn; return the reason why the command must end, or None."""
        processes = list(self._look())
        self._stopped_s = {
            process.pid: self._stopped_s.get(process.pid, 0.0) + self._every_s
            for process in processes
        }
        self._warned &= self._stopped_s.keys()
        for process in processes:
            stopped_s = self._stopped_s[process.pid]
            needed, replaced = _name(process, NEEDED), _name(process, REPLACED)
            if needed is not None and stopped_s >= self._end_after_s:
                return (
                    f"{needed} (process {process.pid}) was stopped (SIGSTOP) for {stopped_s:.0f} "
                    "s. The run cannot continue without it."
                )
            if (
                (needed or replaced)
                and stopped_s >= WARN_AFTER_S
                and process.pid not in self._warned
            ):
                self._warned.add(process.pid)
                then = (
                    f"the run ends after {self._end_after_s:.0f} s"
                    if needed
                    else "it is replaced after env.deadline_s"
                )
                logger.warning(
                    "%s (process %d) is stopped (SIGSTOP): `kill -CONT %d` continues it; otherwise "
                    "%s.",
                    needed or replaced,
                    process.pid,
                    process.pid,
                    then,
                )
        return None


def _name(process: RayProcess, names: dict[str, str]) -> str | None:
    return next((name for part, name in names.items() if part in process.title), None)
