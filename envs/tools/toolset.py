"""Interface of tools for `ToolEnv`: descriptions, calls that return text, a start per episode.

A failed call raises `ToolError`, whose text the model reads. Unavailable tools raise
`ToolsMissing`, and the episode counts as failed. Any other exception is a fault of the environment.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import EpisodeFailed
from envs.tools.calls import ToolDescription


class ToolError(RuntimeError):
    """A call failed; the model reads the message.

    Causes: wrong arguments, an exception in the tool, a deadline, or a dead server.
    """


class ToolStopped(ToolError):
    """A fault of the tool: a call was ended at its deadline, or its process died."""


class ToolsMissing(EpisodeFailed):
    """The tools are not available, through no fault of the model: no server starts, or the sandbox
    broke.

    Only the episode that needed them fails, and the next one tries again. If they are never
    available, the limit on failed episodes stops the run with this message.
    """


class Toolset(abc.ABC):
    """One tool, or several that share a process."""

    origin: str
    """What offers the tools, for messages."""
    replayable: bool = True
    """Whether the same calls in the same episode get the same answers."""
    deadline_s: float = 0.0
    """Seconds after which a call is ended; 0: the tools end their calls themselves."""

    @abc.abstractmethod
    async def descriptions(self) -> Sequence[ToolDescription]:
        """Return the tools; constant over the lifetime of this object.

        Raises:
            ToolsMissing: The tools are not available.
        """

    @abc.abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Execute a call of one of `descriptions`, within this object's deadline.

        Raises:
            ToolError: The call failed; the model reads the message.
                ToolsMissing: The tools are not available.
        """

    async def start_episode(self) -> None:  # noqa: B027  (optional: most tools keep nothing)
        """Discard the state of earlier episodes."""

    async def close(self) -> None:  # noqa: B027  (optional)
        """Release processes; a second call does nothing."""


def two_of_a_name(name: str, first: str, second: str) -> str:
    """The sentence that refuses two tools called `name`; `first` and `second` offer them."""
    if first == second:
        return f"env.kwargs.tools lists {first} twice: remove one of the two entries."
    return (
        f"Two tools are called {name!r}, of {first} and of {second}: remove one of the two from "
        "env.kwargs.tools, or rename the tool where it is offered."
    )
