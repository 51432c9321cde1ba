"""Supervisor inside the sandbox: runs each test in its own process and reports its output.

It is process 1 of its process namespace, so programs cannot signal it, and all processes end with
it. It knows only inputs; expected outputs stay outside, where nothing that it sends is trusted. So
it enforces order (limits, an empty /tmp, no process left from the previous test) and guards no
secrets.

This file is not imported in the sandbox. `local` sends it as compiled code through standard input,
followed by a job. At start it imports only built-in modules, because startup is half of a test's
cost.
"""

import marshal
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import Any, NoReturn

# ending, exit status, processor time in ms, bytes of output, bytes of standard error
HEADER = struct.Struct("!BiIII")
READY = b"R"
FINISHED, CPU_TIME, WALL_TIME, OUTPUT, FILES, NOT_STARTED = range(6)
ERROR_BYTES = 2000
PIPE_BYTES = 65536  # a pipe's capacity; one read empties it
GLANCE_MS = 20  # interval of checks of the number of files
RESULT = 3  # file descriptor of the result in the program's process
PRELOADED = (
    "math",
    "collections",
    "itertools",
    "functools",
    "heapq",
    "bisect",
    "re",
    "string",
    "typing",
    "json",
)  # if imported by it


def main(stream: Any) -> None:
    """Run the job that follows in `stream`."""
    job = marshal.load(stream)
    os.closerange(3, 1024)
    sys.stdin.close()
    os.write(1, READY)
    for name in PRELOADED:
        if f"import {name}" in job["program"] or f"from {name} " in job["program"]:
            __import__(name)  # once here instead of in each test's process
    if job["function"]:
        import json  # noqa: F401
    until = time.monotonic() + job["limits"]["total_s"]
    for given in job["inputs"]:
        test = Test(job, given)
        try:
            test.start()
        except OSError:  # the machine is out of memory or processes
            _write_all(HEADER.pack(NOT_STARTED, 0, 0, 0, 0))
            return
        _write_all(test.finish(until))
        if until <= time.monotonic() or not empty_tmp():
            return


class Test:
    """One test: a process and the pipes to it."""

    def __init__(self, job: dict[str, Any], given: bytes) -> None:
        self.job = job
        self.given = given
        self.limits = job["limits"]
        self.received: dict[str, bytearray] = {
            "output": bytearray(),
            "errors": bytearray(),
            "result": bytearray(),
        }
        self.total_errors = 0

    def start(self) -> None:
        """Start the program.

        Raises:
            OSError: The machine has no memory, processes or descriptors left.
        """
        theirs: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        for name in ("input", "output", "errors", "result"):
            reading, writing = os.pipe()
            theirs[name], self.ends[name] = (
                (reading, writing) if name == "input" else (writing, reading)
            )
        self.pid = os.fork()
        if self.pid == 0:
            Program(self.job, self.given, theirs).run()
        for descriptor in theirs.values():
            os.close(descriptor)
        for descriptor in self.ends.values():
            os.set_blocking(descriptor, False)

    def finish(self, until: float) -> bytes:
        """Wait until the program ends, or kill it; returns the record to send."""
        ending = self.watch(min(until, time.monotonic() + self.limits["wall_s"]))
        kill_all(self.pid)
        _, status, usage = os.wait4(self.pid, 0)
        reap_all()
        ending = self.drain() or ending
        for descriptor in self.ends.values():
            os.close(descriptor)
        return self.record(
            ending, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        )

    def watch(self, deadline: float) -> int:
        """Feed and read the program until its main process ends or a limit is exceeded."""
        poll = select.poll()
        sent = 0
        ended = os.pidfd_open(self.pid)
        names = {descriptor: name for name, descriptor in self.ends.items()}
        for descriptor, name in names.items():
            poll.register(descriptor, select.POLLOUT if name == "input" else select.POLLIN)
        poll.register(ended, select.POLLIN)
        try:
            while time.monotonic() < deadline:
                ready = {descriptor for descriptor, _ in poll.poll(GLANCE_MS)}
                if ended in ready:
                    return FINISHED
                for descriptor in ready:
                    if names[descriptor] == "input":
                        sent = self.feed(poll, sent)
                    elif not self.receive(names[descriptor]):
                        poll.unregister(descriptor)
                if self.is_over_output():
                    return OUTPUT
                if count_files() > self.limits["files"]:
                    return FILES
            return WALL_TIME
        finally:
            os.close(ended)

    def feed(self, poll: Any, sent: int) -> int:
        """Write more of the input; close it when all is written or the reader is gone."""
        try:
            sent += os.write(self.ends["input"], self.given[sent : sent + PIPE_BYTES])
            finished = sent == len(self.given)
        except BrokenPipeError:
            finished = True
        if finished:
            poll.unregister(self.ends["input"])
            os.close(self.ends.pop("input"))
        return sent

    def receive(self, name: str) -> bool:
        """Read from a pipe; False at its end."""
        try:
            part = os.read(self.ends[name], PIPE_BYTES)
        except BlockingIOError:
            return True
        self.received[name] += part
        if name == "errors":
            self.total_errors += len(part)
            del self.received[name][:-ERROR_BYTES]
        return bool(part)

    def drain(self) -> int | None:
        """Read the output that remains after the program's end."""
        for name in self.received:
            before = -1
            while before != len(self.received[name]) + self.total_errors:
                before = len(self.received[name]) + self.total_errors
                if not self.receive(name) or self.is_over_output():
                    break
        return OUTPUT if self.is_over_output() else None

    def is_over_output(self) -> bool:
        """Whether it printed or returned too much."""
        return (
            max(len(self.received["output"]), len(self.received["result"]), self.total_errors)
            > self.limits["output_bytes"]
        )

    def record(self, ending: int, exit_status: int, cpu_s: float) -> bytes:
        """The bytes to send."""
        # The reported time may lag behind the kernel's: on a busy machine, a limit of 1 s took
        # effect at 0.89 s.
        if exit_status < 0 and cpu_s >= 0.75 * self.limits["cpu_s"]:
            ending = CPU_TIME
        output = self.received["result" if self.job["function"] else "output"]
        sent = b"" if ending == OUTPUT else bytes(output)
        errors = bytes(self.received["errors"])
        return (
            HEADER.pack(ending, exit_status, int(cpu_s * 1000), len(sent), len(errors))
            + sent
            + errors
        )


