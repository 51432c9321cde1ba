"""Ends the command if Ray has died and the main thread is stuck in Ray's C++.

Calls of Ray (placing or ending an actor) wait for a dead GCS until Ray's C++ ends the process after
a minute, without a message. Left out: the usual case, in which the main thread detects it and
raises (`siirl.execution.scheduler.vitals`).
"""

import threading
from collections.abc import Callable

from siirl.errors import RunFailed
from siirl.execution.scheduler.placement import GCS_PATIENCE_S
from siirl.execution.scheduler.vitals import EVERY_S, Vitals
from siirl.interrupts import end_at_once

FAILED = 1
MAIN_THREAD_S = 10.0  # for the main thread to raise an error and to end its actors
SILENT_LOOKS = round(
    GCS_PATIENCE_S / EVERY_S
)  # counts checks, not time: a command that was stopped itself has missed no answer


class LookOut:
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
        self._vitals, self._node_lives, self._end = vitals, node_lives, end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="siirl-lookout", daemon=True)
        self._asks = threading.Thread(
            target=self._ask, name="siirl-lookout-asks", daemon=True
        )  # may wait forever for a silent GCS
        self._looks_without_answer, self._answer = 0, True

    def __enter__(self) -> None:
        self._asks.start()
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()

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
            self._looks_without_answer = (
                0  # it refuses connections too, for which `Vitals` has a separate limit
            )
        elif self._asks.is_alive():
            self._looks_without_answer += 1
        if self._looks_without_answer > SILENT_LOOKS:
            return "Ray's GCS takes connections and gives no answer."
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
