"""What `ToolEnv` asks of whoever brings tools: descriptions, calls that answer with text, and a
fresh start with each episode.

A tool that fails says so with `ToolError`, whose text the model reads. Tools that are not there at
all say so with `ToolsMissing`: the episode is counted as failed. Anything else that is raised is a
fault of the environment.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import EpisodeFailed
from envs.tools.calls import ToolDescription


class ToolError(RuntimeError):
    """A call failed, and the model is told so: wrong arguments, an exception in the tool, a
    deadline, a server that died.
    """


class ToolsMissing(EpisodeFailed):
    """The tools themselves cannot be had, by no fault of the model: a server that does not start, a
    sandbox that breaks down.

    It costs the episode that needed them and no other. The next one tries again, so tools that
    never come stop the run by the number of episodes that failed, with this message.
    """


class Toolset(abc.ABC):
    """One tool, or several that live together."""

    replayable: bool = True
    """Whether the same calls in the same episode get the same answers."""

    @abc.abstractmethod
    async def descriptions(self) -> Sequence[ToolDescription]:
        """The tools; the same ones for the whole life of this object.

        Raises:
            ToolsMissing: They cannot be had.
        """

    @abc.abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call of one of `descriptions`, within a deadline of this object's own.

        Raises:
            ToolError: The call failed; the model is told.
            ToolsMissing: The tools themselves are not there.
        """

    async def start_episode(self) -> None:  # noqa: B027  (optional: most tools keep nothing)
        """Forget whatever an earlier episode left."""

    async def close(self) -> None:  # noqa: B027  (optional)
        """Release processes; may be called twice."""
