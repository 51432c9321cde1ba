"""The task of env=openenv is the environment's name, which its server reports, at any address."""

import asyncio
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from envs.base import ServerAway
from envs.openenv.description import describe
from envs.openenv.openenv_env import OpenEnvEnv
from siirl.data_coordinator.task_stream import TaskLoader
from siirl.errors import CheckpointError
from tests.envs.openenv.echo_server import Echo
from tests.envs.openenv.scripted_server import SAY, ScriptedServer


def tasks_of(metadata: Any, **server: Any) -> tuple[str, ...]:
    """Tasks of an environment whose server answers /metadata with this."""
    with ScriptedServer(Echo(), metadata=metadata, **server) as running:
        return OpenEnvEnv(url=running.url).spec.tasks


def stream_of(metadata: Any) -> TaskLoader:
    return TaskLoader(tasks=tasks_of(metadata), prompts_per_step=4, seed=1)


def test_a_stream_is_resumed_when_the_server_comes_back_at_another_address() -> None:
    first, second = (stream_of({"name": "Echo"}) for _ in range(2))
    first.draw(4)
    second.load_state_dict(first.state_dict())
    assert second.position == 4


def test_a_stream_of_another_environment_is_refused() -> None:
    saved = stream_of({"name": "Echo"}).state_dict()
    with pytest.raises(CheckpointError, match=r"has tasks \[Echo\], but this run has \[Chess\]"):
        stream_of({"name": "Chess"}).load_state_dict(saved)


def test_infos_name_the_environment_as_task_and_data_source() -> None:
    async def play(url: str) -> list[Any]:
        env = OpenEnvEnv(url=url)
        _, opening = await env.reset(seed=1, options={"task": "Echo"})
        info = (await env.step("word1"))[4]
        await env.close()
        return [opening["task"], opening["data_source"], info["task"]]

    with ScriptedServer(Echo(), metadata={"name": " Echo "}) as server:
        assert asyncio.run(play(server.url)) == ["Echo", "Echo", "Echo"]


@pytest.mark.parametrize(
    "metadata",
    [None, [], "Echo", {}, {"name": 5}, {"name": " "}, {"name": "a\nb"}, {"name": 101 * "a"}],
    ids=lambda value: str(value)[:20],
)
def test_a_server_that_reports_no_name_has_the_task_openenv(metadata: Any) -> None:
    assert tasks_of(metadata) == ("openenv",)


@pytest.mark.parametrize("status", [HTTPStatus.FORBIDDEN, HTTPStatus.INTERNAL_SERVER_ERROR])
def test_a_server_that_refuses_to_report_a_name_has_the_task_openenv(status: HTTPStatus) -> None:
    assert tasks_of({"name": "Echo"}, metadata_status=status) == ("openenv",)


def test_a_name_that_is_away_is_waited_for_and_not_replaced() -> None:
    """A proxy whose server restarts; another name would refuse the checkpoint."""
    with pytest.raises(ServerAway, match="/metadata answers with status 503") as away:
        tasks_of({"name": "Echo"}, metadata_status=HTTPStatus.SERVICE_UNAVAILABLE)
    assert away.value.patience_s > 0


class HangsUp(BaseHTTPRequestHandler):
    """Answers /schema, and closes the connection at /metadata."""

    def do_GET(self) -> None:
        if self.path == "/schema":
            self.send_response(HTTPStatus.OK)
            self.end_headers()
            self.wfile.write(json.dumps({"action": SAY}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_server_that_hangs_up_at_its_name_is_not_called_absent() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), HangsUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ServerAway, match=f"does not answer {url}/metadata .*or status 404"):
            describe(url, token=None, deadline_s=5.0)
        server.shutdown()
