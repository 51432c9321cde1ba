"""The MCP server of a document, and the command beside it that trains with its tool."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.code_blocks import blocks
from tests.docs.test_examples import EXAMPLES, REPOSITORY, steps
from tests.listening_port import wait_for_server

BLOCK = next(block for block in blocks(REPOSITORY) if Path(__file__).name in block.words)
SERVER, TRAIN = BLOCK.commands


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port at which the document's first command serves, a free one here."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        chosen = int(free.getsockname()[1])
    python, script, _ = SERVER
    assert python == "python"
    server = subprocess.Popen(
        [sys.executable, script, str(chosen)],
        cwd=EXAMPLES,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_server(chosen)
        yield chosen
    finally:
        server.kill()
        server.wait()


def test_the_documented_command_trains_a_step_with_the_tool_announced(
    port: int, tmp_path: Path
) -> None:
    siirl, train, *line = TRAIN
    assert (siirl, train) == ("siirl", "train")
    at_port = [word.replace(f":{SERVER[-1]}/", f":{port}/") for word in line]
    assert at_port != line
    (metrics,) = steps(tmp_path, *at_port)
    assert (metrics["rollout/episodes"], metrics["env/failed_episodes"]) == (8, 0)
