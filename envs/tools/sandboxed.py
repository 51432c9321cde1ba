"""The sandbox as a program runner for `envs.tools.programs`."""

import contextlib
from collections.abc import Sequence
from typing import Any

from envs.sandbox.limits import Ending, Execution, Limits, ProgramRun, Sandbox
from envs.sandbox.sandbox_env import make_sandbox

TOTAL_S = 15.0  # of one program; several calls per turn stay below env.deadline_s


def sandboxed(
    *,
    isolation: str = "bubblewrap",
    url: str | None = None,
    packages: Sequence[str] = (),
    **limits: Any,
) -> "SandboxedPrograms":
    """Make a runner in a sandbox.

    Args:
        isolation: As env.isolation of the sandbox environment.
        url: As there.
            packages: As there.
            limits: Limits of a program, by name; see `envs.sandbox.limits.Limits`.

    Raises:
        ValueError: An invalid argument.
            RuntimeError: Isolation is not possible on this machine.
    """
    bounds = Limits.of({"total_s": TOTAL_S} | limits)
    return SandboxedPrograms(
        make_sandbox(isolation, url=url, packages=tuple(packages), limits=bounds)
    )


class SandboxedPrograms:
    """A `ProgramRunner` on a sandbox: a fresh process per program, no standard input."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def run_program(self, program: str) -> str:
        """See `ProgramRunner.run_program`.

        Raises:
            SandboxFailed: The sandbox failed, not the program.
        """
        async with contextlib.aclosing(self._sandbox.run(ProgramRun(program, [b""]))) as executions:
            async for execution in executions:
                return _formatted(execution)
        return f"(ended: {Ending.KILLED.value})"

    def close(self) -> None:
        """Release the sandbox."""
        self._sandbox.close()


def _formatted(execution: Execution) -> str:
    parts = [
        execution.output.decode(errors="replace").rstrip("\n"),
        execution.errors.decode(errors="replace").rstrip("\n"),
    ]
    if execution.ending is not Ending.FINISHED:
        parts.append(f"(ended: {execution.ending.value})")
    elif execution.exit_status != 0:
        parts.append(f"(exit status {execution.exit_status})")
    return "\n".join(part for part in parts if part) or "(printed nothing)"
