"""Detects a hanging run from the reports of its ranks, in a process or thread that does no other
work.

A rank that computes must make progress within the limit. A rank that waits for others may wait as
long as any of them makes progress, because another rank's rollout can be much longer. Time is
measured here, from one change of a rank's report to the next. Clocks of other machines therefore do
not matter, and a rank that is stopped or cannot report counts as one without progress.
"""

import faulthandler
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from siirl import stacks
from siirl.execution.scheduler.exit_report import exit_report
from siirl.interrupts import end_at_once
from siirl.occupation import OCCUPATION, Snapshot

FAILED = 1
LOOK_EVERY_S = 1.0
SILENT_S = 10.0  # on a busy machine, a rank reports every second or two
SILENT = "does not answer, so it is stopped or its code holds the interpreter's lock; last it "
LOCKED = "rank 0: does not answer, because its code holds the interpreter's lock"
# Stack traces take milliseconds, but a stopped process must first be continued.
WRITTEN_WITHIN_S = 2.0


class HangDetector:
    """Checks the reports of the ranks.

    Args:
        ranks: Number of ranks; a rank that never reported is judged too.
        limit_s: Longest time without progress of a rank; None: no limit.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, *, ranks: int, limit_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_s, self._clock = limit_s, clock
        begin = Snapshot(text="starts its process", waiting=False, changes=-1, since=time.time())
        self._seen = {rank: (begin, clock()) for rank in range(ranks)}
        self._spoke = {rank: (-1, clock()) for rank in range(ranks)}

    def look(self, said: Mapping[int, Snapshot]) -> str | None:
        """Reason why the run hangs, or None.

        Args:
            said: The newest report of each rank that has sent one.
        """
        now = self._clock()
        for rank, snapshot in said.items():
            if snapshot.changes != self._seen[rank][0].changes:
                self._seen[rank] = (snapshot, now)
            if snapshot.words != self._spoke[rank][0]:
                self._spoke[rank] = (snapshot.words, now)
        if self._limit_s is None:
            return None
        late = {rank for rank, (_, at) in self._seen.items() if now - at > self._limit_s}
        if len(late) < len(self._seen) and all(self._seen[rank][0].waiting for rank in late):
            return None
        return "; ".join(self._sentence(rank, now) for rank in sorted(self._seen))

    def _sentence(self, rank: int, now: float) -> str:
        snapshot, at = self._seen[rank]
        since = time.strftime("%H:%M:%S", time.localtime(snapshot.since))
        silent = SILENT if now - self._spoke[rank][1] > SILENT_S else ""
        place = f", in {snapshot.place}" if snapshot.place else ""
        return f"rank {rank}: {silent}{snapshot.text}, since {since} ({_duration(now - at)}){place}"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _killed(environment: str) -> str:
    return (
        f"Its process (pid {os.getpid()}) died: it was killed (kill -9, or a limit on memory), it "
        f"crashed, or code in it, such as environment {environment}, ended it; cluster=ray gives "
        "environments processes of their own."
    )


def _out_of_memory() -> str:
    return (
        f"Its process (pid {os.getpid()}) died by SIGKILL of the kernel, as it seems: memory ran "
        "out, and the kernel killed a process. End other programs, or lower what the plan's line "
        "`memory` counts, such as env.envs_per_server."
    )


def hang_sentence(verdict: str, *, limit_s: float, folder: Path) -> str:
    """The `HangDetector`'s verdict with the remedy."""
    return (
        f"No progress for trainer.hang_minutes={limit_s / 60:g}. {verdict}. Stack traces: "
        f"{folder}. If one operation legitimately takes "
        "longer, raise trainer.hang_minutes."
    )


class OwnWatch:
    """Watches the only rank from a thread of its process, and ends the process if it hangs.

    While code holds the interpreter's lock, no thread runs. A timer in C, renewed at every check,
    then ends the process, and a child process reports it (`siirl.execution.scheduler.exit_report`).

    Args:
        limit_s: Longest time without progress of the rank; None: no limit.
        folder: Folder of stack traces, in the run folder.
        environment: Name of the environment, which may end the process.
        run_folder: Folder of a run that can resume from a checkpoint; None for an evaluation.
        resume: `trainer.resume` of that run.
    """

    def __init__(
        self,
        *,
        limit_s: float | None,
        folder: Path,
        environment: str,
        run_folder: Path | None = None,
        resume: str | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._folder = folder
        self._over = threading.Event()
        self._environment = environment
        self._run_folder, self._resume = run_folder, resume
        self._failure = "the evaluation failed" if run_folder is None else "the run failed"
        self._child = ExitStack()
        self._every_s = min(LOOK_EVERY_S, (limit_s or LOOK_EVERY_S) / 4)
        self._file: TextIO | None = None

    def __enter__(self) -> None:
        stacks.register("rank_0")
        if self._limit_s is not None:
            traces = self._folder / f"rank_0-without-lock-{os.getpid()}.txt"
            self._file = traces.open("w")
            sentence = (
                f"{self._failure}: "
                f"{hang_sentence(LOCKED, limit_s=self._limit_s, folder=self._folder)}"
            )
            self._child.enter_context(
                exit_report(
                    sentence,
                    f"{self._failure}: {_killed(self._environment)}",
                    f"{self._failure}: {_out_of_memory()}",
                    traces=traces,
                    run_folder=self._run_folder,
                    before=self._resume,
                )
            )
            # armed now: code may take the lock before the thread's first check
            self._set_timer(self._limit_s)
            self._thread = threading.Thread(
                target=self._watch, args=(self._limit_s,), name="siirl-watchdog", daemon=True
            )
            self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._file is not None:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            self._child.close()

    def _set_timer(self, limit_s: float) -> None:
        assert self._file is not None
        faulthandler.dump_traceback_later(limit_s + 10 * LOOK_EVERY_S, exit=True, file=self._file)

    def _watch(self, limit_s: float) -> None:
        detector = HangDetector(ranks=1, limit_s=limit_s)
        while not self._over.wait(self._every_s):
            self._set_timer(limit_s)
            verdict = detector.look({0: OCCUPATION.snapshot()})
            if verdict is not None:
                stacks.write_here(self._folder)
                sentence = hang_sentence(verdict, limit_s=limit_s, folder=self._folder)
                end_at_once(FAILED, f"{self._failure}: {sentence}")
