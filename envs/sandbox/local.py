"""Sandbox on this machine: one per program, one process per test, watched from outside.

The supervisor inside (`runner`) measures; time, memory and number of processes are also measured
from outside. When a limit is exceeded, process 1 of the sandbox's namespace is killed, and
everything in the sandbox with it. The kernel limits the processes of every user except the
machine's root.
"""

import asyncio
import contextlib
import marshal
import os
import pkgutil
import signal
from collections.abc import AsyncGenerator, Iterator
from dataclasses import asdict
from pathlib import Path

from envs.archives import MEBIBYTE
from envs.sandbox.isolation import Isolation
from envs.sandbox.limits import Ending, Execution, Limits, ProgramRun, SandboxFailed
from envs.sandbox.runner import ERROR_BYTES, HEADER, NOT_STARTED, READY

ENDINGS = (
    Ending.FINISHED,
    Ending.CPU_TIME,
    Ending.WALL_TIME,
    Ending.OUTPUT,
    Ending.FILES,
)  # as runner numbers them
BOOTSTRAP = (
    "import marshal; stream = open(0, 'rb', closefd=False); "
    "exec(marshal.load(stream), {'stream': stream, '__name__': '__sandbox__'})"
)
START_S = 40.0  # a start takes 20 ms; a machine that is two thousand times slower is broken
# for the supervisor to report what it ended itself; immediate unless the machine is busy
GRACE_S = 10.0
# Interval of memory and process checks; a program touches about 50 MiB in that time.
LOOK_EVERY_S = 0.05
OWN_TASKS = 3  # bubblewrap, its child that builds the walls, and the supervisor
OVERHEAD_BYTES = 24 * MEBIBYTE  # memory of supervisor and bubblewrap
MESSAGE_BYTES = 4000  # of bubblewrap's error message


class LocalSandbox:
    """Runs programs in `isolation`, within `limits`."""

    def __init__(self, isolation: Isolation, limits: Limits) -> None:
        self._isolation, self._limits = isolation, limits
        self._runner = marshal.dumps(
            compile(pkgutil.get_data("envs.sandbox", "runner.py") or b"", "runner.py", "exec")
        )

    async def run(self, job: ProgramRun) -> AsyncGenerator[Execution, None]:
        """See `Sandbox.run`."""
        with contextlib.ExitStack() as stack:
            try:
                launch = stack.enter_context(self._isolation.launch())
                process = await asyncio.create_subprocess_exec(
                    *[*launch.command, "-c", BOOTSTRAP],
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=launch.environment,
                    cwd=launch.folder,
                    pass_fds=launch.descriptors,
                    start_new_session=True,
                )
            except OSError as error:  # the machine has no memory, processes or descriptors left
                raise SandboxFailed(f"The sandbox could not be started: {error}.") from error
            running = _RunningProcess(process, self._limits)
            try:
                await running.begin(self._message(job))
                for _ in job.inputs:
                    execution = await running.next()
                    if execution is None:
                        return
                    yield execution
                    if execution.ending in (Ending.KILLED, Ending.MEMORY, Ending.PROCESSES):
                        return
            finally:
                await running.end()

    def close(self) -> None:
        """See `Sandbox.close`; nothing is held between programs."""

    def _message(self, job: ProgramRun) -> bytes:
        # A file cannot hold a lone surrogate, so the program gets a question mark, as editors would
        # save it.
        program = job.program.encode("utf-8", errors="replace").decode()
        content = {
            "program": program,
            "inputs": list(job.inputs),
            "function": job.function,
            "limits": asdict(self._limits),
        }
        return self._runner + marshal.dumps(content)


