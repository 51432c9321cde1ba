"""A tool that runs the model's Python programs, through a protocol of one method.

`envs.tools.sandboxed` implements it with the sandbox.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envs.tools.calls import ToolDescription
from envs.tools.toolset import ToolError, Toolset, ToolsMissing

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
            RuntimeError: The program could not be run, by no fault of its own.
        """

    def close(self) -> None:
        """Release resources; a second call does nothing."""


class ProgramTool(Toolset):
    """One tool, `python`; programs share no state."""

    def __init__(self, runner: ProgramRunner, *, name: str = "python") -> None:
        self._runner = runner
        self._description = ToolDescription(
            name, "Run a Python program, and see what it prints. Each starts anew.", PARAMETERS
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
