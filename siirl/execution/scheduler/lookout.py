"""Ends the command where Ray has died and the main thread cannot say so, because it waits in Ray's
C++.

A call of Ray's (to place an actor, to end one) waits for a GCS that is gone until Ray's C++ ends
the process, after a minute and without a word. Left out: the ordinary way, in which the main thread
detects it and raises (`siirl.execution.scheduler.vitals`).
"""

import threading
from collections.abc import Callable

from siirl.errors import RunFailed
from siirl.execution.scheduler.placement import GCS_PATIENCE_S
from siirl.execution.scheduler.vitals import EVERY_S, Vitals
from siirl.interrupts import end_at_once

FAILED = 1
MAIN_THREAD_S = 10.0  # for the main thread to raise and to end its actors
SILENT_LOOKS = round(
    GCS_PATIENCE_S / EVERY_S
)  # counted in looks: a command that was stopped itself has missed no answer


class LookOut:
    """A thread that looks at a cluster from the connection on.

    Args:
        vitals: Of the cluster, for this thread alone.
        node_lives: Whether the cluster still counts this machine as a member.
        end: What ends the command: exit status and sentence.
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
        )  # may wait for a silent GCS for ever
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
                0  # it takes no connections either, for which `Vitals` has its own patience
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