class _RunningProcess:
    """One running sandbox."""

    def __init__(self, process: asyncio.subprocess.Process, limits: Limits) -> None:
        assert (
            process.stdin is not None and process.stdout is not None and process.stderr is not None
        )
        self._process, self._limits = process, limits
        self._input = process.stdin
        self._output = process.stdout
        self._errors = process.stderr
        self._excess: Ending | None = None
        self._unwatched: OSError | None = None  # error that ended the watch
        self._deadline = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, message: bytes) -> None:
        """Send the job and wait for the supervisor's report that it has started."""
        self._tasks = [asyncio.create_task(self._send(message)), asyncio.create_task(self._watch())]
        try:
            async with asyncio.timeout(START_S):
                ready = await self._output.read(1)
        except TimeoutError as late:
            raise SandboxFailed(
                await self._complaint(f"did not start within {START_S:g} s")
            ) from late
        if ready != READY:
            raise SandboxFailed(await self._complaint("did not start"))
        self._deadline = asyncio.get_running_loop().time() + self._limits.total_s + GRACE_S

    async def next(self) -> Execution | None:
        """Return the next test's result; None after the supervisor has ended."""
        deadline = min(
            self._deadline, asyncio.get_running_loop().time() + self._limits.wall_s + GRACE_S
        )
        try:
            async with asyncio.timeout_at(deadline):
                return await self._read()
        except (TimeoutError, ValueError):
            return Execution(Ending.KILLED)
        except asyncio.IncompleteReadError as end:
            if self._unwatched is not None:
                raise SandboxFailed(
                    f"The sandbox could not be watched: {self._unwatched}."
                ) from self._unwatched
            if self._excess is not None:
                return Execution(self._excess)
            return Execution(Ending.KILLED) if end.partial else None

    async def end(self) -> None:
        """Kill the remaining processes and reap them."""
        self._kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._input.close()
        await self._process.wait()

    async def _read(self) -> Execution:
        number, exit_status, cpu_ms, output_size, error_size = HEADER.unpack(
            await self._output.readexactly(HEADER.size)
        )
        if number == NOT_STARTED:
            raise SandboxFailed(
                "The sandbox could not start a process for the program: "
                "this machine has no memory or processes left."
            )
        if (
            not 0 <= number < len(ENDINGS)
            or output_size > self._limits.output_bytes
            or error_size > ERROR_BYTES
        ):
            raise ValueError("no record of the supervisor")
        content = await self._output.readexactly(output_size + error_size)
        return Execution(
            ENDINGS[number],
            exit_status,
            content[:output_size],
            content[output_size:],
            cpu_ms / 1000,
        )

    async def _send(self, message: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            # it has ended, which reading its output will show
            self._input.write(message)
            await self._input.drain()
            self._input.close()

    async def _complaint(self, what: str) -> str:
        self._kill()
        said = (await self._errors.read(MESSAGE_BYTES)).decode(errors="replace").strip()
        return f"The sandbox {what}: {said.rstrip('.') or 'it said nothing'}."

    async def _watch(self) -> None:
        while self._excess is None and self._unwatched is None:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                self._excess = _excess(self._process.pid, self._limits)
            except OSError as error:  # no descriptor left
                self._unwatched = error
        self._kill()

    def _kill(self) -> None:
        if self._process.returncode is not None:
            return
        pids = [self._process.pid]
        with contextlib.suppress(OSError):  # no descriptor left
            # without isolation, the other processes do not end with the first
            pids = list(process_tree(self._process.pid))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _excess(pid: int, limits: Limits) -> Ending | None:
    """The first limit that a process tree exceeds; counting stops there."""
    tasks = memory_bytes = 0
    for process in process_tree(pid):
        tasks += len(_tasks(process))
        memory_bytes += resident_bytes(process)
        if tasks > limits.processes + OWN_TASKS:
            return Ending.PROCESSES
    return Ending.MEMORY if memory_bytes > limits.memory_bytes + OVERHEAD_BYTES else None


def process_tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    waiting = [pid]
    while waiting:
        yield (process := waiting.pop())
        for task in _tasks(process):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                waiting += map(int, (task / "children").read_text().split())


def _tasks(pid: int) -> list[Path]:
    """Threads of a process; none if it has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def resident_bytes(pid: int) -> int:
    """Anonymous resident memory of a process, in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    sizes = dict(line.split(":", 1) for line in lines)
    return sum(
        int(sizes[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem") if name in sizes
    )
