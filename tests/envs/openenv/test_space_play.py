"""env=openenv with the spec of a siirl server: against a server with scripted answers."""

import asyncio
import dataclasses
from typing import Any

import pytest
from gymnasium import spaces

from envs.base import EnvSpec, EpisodeFailed
from envs.openenv.openenv_env import OpenEnvEnv
from envs.openenv.wire import SPEC, spec_to_json
from tests.envs.openenv.scripted_server import ScriptedServer, observed

WALK = EnvSpec(
    "walk", ("walk",), spaces.Discrete(3), spaces.Discrete(2), max_episode_steps=5, replayable=False
)
FLAGS = {"terminated": True, "truncated": False, "executed": 1}


async def last_info(url: str) -> dict[str, Any]:
    env = OpenEnvEnv(url=url)
    try:
        await env.reset(seed=1)
        return dict((await env.step(0))[-1])
    finally:
        await env.close()


def served(success: Any, *, spec: EnvSpec = WALK) -> ScriptedServer:
    """A server whose only step ends the episode with this `success`."""

    def answer(message: dict[str, Any]) -> Any:
        if message["type"] == "step":
            info = {**FLAGS, "success": success}
            return observed(1.0, done=True, observation=2, info=info)
        return observed(observation=1, info={"task": "walk"})

    return ScriptedServer(answer, action_schema={"properties": {}, SPEC: spec_to_json(spec)})


@pytest.mark.parametrize("success", [True, False])
def test_success_is_the_servers(success: bool) -> None:
    with served(success) as server:
        assert asyncio.run(last_info(server.url))["success"] is success


@pytest.mark.parametrize("success", ["yes", 1, 0.0, [True]])
def test_a_success_that_is_no_flag_fails_the_episode(success: Any) -> None:
    with (
        served(success) as server,
        pytest.raises(EpisodeFailed, match=r"wrong answer: success is .*, not true or false"),
    ):
        asyncio.run(last_info(server.url))


def test_an_environment_without_a_success_of_its_own_may_use_the_name() -> None:
    with served(0.5, spec=dataclasses.replace(WALK, reports_success=False)) as server:
        assert asyncio.run(last_info(server.url))["success"] == 0.5
