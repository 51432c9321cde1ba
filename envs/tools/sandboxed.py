"""A tool that runs the model's Python programs, in the sandbox or in a user's own runner.

`ProgramTool` needs a `ProgramRunner`; `sandboxed` makes the one on `envs.sandbox`.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envs.sandbox.limits import Ending, Execution, Limits, ProgramRun, Sandbox
from envs.sandbox.sandbox_env import make_sandbox
from envs.tools.calls import ToolDescription
from envs.tools.toolset import ToolError, Toolset, ToolsMissing

TOTAL_S = 15.0  # per program; several calls per turn stay below env.deadline_s


def sandboxed(
    *,
    isolation: str = "bubblewrap",
    url: str | None = None,
    packages: Sequence[str] = (),
    **limits: Any,
) -> "SandboxedPrograms":
    """Make a runner in a sandbox.

    Args:
        isolation: `bubblewrap`; `remote` (a service at `url`); or `none`, which protects nothing.
        url: Address of a SandboxFusion service, for `remote`.
        packages: Packages that programs may import besides the standard library, such as `numpy`.
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
            SandboxFailed: The sandbox failed, and not the program.
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


NAME = "python"  # of the tool
PARAMETERS = {
    "type": "object",
    "properties": {
        "program": {"type": "string", "description": "Python source; what it prints is the answer."}
    },
    "required": ["program"],
    "additionalProperties": False,
}


class ProgramRunner(Protocol):
    """Runs untrusted programs of a model."""

    async def run_program(self, program: str) -> str:
        """Return the program's output, and its ending if it failed; bounded in time and size.

        Raises:
            RuntimeError: The sandbox could not run the program; the program is not at fault.
        """

    def close(self) -> None:
        """Release resources; a second call does nothing."""


class ProgramTool(Toolset):
    """One tool; programs share no state."""

    origin = "a program runner"

    def __init__(self, runner: ProgramRunner) -> None:
        self._runner = runner
        self._description = ToolDescription(
            NAME, "Run a Python program, and see what it prints. Each starts anew.", PARAMETERS
        )

    async def descriptions(self) -> Sequence[ToolDescription]:
        """See `Toolset.descriptions`."""
        return [self._description]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """See `Toolset.call`."""
        program = arguments.get("program")
        if not isinstance(program, str) or len(arguments) != 1:
            raise ToolError("wrong arguments: it takes one, program, which must be text")
        try:
            return await self._runner.run_program(program)
        except RuntimeError as error:
            raise ToolsMissing(f"Tool {name!r} could not run a program: {error}") from error

    async def close(self) -> None:
        """See `Toolset.close`."""
        self._runner.close()
