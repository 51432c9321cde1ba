"""`siirl serve`: its arguments, its token, and a server that a client reaches and Ctrl-C ends."""

import asyncio
import dataclasses
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openenv_client import play

from envs.openenv.openenv_env import OpenEnvEnv
from siirl.errors import ConfigError
from siirl.jobs.served_line import client_command
from siirl.params.command_words import split_words
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config
from siirl.serve import WORDS, ServerSettings, main, token_of
from siirl.train import main as train
from tests.env_server.openenv_thread import TOKEN, ServerThread
from tests.env_server.probe_envs import WalkEnv
from tests.envs.openenv.scripted_server import ScriptedServer


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["port=8000"], "No environment given. Set env=NAME"),
        (["envs=math"], "Unknown key 'envs' (command line). Did you mean 'env'?"),
        (["env=math", "port=80x"], "port=80x must be a whole number from 0 to 65535."),
        (["env=math", "sessions=0"], "sessions=0 must be a whole number from 1 to 1024."),
        (["env=math", "host="], "host= names no address"),
        (["env=math", "--port", "8001"], "Unknown flag '--port'. Write port=8000."),
        (["env=math", "--token-file=t"], "Unknown flag '--token-file=t'. Write token_file=t."),
        (["--plan"], "Unknown flag '--plan'. Known: --help."),
        (["env=mathh", "token_file={folder}/token"], "Did you mean 'math'?"),
        (["env=math", "env.kwargs.num_agents=2", "token_file={folder}/token"], "has 2 agents"),
        (
            ["env=math", "env.kwargs.a=1", "host=256.1.1.1"],
            "Cannot listen at host=256.1.1.1 port=8000 (",
        ),
        (["env=math", "env.kwargs.a=1", f"host={64 * 'a'}"], "use an address of this machine,"),
        (["env=math", "token_file=/proc/token"], "Name a file in a folder that you can write"),
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
        ("root:x:0:0:a user\n", 0o644, "name another file"),  # and not: chmod 600 /etc/passwd
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
    settings = ServerSettings.of(split_words([], WORDS)[0])
    assert (settings.host, settings.port, settings.sessions) == ("127.0.0.1", 8000, 4)


ROOT = Path(__file__).resolve().parents[1]


