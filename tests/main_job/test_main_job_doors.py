"""Another user of this machine reaches no port or socket of a run of two ranks; all are tried."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from siirl.execution.scheduler.private_session import PREFIX

TWO_RANKS = (
    "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.rollout.n=4",
    "env.num_servers=2",
    "trainer.total_steps=1000",
)
LOOPBACK = ("127.0.0.1", "::ffff:127.0.0.1")
NOBODY = 65534
SERVERS = (
    "gcs_server",
    "raylet/raylet",
    "ray::_Rank",
    "ray::EnvServerActor",
    "ray::CoordinatorActor",
)


def stranger(ports: Iterable[str]) -> dict[str, str]:
    """Answers that a process without the run's environment gets from ports, which know no users
    (see `stranger.py`).
    """
    command = [sys.executable, str(Path(__file__).with_name("stranger.py")), *ports]
    asked = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(ports, asked.stdout.split(), strict=True))


def sockets_of(run) -> dict[str, list]:
    """Listening sockets, and those that take datagrams, by the title of their process."""
    found: dict[str, list] = {}
    for pid, title in run.processes().items():
        for each in psutil.Process(pid).net_connections("inet"):
            if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                found.setdefault(title, []).append(each.laddr)
    return found


@pytest.fixture
def run(start_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run of two ranks that is training, with a separate home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    started = start_run(*TWO_RANKS)
    started.wait_until(lambda: bool(started.checkpoints()))
    return started


def test_another_user_reaches_nothing_of_a_run(run, tmp_path: Path) -> None:
    sockets = sockets_of(run)
    # all of them were looked at
    assert all(any(server in title for title in sockets) for server in SERVERS), sorted(sockets)
    addresses = {
        title: {address.ip for address in addresses} for title, addresses in sockets.items()
    }
    assert all(found <= set(LOOPBACK) for found in addresses.values()), addresses
    ports = {
        str(address.port): title for title, addresses in sockets.items() for address in addresses
    }
    got = stranger(ports)
    assert set(got.values()) == {"deaf", "token"}, {ports[port]: word for port, word in got.items()}
    # gloo's
    assert {ports[port] for port, word in got.items() if word == "deaf"} == {"ray::_Rank.run"}
    assert not (tmp_path / ".ray").exists()  # the token is in the processes alone

    (folder,) = {
        Path(part[: part.index("/r/")]) for part in unix_sockets_of(run) if f"/{PREFIX}" in part
    }
    assert [path for path in unix_sockets_of(run) if not path.startswith(f"{folder}/")] == []
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
    if os.getuid() == 0:  # otherwise there is no other user to try it as
        asked = subprocess.run(
            ["ls", folder],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Permission denied" in asked.stderr


def unix_sockets_of(run) -> set[str]:
    """Paths of the listening unix sockets of all processes."""
    listening = {
        line.split()[6]: line.split()[7]
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]
        if is_path(line)
    }
    held = {
        os.readlink(file)
        for pid in run.processes()
        for file in Path(f"/proc/{pid}/fd").iterdir()
        if file.is_symlink()
    }
    return {path for inode, path in listening.items() if f"socket:[{inode}]" in held}


def is_path(line: str) -> bool:
    """Whether a line of /proc/net/unix is of a socket that listens at a path or at an abstract
    name.
    """
    entries = line.split()
    return len(entries) == 8 and entries[3] == "00010000"  # __SO_ACCEPTCON
