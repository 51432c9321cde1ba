"""Runs functions that may hang or crash in killable processes: JSON in, JSON out, deadlines.

Threads and signals are not enough: a power of big integers holds the interpreter's lock for hours,
and `signal.alarm` works only in the main thread. Processes start at the first call, persist between
calls, and are replaced when they die or are killed.

    pool = lease(WorkerSettings(target="my_module:my_function", num_workers=2, deadline_s=10.0))
    result = await pool.call({"question": "…"})
    release(pool)

Left out: isolation. A function in a worker has this process's rights; untrusted programs belong in
the sandbox.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.deadlines import checked_deadline

MAX_ANSWER_BYTES = 16 << 20
CHUNK_BYTES = 1 << 16
CLOSED = "its pool was closed"
ANSWERS = ("ready", "unavailable", "raised", "result")  # keys of an answer of `envs.worker_child`


class WorkerKilled(RuntimeError):
    """The process died during a call, or was killed at its deadline."""

    over_limit = False
    """Whether it exceeded its processor time, which is the call's own fault."""
    is_late = False
    """Whether it was killed at its deadline."""


class WorkerRaised(RuntimeError):
    """The function raised; the message has the exception's type and text."""


class WorkerUnavailable(RuntimeError):
    """No process could be started, or the function could not be imported in it."""


@dataclass(frozen=True)
class WorkerSettings:
    """A pool's function and its limits."""

    target: str
    """`module:function`; called with one JSON value, returns one, may be async."""
    num_workers: int = 2
    """Maximum number of processes and of concurrent calls; further calls wait."""
    deadline_s: float = 10.0
    """Wall time of a call in seconds, after which its process is killed."""
    excludes_waits: bool = False
    """Whether time that a process waits for a core does not count, so that a busy machine does not
    shorten deadlines.
    """
    cpu_s: float = 0.0
    """Processor time of a call in seconds, after which the kernel ends it; 0: no limit. A busy
    machine does not shorten it.
    """
    memory_mib: int = 0
    """Address space of a process in MiB; 0: no limit."""
    start_deadline_s: float = 180.0
    """Seconds for interpreter and imports, which a cold disk or many simultaneous starts delay."""
    patience_s: float = 0.0
    """Seconds that a call waits for a starting or busy process before it starts another one, which
    takes memory; 0: it starts one at once.
    """
    shows_errors: bool = False
    """Whether workers inherit standard error; otherwise it is discarded, as standard output is."""

    def __post_init__(self) -> None:
        checked_deadline("deadline_s", self.deadline_s)
        checked_deadline("start_deadline_s", self.start_deadline_s)
        if self.num_workers < 1 or self.cpu_s < 0 or self.memory_mib < 0:
            raise ValueError(f"num_workers must be positive, and no limit negative, got {self}.")


class WorkerPool:
    """At most `num_workers` processes, one thread each; callable from any event loop."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Starts nothing; the first call starts a process."""
        self.settings = settings
        self.killed = 0  # processes that died or were killed during a call
        self._threads = ThreadPoolExecutor(settings.num_workers, thread_name_prefix="worker-pool")
        self._idle: list[_Worker] = []
        self._alive: set[_Worker] = set()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._first_starts = False
        self._closed = False

    async def call(self, argument: Any, *, deadline_s: float | None = None) -> Any:
        """Return the function's result for `argument`.

        The time of `deadline_s` (default: the settings') starts when a process is free.

        Raises:
            WorkerRaised: The function raised, or its result is not JSON.
            WorkerKilled: The process died or was killed.
            WorkerUnavailable: The function cannot be imported, or no process started.
        """
        wall_s = self.settings.deadline_s if deadline_s is None else deadline_s
        return await asyncio.wrap_future(self._threads.submit(self._call, argument, wall_s))

    def call_blocking(self, argument: Any, *, deadline_s: float | None = None) -> Any:
        """Same as `call`, blocking the calling thread."""
        return self._call(argument, self.settings.deadline_s if deadline_s is None else deadline_s)

    def close(self) -> None:
        """Kill the processes; running and waiting calls fail with `WorkerKilled`. May be called
        twice.
        """
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._alive.difference(idle)
            self._alive.clear()
            self._changed.notify_all()
        for worker in busy:
            worker.end()  # the thread that waits for it then cleans up
        for worker in idle:
            worker.tidy_up()
        self._threads.shutdown(wait=False)

    def _call(self, argument: Any, deadline_s: float) -> Any:
        line = json.dumps(argument).encode() + b"\n"
        worker = self._take()
        try:
            answer = worker.exchange(line, deadline_s=deadline_s)
        except WorkerKilled:
            self.killed += 1
            self._discard(worker)
            raise
        self._put_back(worker)
        if "result" in answer:
            return answer["result"]
        raise WorkerRaised(str(answer.get("raised", "no result")))

    def _take(self) -> "_Worker":
        """Returns an idle process, or starts one."""
        while (worker := self._pop_idle()) is not None:
            if worker.is_alive():
                return worker
            self._discard(worker)
        try:
            return self._start()
        finally:
            with self._changed:
                self._first_starts = False
                self._changed.notify_all()

    def _start(self) -> "_Worker":
        try:
            worker = _Worker(self.settings)
        except OSError as error:  # the machine has no memory, processes or descriptors left
            raise WorkerUnavailable(
                f"No process for {self.settings.target} could be started: {error}."
            ) from error
        with self._lock:
            closed = self._closed
            if not closed:
                self._alive.add(worker)
        if closed:
            worker.tidy_up()
            raise WorkerKilled(CLOSED)
        try:
            hello = worker.exchange(b"", deadline_s=self.settings.start_deadline_s)
        except WorkerKilled as error:
            self._discard(worker)
            raise WorkerUnavailable(
                f"No process for {self.settings.target} could be started: {error}."
            ) from error
        if "unavailable" in hello:
            self._discard(worker)
            raise WorkerUnavailable(
                f"{self.settings.target} cannot be imported: {hello['unavailable']}."
            )
        return worker

    def _pop_idle(self) -> "_Worker | None":
        """An idle process, after a wait if necessary; None: the caller starts another."""
        patience_s = self.settings.patience_s
        with self._changed:
            if patience_s:
                self._changed.wait_for(lambda: self._idle or not self._first_starts)
                self._changed.wait_for(lambda: self._idle or not self._alive, timeout=patience_s)
            if self._closed:
                raise WorkerKilled(CLOSED)
            if self._idle:
                return self._idle.pop()
            self._first_starts = not self._alive
            return None

    def _put_back(self, worker: "_Worker") -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self._idle.append(worker)
                self._changed.notify()
        if closed:
            worker.tidy_up()

    def _discard(self, worker: "_Worker") -> None:
        with self._changed:
            self._alive.discard(worker)
            self._changed.notify_all()
        worker.tidy_up()


