"""openenv-core 0.3.0 as the peer: its clients against `siirl serve`, and its server, of a
document, behind env=openenv.

The package has dependencies that siirl's lock does not fit (gradio, fastmcp), so it is installed
into a separate environment. An interpreter that has it may be named in OPENENV_PYTHON.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envs.checker import check_env
from envs.openenv.openenv_env import OpenEnvEnv
from tests.docs.test_examples import steps
from tests.env_server.openenv_thread import TOKEN, ServerThread

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "openenv-core==0.3.0"
GIVE_UP_S = 1500.0  # only a hang takes longer

CLIENT = """
import json, sys
from openenv.core.generic_client import GenericEnvClient
url, actions = sys.argv[1], json.loads(sys.argv[2])
with GenericEnvClient(base_url=url).sync() as env:
    result = env.reset(seed=7)
    values = [[result.observation, result.reward, result.done]]
    for action in actions:
        result = env.step(action)
        values.append([result.observation, result.reward, result.done])
    print(json.dumps([values, env.state()]))
"""
TWO_CLIENTS = """
import sys
from openenv.core.generic_client import GenericEnvClient
with GenericEnvClient(base_url=sys.argv[1]).sync() as first:
    first.reset()
    with GenericEnvClient(base_url=sys.argv[1]).sync() as second:
        try:
            second.reset()
        except RuntimeError as error:
            print(error)
"""
TOOLS = """
import sys, uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
class Tools(MCPEnvironment):
    def __init__(self):
        server = FastMCP("tools")
        @server.tool
        def add(a: int, b: int) -> int:
            return a + b
        @server.tool
        def long(megabytes: int) -> str:
            return "x" * (megabytes << 20)
        super().__init__(server)
    def reset(self, seed=None, episode_id=None, **_):
        return Observation()
    async def step_async(self, action, timeout_s=None, **_):
        result = await super().step_async(action, timeout_s)
        result.reward = 0.5
        return result
    def _step_impl(self, action, timeout_s=None, **_):
        return Observation()
    @property
    def state(self):
        return State()
app = create_fastapi_app(Tools, CallToolAction, CallToolObservation)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has openenv-core."""
    named = os.environ.get("OPENENV_PYTHON")
    if named is not None:
        return named
    folder = tmp_path_factory.mktemp("openenv")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    made = subprocess.run(
        [str(folder / "bin" / "pip"), "install", "--quiet", PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"pip cannot install {PACKAGE}: {made.stderr[-200:]}")
    return str(folder / "bin" / "python")


@contextmanager
def serving(python: str, *words: str) -> Iterator[str]:
    """The address of a server of openenv-core."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([python, *words, str(port)])
    try:
        give_up = time.monotonic() + GIVE_UP_S
        while True:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < give_up
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def played(python: str, address: str, actions: list[Any]) -> list[Any]:
    """What openenv-core's client sees of an episode."""
    done = subprocess.run(
        [python, "-c", CLIENT, address, json.dumps(actions)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_its_client_plays_a_robot_of_siirl(python: str) -> None:
    arguments = {"tasks": ["reach"], "max_episode_steps": 3, "image_size": 16}
    actions = [{"action": [0.1, 0.2, 0.0, 1.0]}] * 3
    with ServerThread("metaworld", **arguments) as server:
        values, state = played(python, f"http://siirl:{TOKEN}@127.0.0.1:{server.port}", actions)
    assert values[0][0]["images"]["shape"] == [1, 16, 16, 3]
    assert [done for _, _, done in values] == [False, False, False, True]
    assert (state["step_count"], state["seed"]) == (3, 7)


def test_its_client_plays_siirl_serve_with_a_process_for_the_session(
    python: str, tmp_path: Path
) -> None:
    line = ("env=math", "env.tasks=[sums-1]", "port=0", "sessions=1", "token_file=token")
    process = subprocess.Popen(
        [sys.executable, "-m", "siirl.serve", *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    port = re.findall(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())[0]
    token = (tmp_path / "token").read_text().strip()
    values, _ = played(python, f"http://siirl:{token}@127.0.0.1:{port}", [{"text": "x"}])
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert values[1][1:] == [0.0, True]
    assert process.returncode == 128 + signal.SIGINT


def test_its_client_without_a_free_session_reads_the_remedy(python: str) -> None:
    with ServerThread("math", sessions=1, tasks=["sums-1"]) as server:
        address = f"http://siirl:{TOKEN}@127.0.0.1:{server.port}"
        done = subprocess.run(
            [python, "-c", TWO_CLIENTS, address], capture_output=True, text=True, check=False
        )
    assert "all 1 sessions are in use: start siirl serve with more" in done.stdout, done.stderr


def test_the_documents_server_keeps_the_contract_and_trains(python: str, tmp_path: Path) -> None:
    with serving(python, str(REPOSITORY / "docs" / "examples" / "openenv_server.py")) as url:
        check_env(OpenEnvEnv(url=url), seed=3)
        (metrics,) = steps(tmp_path, "pipeline=grpo", "env=openenv", f"env.url={url}")
    assert metrics["rollout/episodes"] > 0


def test_tools_of_its_server_are_called_and_ten_mebibytes_arrive(python: str) -> None:
    async def play(url: str) -> list[Any]:
        env = OpenEnvEnv(url=url, instructions="Add.", max_observation_characters=100)
        await env.reset(seed=1)
        call = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'
        answers = [
            await env.step(call.format("add", '{"a": 2, "b": 3}')),
            await env.step(call.format("long", '{"megabytes": 10}')),
            await env.step("5"),
        ]
        await env.close()
        return answers

    with serving(python, "-c", TOOLS) as url:
        added, long, final = asyncio.run(play(url))
    assert added[0]["messages"] == [{"role": "tool", "content": "5"}]
    assert long[0]["messages"][0]["content"].endswith(f"({(10 << 20) - 100} more characters)")
    assert (added[1], final[1:4]) == (0.5, (0.0, True, False))
