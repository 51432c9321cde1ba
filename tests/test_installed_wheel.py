"""The wheel in an empty virtual environment, installed by plain `pip install`, used from an empty
folder.

It takes minutes and a package index; where pip reaches none the tests are skipped.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import siirl
from envs.metaworld.metaworld_env import INSTALL

pytestmark = pytest.mark.slow

TINY = ("trainer=smoke", "trainer.total_steps=1")
WITHOUT_CHECKOUT = {
    name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
}
STARTS_WITHIN_S = 600.0  # only a hang takes longer


class Environment:
    """A virtual environment with nothing but what pip installed for the wheel."""

    def __init__(self, folder: Path) -> None:
        self.scripts = folder / "bin"

    def run(self, program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of its scripts."""
        command = [str(self.scripts / program), *words]
        return subprocess.run(
            command, cwd=cwd, env=WITHOUT_CHECKOUT, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    made = Environment(folder)
    if (
        made.run(
            "pip", "download", "--no-deps", "--dest", str(folder / "tried"), "packaging", cwd=folder
        ).returncode
        != 0
    ):
        pytest.skip("pip reaches no package index")
    done = made.run("pip", "install", "--quiet", str(wheel), cwd=folder)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def with_simulator(
    environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Installs Meta-World by the command that the refusal prints."""
    python, *words = shlex.split(INSTALL)
    done = environment.run(python, *words, cwd=tmp_path_factory.mktemp("anywhere"))
    assert done.returncode == 0, done.stderr
    return environment


def test_pip_finds_no_conflict_and_the_command_its_version(
    environment: Environment, tmp_path: Path
) -> None:
    assert environment.run("pip", "check", cwd=tmp_path).returncode == 0
    assert (
        environment.run("siirl", "--version", cwd=tmp_path).stdout == f"siirl {siirl.__version__}\n"
    )


def test_the_extra_with_metaworld_has_a_solution(environment: Environment, wheel: Path) -> None:
    done = environment.run(
        "pip", "install", "--dry-run", "--quiet", f"{wheel}[metaworld]", cwd=wheel.parent
    )
    assert done.returncode == 0, done.stderr


def test_without_metaworld_the_demo_job_is_refused_with_the_command_that_installs_it(
    environment: Environment, tmp_path: Path
) -> None:
    done = environment.run("siirl", "train", *TINY, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"env=metaworld needs the package metaworld, which is not installed. Type: {INSTALL}"
        in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_the_demo_job_takes_a_step(with_simulator: Environment, tmp_path: Path) -> None:
    done = with_simulator.run("siirl", "train", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "outputs" / "embodied_srpo").iterdir()
    assert [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ][-1] == 1
    assert (folder / "report.html").is_file()
    assert (
        with_simulator.run("siirl", "report", str(folder), cwd=tmp_path).stdout
        == f"{folder / 'report.html'}\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_script_with_its_status_and_a_checkpoint(
    with_simulator: Environment, tmp_path: Path, number: signal.Signals
) -> None:
    job = ("trainer=smoke", "trainer.total_steps=2000", "trainer.val_episodes=0", "cluster=local")
    command = [str(with_simulator.scripts / "siirl"), "train", *job]
    with (tmp_path / "text").open("w") as text:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=WITHOUT_CHECKOUT,
            stdout=text,
            stderr=text,
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTS_WITHIN_S
    while not any(path.stat().st_size for path in tmp_path.glob("outputs/*/*/metrics.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None, (
            tmp_path / "text"
        ).read_text()
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(timeout=STARTS_WITHIN_S) == 128 + number
    assert "siirl: interrupted\nThe last checkpoint is " in (tmp_path / "text").read_text()
