"""What `ToolEnv` asks of whoever brings tools: descriptions, calls that answer with text, and a fresh start with each episode.

A tool that fails says so with `ToolError`, whose text the model reads. Anything else that is raised is a fault of the environment.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tools.calls import ToolDescription


class ToolError(RuntimeError):
    """A call failed, and the model is told so: wrong arguments, an exception in the tool, a deadline, a server that died."""


class Toolset(abc.ABC):
    """One tool, or several that live together."""

    replayable: bool = True
    """Whether the same calls in the same episode get the same answers."""

    @abc.abstractmethod
    async def descriptions(self) -> Sequence[ToolDescription]:
        """The tools; the same ones for the whole life of this object.

        Raises:
            RuntimeError: They cannot be had.
        """

    @abc.abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call of one of `descriptions`, within a deadline of this object's own.

        Raises:
            ToolError: The call failed; the model is told.
            RuntimeError: The tools themselves are not there.
        """

    async def start_episode(self) -> None:  # noqa: B027  (optional: most tools keep nothing)
        """Forget whatever an earlier episode left."""

    async def close(self) -> None:  # noqa: B027  (optional)
        """Release processes; may be called twice."""
