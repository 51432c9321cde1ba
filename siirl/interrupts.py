"""Handles SIGINT, SIGTERM and SIGHUP: ends a command at any point of its execution.

No exception is raised at an arbitrary point of the program: not in imports, asyncio, destructors or
callbacks of C code. A thread receives the signal, even while the main thread waits in C.

- Usually the command ends at once, with one message, no process left, and exit status 128 + the
  signal's number (130, 143, 129), as in a shell.
- Within `grace_period(grace_s)` the first signal is a request (`STOP`) that the run checks for, to
  save completed steps (siirl.dag_worker.dagworker). A second signal or the end of the grace period
  ends the command at once.

Signals within `SAME_WISH_S` count as one: a terminal signals a whole group, and `srun`, `make` and
`docker` forward theirs in addition. A signal may also end the reader of the output (Ctrl-C ends
`tee`, a closed terminal sends SIGHUP); later output is lost, and the command ends as usual. Left
out: signals before Python runs this module (SIGINT then ends the command without a message), and
use as a library, where no handler is installed.
"""

import atexit
import io
import math
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TextIO

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_WISH_S = 1.0
FLUSH_S = 1.0  # the reader of the output may have gone
OTHER_THREAD_S = 5.0  # limit for another thread that is ending the command; it may be stuck
LOOK_S = 0.02
TRACKER = b"resource_tracker import main"  # in the command line of such a process
SHARED_MEMORY = re.compile(r"/dev/shm/psm_\w+")
THREADS_END_S = 10.0  # after the result; siirl's own threads have ended by then
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


class Interrupted(KeyboardInterrupt):
    """The command was interrupted and has stopped.

    A BaseException: handlers of Exception do not treat it as a fault.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class Stop:
    """A request to stop, set and read from any thread."""

    def __init__(self) -> None:
        self.number: int | None = None
        """Number of the signal behind the request."""
        self._arrived = threading.Event()
        self._held = False
        self._wakers: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    @property
    def requested(self) -> bool:
        """Whether to stop now."""
        return self.number is not None and not self._held

    def request(self, number: int) -> None:
        """Request a stop, and wake waiting threads."""
        with self._lock:
            self.number = number
            self._arrived.set()
            for wake in self._wakers:
                wake()

    def arrives(self, *, within_s: float) -> bool:
        """Whether there is a request, or one arrives within `within_s`; it may be on hold."""
        return self._arrived.wait(within_s)

    def hold(self, held: bool) -> None:
        """While held, `requested` stays False: work in progress must complete."""
        self._held = held

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake`, from another thread, if a request arrives within the context."""
        with self._lock:
            self._wakers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)


STOP = Stop()
"""The request of this process."""


class _Output(io.FileIO):
    """stdout or stderr of a command; after a request to stop, it may have no reader."""

    def write(self, text: Any, /) -> int:
        """Write `text`, or drop it if the reader ended with the stop request.

        Raises:
            OSError: The reader is gone without a stop request.
        """
        try:
            return super().write(text)
        except OSError:
            if not STOP.arrives(within_s=SAME_WISH_S):  # the signal may be on its way
                raise
            return len(text)


def _outlive_reader(stream: TextIO) -> TextIO:
    """The stream, wrapped in `_Output`; a closed or replaced stream is returned unchanged."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    output = _Output(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        output if stream.write_through else io.BufferedWriter(output),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Listener:
    """The thread that receives the signals of this process."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self.grace_s: float | None = None  # time limit of a request; None: end at once
        self.ending = ""  # what a request ends
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            # Signals that nohup ignores stay ignored; a shell ignores SIGINT in background
            # commands.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _heard_elsewhere)
        os.register_at_fork(after_in_child=_hear_nothing)
        threading.Thread(target=self._listen, name="siirl-signals", daemon=True).start()

    def _listen(self) -> None:
        asked_at, until = -math.inf, math.inf
        while (number := self._next(until)) is not None:
            now = time.monotonic()
            if number not in SIGNALS or now - asked_at < SAME_WISH_S:
                continue
            grace_s = self.grace_s
            if grace_s is None or until < math.inf:
                end_at_once(128 + number, "interrupted")
            else:
                asked_at, until = now, now + grace_s
                _say(
                    f"{signal.Signals(number).name} ends {self.ending} within "
                    f"trainer.grace_s={grace_s:g} s; a second signal ends it at once"
                )
                STOP.request(number)
        assert STOP.number is not None
        end_at_once(
            128 + STOP.number, "interrupted, but not stopped in time: raise trainer.grace_s"
        )

    def _next(self, until: float) -> int | None:
        """Number of the next signal; None after `until`."""
        left = None if until == math.inf else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self._reader], [], [], left)
        return os.read(self._reader, 1)[0] if ready else None


