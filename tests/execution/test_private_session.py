"""A folder that no other user enters, gone with the run or the next one, and Ray's token of mode
0600.
"""

import logging
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from siirl.execution.scheduler.private_session import (
    keep_token_private,
    private_environment,
    private_folder,
)

HOLDS_A_FOLDER = """
import signal
from siirl.execution.scheduler.private_session import private_folder
with private_folder() as folder:
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parent of the test's folders; short, because paths of sockets are limited."""
    place = Path("/tmp") / f"p{os.getpid()}"
    place.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    yield place
    place.rmdir()  # nothing may be left in it


def holder() -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a folder until it is killed, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_FOLDER], stdout=subprocess.PIPE, text=True
    )
    return process, Path(process.stdout.readline().strip())


def test_the_folder_is_the_users_alone_and_gone_at_the_end(place: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == place
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "r").mkdir()
        (folder / "r" / "log").write_text("words")
    assert not folder.exists()


def test_the_next_start_removes_folders_of_killed_processes_and_keeps_those_of_running_ones(
    place: Path,
) -> None:
    killed, left = holder()
    living, kept = holder()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert left.is_dir()
    with private_folder() as folder:
        assert sorted(place.iterdir()) == sorted([kept, folder])
    living.kill()
    living.wait()
    with private_folder():
        assert not kept.exists()


def test_a_place_with_too_long_a_name_for_sockets_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 40)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    with private_folder() as folder:
        assert folder.parent == Path("/tmp")
        socket = (
            folder / "r" / "session_2026-01-01_00-00-00_000000_4194304" / "sockets" / "plasma_store"
        )
        assert len(str(socket)) <= 107


def test_every_run_has_a_token_of_256_bits_for_itself() -> None:
    tokens = {private_environment()["RAY_AUTH_TOKEN"] for _ in range(10)}
    assert len(tokens) == 10
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ray's token as Ray writes it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text("ab" * 32)
    file.chmod(0o644)
    return file


def test_a_token_that_others_can_read_is_shut_with_one_warning(
    token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        keep_token_private()
        keep_token_private()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    (warning,) = caplog.messages
    assert f"{token} had mode 644" in warning
    assert "ray get-auth-token --generate" in warning


def test_without_a_token_nothing_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_token_private()
    assert not caplog.messages


IMPORTED_BEFORE = """
import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationMode, AuthenticationTokenLoader, get_authentication_mode
from siirl.execution.scheduler.ray_session import ClusterSettings, prepare_environment

def read():
    token = AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True)
    asks = get_authentication_mode() == AuthenticationMode.TOKEN
    return asks, ray_constants.ENABLE_RAY_CLUSTER, token

before = read()
prepare_environment(ClusterSettings(address=None, env_vars={}))
print([first != second for first, second in zip(before, read())], read()[:2])
"""


def test_a_ray_that_was_imported_before_takes_the_runs_token_and_the_loopback(token: Path) -> None:
    """A user's module may import Ray, and a token of another cluster may lie in the home folder."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_BEFORE], env=mine, capture_output=True, text=True
    )
    assert done.stdout == "[True, True, True] (True, False)\n", done.stderr
