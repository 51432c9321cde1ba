"""A scripted server that plays an episode, and its first step through env=openenv."""

import asyncio
from typing import Any

import pytest

from envs.base import EpisodeFailed
from envs.openenv.openenv_env import OpenEnvEnv
from tests.envs.openenv.scripted_server import ScriptedServer, error, observed

Message = dict[str, Any]
SHORT_S = 2.0  # of an answer that never comes; others take milliseconds
NO_TOOLS = error("UNKNOWN_TYPE", "Unknown message type: mcp")


class Echo:
    """Shows a word; the right repetition has reward 1, the third wrong one ends the episode."""

    def __init__(self, step: Any = None) -> None:
        """`step`: answers steps instead."""
        self._step, self._word, self._left = step, "", 0

    def __call__(self, message: Message) -> Any:
        """Answer one message."""
        match message:
            case {"type": "reset", "data": data}:
                self._word, self._left = f"word{data.get('seed')}", 3
                return observed(heard=f"Repeat {self._word}.")
            case {"type": "step"} if callable(self._step):
                return self._step(message)
            case {"type": "step", "data": {"message": said}}:
                self._left -= 1
                right = said == self._word
                return observed(float(right), done=right or self._left == 0, heard="no")
            case {"type": "mcp"}:
                return NO_TOOLS
        return None


def after_reset(step: Any) -> Echo:
    """A server that begins every episode and answers every step with `step`."""
    return Echo(step if callable(step) else lambda _: step)


async def first_step(server: ScriptedServer, text: str = "x", **arguments: Any) -> Any:
    env = OpenEnvEnv(url=server.url, **arguments)
    try:
        await env.reset(seed=1)
        return await env.step(text)
    finally:
        await env.close()


def failure_of(answer: Any, **arguments: Any) -> str:
    """The error of an episode whose first step gets this answer."""
    with ScriptedServer(after_reset(answer)) as server, pytest.raises(EpisodeFailed) as failed:
        asyncio.run(first_step(server, **arguments))
    return str(failed.value).replace(server.url, "URL")