_final_messages: list[Callable[[], str]] = []
_ending = threading.Lock()
_listener: _Listener | None = None
_status: int | None = None  # of the finished command; None while it runs


def listen() -> None:
    """Start listening to signals, in the main thread of a command; may be called twice."""
    global _listener
    if _listener is None:
        atexit.register(_end_finished)  # registered first, so called last
        sys.stdout, sys.stderr = _outlive_reader(sys.stdout), _outlive_reader(sys.stderr)
        _listener = _Listener()


def leave(status: int) -> NoReturn:
    """End a finished command with `status`; later signals do not change it.

    Python waits for all threads first, and a thread of a hung environment never ends. After
    `THREADS_END_S` the process ends without them.
    """
    global _status
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _status = status
    limit = threading.Timer(THREADS_END_S, _end_without_threads, (status,))
    limit.daemon = True
    limit.start()
    atexit.register(limit.cancel)  # called when all threads have ended
    sys.exit(status)


def _end_without_threads(status: int) -> None:
    left = sorted(
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    )
    end_at_once(
        status,
        f"threads of an environment or plug-in did not end within {THREADS_END_S:g} s "
        f"({', '.join(left)}); the command ends without them",
    )


def _end_finished() -> None:
    """End a finished command before Python tears down its modules.

    With torch and transformers that takes 2.5 s of CPU time, and changes nothing outside of the
    process.
    """
    if _status is None:
        return
    # A signal's thread may be ending the command: the main thread failed because of it.
    _ending.acquire(timeout=OTHER_THREAD_S)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # Python flushes again and reports the error
    os._exit(_status)


@contextmanager
def grace_period(grace_s: float, *, of: str = "the run") -> Iterator[None]:
    """Make the first signal a request to end within `grace_s`; no effect without a listener.

    Args:
        grace_s: Seconds; then the process ends at once.
        of: What ends, for the message.
    """
    if _listener is None:
        yield
        return
    _listener.grace_s, _listener.ending = grace_s, of
    try:
        yield
    finally:
        _listener.grace_s = None


@contextmanager
def final_message(words: Callable[[], str]) -> Iterator[None]:
    """Call `words` and print its result if the command ends at once within the context; it may
    clean up.

    It is called from another thread.
    """
    _final_messages.append(words)
    try:
        yield
    finally:
        _final_messages.remove(words)


def end_at_once(status: int, sentence: str) -> NoReturn:
    """End this process and its descendants without further output; callable from any thread.

    The sentence is printed first, because a final message may fail: it cleans up after ended
    processes.
    """
    try:
        _ending.acquire(timeout=OTHER_THREAD_S)  # never released: only one thread ends the command
        _flush()
        if os.isatty(1):
            _write(SHOW_CURSOR, to=1)
        _say(sentence)
        errors = os.dup(2)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        end_descendants()
        for last in reversed(_final_messages):
            if word := _word(last):
                _write(f"{word}\n", to=errors)
    finally:
        os._exit(status)


def _word(last: Callable[[], str]) -> str:
    try:
        return last()
    except Exception as error:  # noqa: BLE001 - the process ends now, and other words are due
        return f"Cleaning up failed: {type(error).__name__}: {error}"