def start(*words: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "siirl.serve", *words, "port=0", "token_file=token"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_served_episode_is_played_and_ctrl_c_ends_the_server(tmp_path: Path) -> None:
    process = start("env=math", "env.tasks=[sums-1]", "cluster=local", folder=tmp_path)
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
    assert "SIGINT ends the server within trainer.grace_s=" in errors
    assert "Traceback" not in errors


def client_words(
    *words: str, token_file: str = "/a/token", url: str = "http://127.0.0.1:8000"
) -> list[str]:
    """Words after `siirl train` of the line that a server of this environment prints."""
    config = parse_config([*words, "cluster=local"])
    command = client_command(
        config.env,
        describe_env(config),
        url=url,
        token_file=token_file,
        sessions=4,
    )
    siirl, train, *line = shlex.split(command)
    assert (siirl, train) == ("siirl", "train")
    return line


@pytest.mark.parametrize(
    ("env", "policy", "path", "rollout", "reward"),
    [
        ("env=metaworld", "tiny_vla", "assets/tiny_vla", "embodied", "success"),
        ("env=metaworld env.image_size=96", "tiny_vla", None, "embodied", "success"),
        ("env=gymnasium env.id=CartPole-v1", "tiny_vla", None, "embodied", "return"),
        ("env=math", "causal_lm", "assets/tiny_lm", "hf", "success"),
        ("env=tools", "causal_lm", "assets/tiny_lm_tools", "hf", "success"),
    ],
)
def test_the_printed_line_trains_as_the_environments_own_preset(
    env: str, policy: str, path: str | None, rollout: str, reward: str
) -> None:
    client = parse_config(client_words(*env.split()))
    here = parse_config(["pipeline=grpo", *env.split()])
    model = client.actor_rollout_ref.model
    assert (model.policy, model.path) == (policy, path)
    assert (client.actor_rollout_ref.rollout.name, client.reward.name) == (rollout, reward)
    assert client.trainer == here.trainer
    assert client.data == here.data or rollout == "embodied"
    assert client.env.kwargs == {"token_file": "/a/token"}
    assert client.env.num_servers * client.env.envs_per_server == 4  # the server's sessions


@pytest.mark.parametrize("preset", ["fetch_reach", "fetch_push", "robosuite_lift"])
def test_the_printed_line_has_the_reward_of_a_preset(preset: str) -> None:
    """Their packages are not needed: a preset is known by its id, and another spec with success
    stands in.
    """
    spec = describe_env(parse_config(["env=gymnasium", "env.id=CartPole-v1"]))
    command = client_command(
        parse_config([f"env={preset}", "cluster=local"]).env,
        dataclasses.replace(spec, reports_success=True),
        url="http://127.0.0.1:8000",
        token_file="/a/token",
        sessions=4,
    )
    assert "reward=success" in shlex.split(command)


CHAINED = {
    "gymnasium": ({"id": "CartPole-v1"}, "tiny_vla", "embodied", "return"),
    "metaworld": ({"tasks": ["reach"], "image_size": 16}, "tiny_vla", "embodied", "success"),
    "math": ({"tasks": ["sums-1"]}, "causal_lm", "hf", "success"),
    "tests.env_server.probe_envs:WalkEnv": ({}, "tiny_vla", "embodied", "success"),
    f"{__name__}:ScoredEnv": ({}, "tiny_vla", "embodied", "return"),
}


class ScoredEnv(WalkEnv):
    """Reports no success."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.spec = dataclasses.replace(self.spec, reports_success=False)


@pytest.mark.parametrize("name", CHAINED)
def test_a_server_in_front_of_another_prints_a_line_that_a_plan_accepts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, policy, rollout, reward = CHAINED[name]
    (tmp_path / "token").write_text(TOKEN)
    token_file = str(tmp_path / "token")
    with ServerThread(name, **arguments) as first:
        behind = {"url": first.url, "token_file": token_file}
        with ServerThread("openenv", **behind) as second:
            address = f"env.url={first.url}"
            words = client_words(
                "env=openenv",
                address,
                f"env.kwargs.token_file={token_file}",
                token_file=token_file,
                url=second.url,
            )
            assert train(["--plan", *words]) == 0, capsys.readouterr().err
    client = parse_config(words)
    assert client.actor_rollout_ref.model.policy == policy
    assert (client.actor_rollout_ref.rollout.name, client.reward.name) == (rollout, reward)


def test_a_server_in_front_of_another_kind_of_server_prints_the_line_of_texts() -> None:
    with ScriptedServer(lambda _: None) as server:
        line = client_words("env=openenv", f"env.url={server.url}")
    client = parse_config(line)
    assert client.actor_rollout_ref.rollout.name == "hf"
    assert client.reward.name == "return"


def test_a_token_in_a_folder_with_blanks_and_quotes_stays_one_path() -> None:
    words = client_words("env=math", token_file="/home/ann's files/token")
    assert parse_config(words).env.kwargs["token_file"] == "/home/ann's files/token"


FEW_STEPS = (
    *("cluster=local", "trainer.total_steps=2", "trainer.val_episodes=2", "trainer.test_freq=-1"),
    *("trainer.val_before_train=false", "trainer.save_freq=-1", "data.train_batch_size=2"),
    *("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("env=metaworld", "env.tasks=[reach]", "env.max_episode_steps=16"),
        ("env=gymnasium", "env.id=CartPole-v1"),
        ("env=math",),
        ("env=tools",),
    ],
    ids=lambda words: words[0],
)
def test_the_line_that_a_server_prints_trains(words: tuple[str, ...], tmp_path: Path) -> None:
    server = start(*words, folder=tmp_path)
    assert server.stdout is not None
    try:
        lines = [server.stdout.readline() for _ in range(3)]
        word, siirl, train, *line = shlex.split(lines[2])
        assert (word, siirl, train) == ("client", "siirl", "train")
        run = subprocess.run(
            [sys.executable, "-m", "siirl.train", *line, *FEW_STEPS],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        metrics = next(tmp_path.glob("outputs/grpo/*/metrics.jsonl")).read_text()
        assert '"step": 2' in metrics
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate()


def test_the_documents_client_plays_an_episode_of_a_robot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = {"tasks": ["reach"], "max_episode_steps": 12, "image_size": 16}
    with ServerThread("metaworld", **arguments) as server:
        score, steps = asyncio.run(play(server.url, TOKEN, seed=7))
    assert (score, steps) == (0.0, 12)
    assert "uint8 (1, 16, 16, 3)" in capsys.readouterr().out
