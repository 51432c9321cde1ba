"""Tests isolation before use: a program attempts to escape, and every attempt must fail.

A kernel, container or distribution may silently omit a wall, and without the test a program would
find the gap first. The test costs one sandbox start per process.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from envs.sandbox.isolation import Isolation
from envs.sandbox.limits import Ending, Execution, Limits, ProgramRun, SandboxFailed
from envs.sandbox.local import LocalSandbox

# The test takes a tenth of a second, but a busy machine must not look like one without walls.
TRIAL_S = 30

# Each attempt raises OSError or MemoryError if the wall holds, and returns what it found if not.
ATTEMPTS = """
import ctypes, os, resource, socket, time
kernel = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine

def call(x86, arm, *arguments):
    result = kernel.syscall(x86 if machine == "x86_64" else arm, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def nameless_file(folder):
    # gone with its process, also where nothing is isolated
    return os.open(folder, os.O_TMPFILE | os.O_RDWR)

def fill_tmp():
    for _ in range(3):
        os.posix_fallocate(nameless_file("/tmp"), 0, LIMITS["tmp_bytes"])

def share_memory():
    call(31, 195, call(29, 194, 0, 4096, 0o1600), 0, 0)  # and remove it

def be_traced():
    process = os.fork()  # not this one: a traced process stops at every signal
    if process == 0:
        os._exit(0 if kernel.syscall(101 if machine == "x86_64" else 117, 0, 0, 0, 0) == 0 else 1)
    if os.waitpid(process, 0)[1] != 0:
        raise OSError("refused")

def be_someone():
    if os.getuid() != 0 and os.geteuid() != 0 and os.getppid() == 1:
        raise OSError("nobody, and alone")

ATTEMPTS = {
    "see other processes or be root": be_someone,
    "read /etc/passwd": lambda: open("/etc/passwd").read(),
    "list /proc": lambda: os.listdir("/proc"),
    "write beside /tmp": lambda: nameless_file("/"),
    "change the standard library": lambda: open(os.__file__, "r+"),
    "open a socket": lambda: socket.socket(socket.AF_INET),
    "open a socket to the host of a virtual machine": lambda: socket.socket(40),
    "make a user namespace": lambda: call(272, 97, 0x10000000),
    "trace a process": be_traced,
    "read the key ring": lambda: call(250, 219, 0, -4, 1),
    "set up io_uring": lambda: call(425, 425, 1, 0),
    "make System V shared memory": share_memory,
    "use memory above the limit": lambda: len(bytearray(LIMITS["memory_bytes"])),
    "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
    "fill /tmp beyond its size": fill_tmp,
}

def probe():
    through = []
    for name, attempt in ATTEMPTS.items():
        try:
            attempt()
            through.append(name)
        except (OSError, ValueError, MemoryError):
            pass
    return through
"""

# Returns whether a fork was refused; a sandbox that is killed for it also holds. The processes stay
# until they are counted.
FORKS = """
import os, time

def probe():
    started = []
    try:
        for _ in range(LIMITS["processes"] + 4):
            process = os.fork()
            if process == 0:
                time.sleep(LIMITS["wall_s"])
                os._exit(0)
            started.append(process)
        time.sleep(LIMITS["wall_s"])
    except OSError:
        return True
    finally:
        for process in started:
            os.kill(process, 9)
            os.waitpid(process, 0)
"""


def check_isolation(isolation: Isolation, limits: Limits) -> None:
    """Run the attempts.

    Raises:
        RuntimeError: The sandbox does not start, or an attempt succeeded (the message names it).
    """
    if not Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        raise RuntimeError(
            "This kernel does not list the children of a process (CONFIG_PROC_CHILDREN), "
            "which the memory check needs."
        )
    patient = LocalSandbox(
        isolation, replace(limits, cpu_s=TRIAL_S, wall_s=TRIAL_S, total_s=TRIAL_S)
    )
    attempted = _tried(patient, ATTEMPTS, limits)
    if attempted.ending is not Ending.FINISHED or attempted.exit_status != 0:
        raise RuntimeError(f"The trial run of the sandbox failed: {attempted}.")
    through = json.loads(attempted.output)
    forked = _tried(patient, FORKS, replace(limits, wall_s=TRIAL_S))
    if forked.ending is not Ending.PROCESSES and (forked.ending, forked.output) != (
        Ending.FINISHED,
        b"true",
    ):
        through.append("start more processes than the limit")
    if through:
        raise RuntimeError(
            "The sandbox does not isolate programs on this machine. A program in it can: "
            f"{'; '.join(through)}."
        )


def _tried(sandbox: LocalSandbox, attempts: str, limits: Limits) -> Execution:
    program = f"LIMITS = {asdict(limits)}\n{attempts}"
    outcome = _in_thread(_run(sandbox, ProgramRun(program, [b"[]"], "probe")))
    if isinstance(outcome, SandboxFailed):
        raise RuntimeError(str(outcome)) from outcome
    return outcome[0] if outcome else Execution(Ending.KILLED)


async def _run(sandbox: LocalSandbox, job: ProgramRun) -> list[Execution] | SandboxFailed:
    try:
        async with contextlib.aclosing(sandbox.run(job)) as executions:
            return [execution async for execution in executions]
    except SandboxFailed as failed:
        return failed


def _in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine in its own thread: the caller may be inside an event loop or not."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(coroutine)))
    thread.start()
    thread.join()
    if not results:
        raise RuntimeError("The trial run of the sandbox failed; the log has the reason.")
    return results[0]
