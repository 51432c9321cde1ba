"""`siirl serve`: its arguments, its token, and a server that a client reaches and Ctrl-C ends."""

import asyncio
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from openenv_client import play

from envs.openenv.openenv_env import OpenEnvEnv
from siirl.errors import ConfigError
from siirl.params.own_words import split_words
from siirl.serve import WORDS, Place, main, token_of
from tests.env_server.openenv_thread import TOKEN, ServerThread


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["port=8000"], "No environment given. Set env=NAME"),
        (["env=math", "port=80x"], "port=80x must be a whole number from 0 to 65535."),
        (["env=math", "sessions=0"], "sessions=0 must be a whole number from 1 to 1024."),
        (["env=math", "host="], "host= names no address"),
        (["env=math", "--port", "8000"], "Unknown flag '--port'"),
        (["env=mathh", "token_file={folder}/token"], "Did you mean 'math'?"),
        (["env=math", "env.kwargs.num_agents=2", "token_file={folder}/token"], "has 2 agents"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_refused_before_a_port_is_opened(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [word.format(folder=tmp_path) for word in words]
    assert main([*line, "cluster=local"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_new_token_is_its_owners_alone_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "token"
    token = token_of(file)
    assert len(token) >= 32 and token_of(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("a-token-of-a-user\n", 0o644, "can be read by other users (mode 644): chmod 600"),
        ("short", 0o600, "holds no token of at least 16 visible characters"),
        ("", 0o600, "holds no token"),
    ],
)
def test_a_token_that_protects_nothing_is_refused(
    text: str, mode: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        token_of(tmp_path / "token")


def test_without_words_the_server_listens_on_this_machine_alone() -> None:
    place = Place.of(split_words([], WORDS)[0])
    assert (place.host, place.port, place.sessions) == ("127.0.0.1", 8000, 4)


def test_a_served_episode_is_played_and_ctrl_c_ends_the_server(tmp_path: Path) -> None:
    line = ("env=math", "env.tasks=[sums-1]", "cluster=local", "port=0", "token_file=token")
    process = subprocess.Popen(
        [sys.executable, "-m", "siirl.serve", *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]

    async def score() -> float:
        env = OpenEnvEnv(url=url, token_file=str(tmp_path / "token"))
        await env.reset(seed=1)
        reward = (await env.step("x"))[1]
        await env.close()
        return float(reward)

    assert asyncio.run(score()) == 0.0
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in errors


def test_the_documents_client_plays_an_episode_of_a_robot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = {"tasks": ["reach"], "max_episode_steps": 12, "image_size": 16}
    with ServerThread("metaworld", **arguments) as server:
        score, steps = asyncio.run(play(server.url, TOKEN, seed=7))
    assert (score, steps) == (0.0, 12)
    assert "uint8 (1, 16, 16, 3)" in capsys.readouterr().out