class _Worker:
    """A process in a separate session; its children can be killed with it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        command = [
            "-P",
            "-m",
            "envs.worker_child",
            settings.target,
            str(settings.cpu_s),
            str(settings.memory_mib),
        ]
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if settings.shows_errors else subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def exchange(self, line: bytes, *, deadline_s: float) -> dict[str, Any]:
        """Send `line` and return the next answer.

        Raises:
            WorkerKilled: The answer is late, incomplete, too long or invalid; or the process ended.
        """
        end = time.monotonic() + deadline_s - self._waited_s()
        received = bytearray()
        while not received.endswith(b"\n"):
            left_s = end + self._waited_s() - time.monotonic()
            if left_s <= 0:
                late = WorkerKilled(f"no answer within {deadline_s:g} s")
                late.is_late = True
                raise late
            ready = self._wait(left_s, writing=bool(line))
            if self._input in ready:
                line = self._write(line)
            if self._output in ready:
                received += self._read()
            if len(received) > MAX_ANSWER_BYTES:
                raise WorkerKilled(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        return _answer(received)

    def end(self) -> None:
        """Kill the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def tidy_up(self) -> None:
        """Kill the process, wait for its end, and close the pipes; not during an exchange."""
        self.end()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _waited_s(self) -> float:
        """Seconds for which the main thread was ready to run and had no core; counted at the end
        of each such wait.
        """
        if not self._settings.excludes_waits:
            return 0.0
        try:
            waited_ns = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1]
        except (OSError, IndexError):  # the process has ended, or the kernel does not count
            return 0.0
        return int(waited_ns) / 1e9

    def _wait(self, left_s: float, *, writing: bool) -> set[int]:
        waiting = select.poll()
        waiting.register(self._output, select.POLLIN)
        if writing:
            waiting.register(self._input, select.POLLOUT)
        return {descriptor for descriptor, _ in waiting.poll(1000 * left_s)}

    def _write(self, line: bytes) -> bytes:
        try:
            return line[os.write(self._input, line[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return line
        except BrokenPipeError as error:
            raise self._how_it_ended() from error

    def _read(self) -> bytes:
        chunk = os.read(self._output, CHUNK_BYTES)
        if not chunk:
            raise self._how_it_ended()
        return chunk

    def _how_it_ended(self) -> WorkerKilled:
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.end()  # a process that is already ending keeps its status
            status = self._process.wait()
            if status == -signal.SIGKILL:
                return WorkerKilled("it closed its output")
        if status == -signal.SIGXCPU:
            killed = WorkerKilled(f"it used more than {self._settings.cpu_s:g} s of processor time")
            killed.over_limit = True
            return killed
        return WorkerKilled(
            f"it was ended by {signal.Signals(-status).name}"
            if status < 0
            else f"it ended with status {status}"
        )


def _answer(received: bytes | bytearray) -> dict[str, Any]:
    """Parses the worker's answer; its function may have written to the same pipe."""
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and not answer.keys().isdisjoint(ANSWERS):
        return answer
    raise WorkerKilled(f"it returned something other than a result: {bytes(received[:60])!r}")


_LEASED: dict[
    WorkerSettings, tuple[WorkerPool, int]
] = {}  # the environments of one server share these processes
_LEASED_LOCK = threading.Lock()


def lease(settings: WorkerSettings) -> WorkerPool:
    """Return this process's shared pool for `settings`; pair with `release`."""
    with _LEASED_LOCK:
        pool, users = _LEASED.get(settings) or (WorkerPool(settings), 0)
        _LEASED[settings] = (pool, users + 1)
    return pool


def release(pool: WorkerPool) -> None:
    """Return a leased pool; the last release closes it."""
    with _LEASED_LOCK:
        _, users = _LEASED[pool.settings]
        if users > 1:
            _LEASED[pool.settings] = (pool, users - 1)
            return
        del _LEASED[pool.settings]
    pool.close()