def end_descendants() -> None:
    """Kill the descendants of this process, but for trackers (`_Process`) of other sessions.

    They are stopped first: a process that is killed while it starts a child would orphan the child.
    Their shared memory goes with them; its trackers are killed too.
    """
    shared = set().union(*map(_shared_memory, _descendants()))
    _end(_descendants)
    for file in shared:
        with suppress(FileNotFoundError, PermissionError):
            os.unlink(file)


def end_session(leader: int, *, within_s: float) -> None:
    """Kill the processes of a session, orphans too; trackers (`_Process`) may end by themselves.

    Args:
        leader: The session's first process, which may have ended; it is not this one's.
        within_s: Then trackers that still run are killed, and nothing more is waited for.
    """
    ends_at = time.monotonic() + within_s
    _end(lambda: {each.pid for each in _session(leader) if not each.tracks})
    while (left := _session(leader)) and time.monotonic() < ends_at:
        time.sleep(LOOK_S)
    _signal({each.pid for each in left}, signal.SIGKILL)


def _end(processes: Callable[[], set[int]]) -> None:
    found: set[int] = set()
    while new := processes() - found:
        found |= new
        _signal(new, signal.SIGSTOP)
    _signal(found, signal.SIGKILL)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        # it ended meanwhile, or is another user's, such as one of sudo
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


@dataclass(frozen=True)
class _Process:
    """A process that has not ended."""

    pid: int
    parent: int
    session: int
    tracks: bool
    """Whether Python's `multiprocessing` waits in it for the end of the processes that made shared
    memory, to remove what they leave in /dev/shm and to say so on its stderr.
    """


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat") as stat:
                state, parent, _, session = stat.read().rpartition(")")[2].split()[:4]
            with open(f"/proc/{name}/cmdline", "rb") as words:
                tracks = TRACKER in words.read()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if state != "Z":
            yield _Process(int(name), int(parent), int(session), tracks)


def _shared_memory(pid: int) -> set[str]:
    """Files in /dev/shm that Python's `multiprocessing` named and the process has mapped."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            return set(SHARED_MEMORY.findall(maps.read()))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()  # it ended meanwhile, or is another user's


def _session(leader: int) -> list[_Process]:
    return [each for each in _processes() if each.session == leader]


def _descendants() -> set[int]:
    own = os.getsid(0)
    parents = {
        each.pid: each.parent for each in _processes() if not each.tracks or each.session == own
    }
    found: set[int] = set()
    while (
        new := {pid for pid, parent in parents.items() if parent == os.getpid() or parent in found}
        - found
    ):
        found |= new
    return found


def _heard_elsewhere(number: int, frame: FrameType | None) -> None:
    """Python's handler in the main thread; the listener thread is notified independently."""


def _hear_nothing() -> None:
    """Let signals end a forked child, which has no listener.

    Python's own SIGINT handler would raise KeyboardInterrupt, with a traceback, in a child that is
    about to execute another program.
    """
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) == _heard_elsewhere:
            signal.signal(number, signal.SIG_DFL)


def _flush() -> None:
    """Flush printed output without waiting: the main thread may hold the stream."""
    flushing = threading.Thread(target=sys.stdout.flush, daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)


def _say(sentence: str) -> None:
    """Write a sentence on a new line: the current one may show ^C or a progress bar."""
    start = "\n" if os.isatty(2) else ""
    _write(f"{start}siirl: {sentence}\n")


def _write(text: str, *, to: int = 2) -> None:
    # The terminal may have been closed (SIGHUP), or the pipe's reader may have ended.
    with suppress(OSError):
        os.write(to, text.encode())


def start_apart(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process that a terminal's Ctrl-C does not reach, because this command needs it to
    finish its work.

    The process gets its own process group. Until then SIGINT is blocked: in this thread for the
    moment, in the process for good.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = None
    try:
        process = subprocess.Popen(command, process_group=0, **options)
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except KeyboardInterrupt:  # Ctrl-C arrived meanwhile; the caller will not get the process
            if process is not None:
                process.kill()
                process.wait()
            raise
    return process