class Program:
    """The program's process, in which the program may change anything."""

    def __init__(self, job: dict[str, Any], given: bytes, pipes: dict[str, int]) -> None:
        self.job = job
        self.given = given
        self.pipes = pipes
        self.exit, self.flush = os._exit, (sys.stdout.flush, sys.stderr.flush)

    def run(self) -> NoReturn:
        """Run the program as `python program.py` would, or call its function; never returns."""
        status = 1
        try:
            self.settle_in()
            status = self.execute()
        finally:
            self.exit(status)

    def settle_in(self) -> None:
        """Set up session, descriptors and limits of this process."""
        os.setsid()
        os.dup2(self.pipes["input"], 0)
        os.dup2(self.pipes["output"], 1)
        os.dup2(self.pipes["errors"], 2)
        # The result's pipe. The program may write to it, because only a correct result counts.
        os.dup2(self.pipes["result"], RESULT)
        os.closerange(RESULT + 1, 1024)
        sys.stdin = open(  # noqa: SIM115  (for as long as it runs)
            0, encoding="utf-8", errors="surrogateescape", closefd=False
        )
        sys.argv = ["program.py"]
        set_limits(self.job["limits"], tasks_before=1)

    def execute(self) -> int:
        """Returns the exit status."""
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        status = 0
        try:
            exec(compile(self.job["program"], "program.py", "exec"), module.__dict__)
            if self.job["function"]:
                self.call(module)
        except SystemExit as end:
            status = self.status_of(end.code)
        except BaseException as error:  # noqa: BLE001  (an error of the program is its result)
            # from the program's first line
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            sys.__excepthook__(type(error), error, error.__traceback__)
            status = 1
        return self.finish() or status

    def call(self, module: Any) -> None:
        """Call the function on this test's arguments and record its result."""
        from json import dumps, loads

        function = module
        for name in self.job["function"].split("."):
            function = function() if isinstance(function, type) else function
            function = getattr(function, name)
        result = dumps(function(*loads(self.given))).encode()
        while result:
            result = result[os.write(RESULT, result) :]

    def status_of(self, code: Any) -> int:
        """Exit status of `sys.exit(code)`."""
        if code is None or isinstance(code, int):
            return (code or 0) & 0xFF
        print(code, file=sys.stderr)
        return 1

    def finish(self) -> int:
        """Join threads, run exit handlers and flush, as the interpreter does."""
        import atexit

        try:
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()
            for flush in self.flush:
                flush()
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001  (the interpreter's own exit status for this)
            return 120
        return 0


def set_limits(limits: dict[str, Any], tasks_before: int) -> None:
    """Limit this process and its children; nothing in a sandbox may raise the limits."""
    stack = 8 * 2**20  # Linux's default; each thread takes that much address space
    bounds = {
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["tmp_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_STACK: stack,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if os.getpid() != 1 and os.getppid() == 1:
        # counted per user, so meaningful only if the user is alone in its namespace
        bounds[resource.RLIMIT_NPROC] = limits["processes"] + tasks_before
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, bound))


def kill_all(pid: int) -> None:
    """Kill the program and all its descendants."""
    try:
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)  # all of this process namespace except process 1
        else:
            os.kill(pid, signal.SIGKILL)
            # without isolation, processes that left the group survive
            os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def reap_all() -> None:
    """Reap orphaned processes."""
    while os.getpid() == 1:
        try:
            os.wait()
        except ChildProcessError:
            return


def count_files() -> int:
    """Number of files and folders in the sandbox's own /tmp."""
    if os.getpid() != 1:
        return 0
    usage = os.statvfs("/tmp")
    return usage.f_files - usage.f_ffree


def empty_tmp() -> bool:
    """Empty /tmp before the next test; False if its depth or long names prevent that."""
    if os.getpid() != 1:
        return True
    try:
        _empty("/tmp")
    except (OSError, RecursionError):
        return False
    return True


def _empty(folder: str) -> None:
    os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)


def _write_all(record: bytes) -> None:
    while record:
        record = record[os.write(1, record) :]


if __name__ == "__sandbox__":
    main(globals()["stream"])
