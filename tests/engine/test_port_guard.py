"""Ports without authentication: closed once ranks are connected, checked for foreign peers."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from torch import distributed

from siirl.engine.training.network import LOOPBACK
from siirl.engine.training.port_guard import admit_ranks_only, guard_new_ports, open_sockets
from siirl.errors import InvariantError
from tests.engine.knocking import knocked_at, ports, takes_connections
from tests.engine.ranks_at_work import run_on_ranks

STRANGER = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
    "print(s.getsockname()[1], flush=True); input()"
)


@contextlib.contextmanager
def stranger(port: int) -> Iterator[str]:
    """Another process that is connected to a port; yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", STRANGER, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield f"{LOOPBACK}:{process.stdout.readline().strip()}"
        process.communicate("\n")


def test_a_closed_port_accepts_no_connection_and_keeps_the_open_ones() -> None:
    with socket.create_server((LOOPBACK, 0)) as older, contextlib.ExitStack() as stack:
        with guard_new_ports():
            listener = stack.enter_context(socket.create_server((LOOPBACK, 0)))
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            far = stack.enter_context(listener.accept()[0])
        assert not takes_connections(listener.getsockname())
        assert takes_connections(older.getsockname())
        near.sendall(b"still there")
        assert far.recv(100) == b"still there"


def test_a_foreign_connection_ends_the_run() -> None:
    before = open_sockets()
    with (
        socket.create_server((LOOPBACK, 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0],
    ):
        admit_ranks_only(distributed.HashStore(), rank=0, ranks=1, before=before)
    with (
        socket.create_server((LOOPBACK, 0)) as listener,
        stranger(listener.getsockname()[1]) as end,
        listener.accept()[0],
        pytest.raises(
            InvariantError, match=f"A connection to rank 0 from {end} does not come from a rank"
        ),
    ):
        admit_ranks_only(distributed.HashStore(), rank=0, ranks=1, before=before)


def what_is_open(ranks) -> set[tuple[str, bool]]:
    return knocked_at(ports(psutil.Process()))


def test_ranks_of_one_machine_listen_on_the_loopback_and_accept_no_one_once_connected() -> None:
    # gloo's port of each rank; they met in a file
    assert run_on_ranks(what_is_open) == [{(LOOPBACK, False)}] * 2
