"""Shared helpers of the sandbox's tests: small limits, problems, and ways to run a program and to
inspect the machine afterwards.
"""

import asyncio
import contextlib
import time
from pathlib import Path

from envs.archives import MEBIBYTE
from envs.prompt_rows import PromptRow
from envs.sandbox.limits import Limits, ProgramRun
from envs.sandbox.problems import Problem, encoded_tests
from envs.sandbox.scoring import judge
from envs.text import message

# Small, so that an abuse would not disturb the machine even if the isolation failed.
SMALL = Limits(
    cpu_s=1,
    wall_s=10.0,
    total_s=20.0,
    memory_bytes=64 * MEBIBYTE,
    processes=8,
    tmp_bytes=4 * MEBIBYTE,
    files=64,
    output_bytes=100_000,
)
RIGHT = "def solve(v):\n    return v * 7 + 3\n"  # of the fixture `seven`


def problem(**tests):
    """A problem with these tests."""
    return Problem.of(PromptRow("test", (message("user", "?"),), encoded_tests(**tests)))


def executions(sandbox, program, inputs=(b"",), function=None):
    """Everything that comes out of a sandbox."""

    async def run():
        async with contextlib.aclosing(sandbox.run(ProgramRun(program, inputs, function))) as found:
            return [execution async for execution in found]

    return asyncio.run(run())


def verdict(sandbox, asked, program, *, stop_early=False):
    """The scorer's verdict."""
    return asyncio.run(judge(sandbox, asked, program, stop_early=stop_early))


def sandboxed_processes(*, patience_s=600.0):
    """Ids of sandboxes' processes that live on; those of tests that run side by side end within
    seconds, and are waited for.
    """
    found, deadline = _living(), time.monotonic() + patience_s
    while found and time.monotonic() < deadline:
        time.sleep(0.05)
        found &= _living()
    return found


def _living():
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                b"__sandbox__" in (process / "cmdline").read_bytes()
                and "State:\tZ" not in (process / "status").read_text()
            ):
                found.add(int(process.name))
    return found
