"""Protects the Ray instance of a run from other users of the machine: address, token, folder.

By default Ray 2.60 listens on all interfaces, and its session below /tmp/ray is writable by all
users. Here it listens on the loopback only, requires a token that only this run has, and keeps its
session in a folder that only this user may enter. An existing cluster is the responsibility of its
administrator (docs/clusters.md).
"""

import fcntl
import logging
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from siirl.files.socket_paths import socket_folder

logger = logging.getLogger(__name__)

PRIVATE_FOLDER = "SIIRL_PRIVATE_FOLDER"
"""Environment variable of a run's processes: the folder of its Ray, also used for other private
files.
"""

PREFIX = "siirl-ray-"
# each of Ray's processes opens this folder to all users (0777); the folder around it stays private
SESSION = "r"
LONGEST_SOCKET = (
    f"{PREFIX}12345678/{SESSION}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
)


def private_environment() -> dict[str, str]:
    """Environment variables of a private Ray; Ray reads them at import."""
    return {
        # Ray's switch to listen at 127.0.0.1 only, named after the systems where that is the
        # default.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # The autoscaler serves its metrics without asking for the token. This is not a valid port,
        # so Ray continues without serving them.
        "AUTOSCALER_METRIC_PORT": "-1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder of mode 0700, deleted at the end; also deletes folders of killed runs."""
    parent = _parent_folder()
    _delete_abandoned(parent)
    folder, lock = _new_locked(parent)
    try:
        yield folder
    finally:
        # Files that a dying process still writes are deleted at the next start.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def keep_token_private() -> None:
    """Remove other users' rights on ~/.ray/auth_token, which Ray 2.60 writes with mode 0644."""
    token = Path.home() / ".ray" / "auth_token"
    if not token.is_file() or token.stat().st_uid != os.getuid():
        return
    mode = stat.S_IMODE(token.stat().st_mode)
    if mode & 0o077:
        token.chmod(0o600)
        logger.warning(
            "%s had mode %o: other users of this machine could read Ray's token. It now has mode "
            "600. Replace the token if that matters: delete the file, `umask 077; ray "
            "get-auth-token --generate`, and start the cluster again.",
            token,
            mode,
        )


def _parent_folder() -> Path:
    """Ray's default folder for sessions, if the paths of its sockets fit."""
    return Path(socket_folder(LONGEST_SOCKET, wanted=os.environ.get("RAY_TMPDIR")))


def _new_locked(parent: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock as long as this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, lock
        os.close(lock)  # another process took it for abandoned before it was locked


def _delete_abandoned(parent: Path) -> None:
    """Delete this user's folders whose process has ended: their lock is free."""
    for folder in parent.glob(f"{PREFIX}????????"):
        with suppress(OSError):  # another user's, or being deleted by another process
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
