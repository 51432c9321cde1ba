"""Closes the ports that gloo and torch's store leave open without authentication.

gloo listens on a port for the life of its group, and accepts any peer that sends the number it
expects from another rank. These numbers count up from 0, so they are guessable. PyPI's torch is
built without gloo's TLS. This module therefore does two things once the ranks have connected. It
makes the kernel drop all further packets to the listening ports. It also publishes the ranks'
connections in their store: an incoming connection that no rank holds is foreign, and ends the run
before anything is sent.

Groups that are made later (`GroupOfProcesses.mesh`) connect at once, so their ports are closed too,
without the check of their peers. Left out: encryption.
"""

import ctypes
import json
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed

from siirl.errors import InvariantError

ESTABLISHED, LISTENING = "ESTABLISHED", "LISTEN"  # psutil's names
SO_ATTACH_FILTER = 26  # include/uapi/asm-generic/socket.h; not in Python's socket module
# One instruction of classic BPF: return 0, which keeps no byte (linux/filter.h).
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)


def open_sockets() -> frozenset[int]:
    """Descriptors of this process's TCP sockets."""
    return frozenset(each.fd for each in _tcp())


@contextmanager
def guard_new_ports() -> Iterator[None]:
    """Drop incoming packets at the ports opened within, once their peers have connected."""
    before = open_sockets()
    yield
    drop_incoming(_listeners(_opened_since(before)))


def guard_all_ports() -> None:
    """Drop incoming packets at every port of this process; its peers have connected."""
    drop_incoming(_listeners(_tcp()))


def drop_incoming(listeners: Iterable[int]) -> None:
    """Drop packets that arrive at these listening sockets; existing connections stay.

    The sockets are not closed: gloo's thread would abort the process.
    """
    instruction = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
    # struct sock_fprog: number of instructions, address
    program = struct.pack("HL", 1, ctypes.addressof(instruction))
    for descriptor in listeners:
        with socket.socket(fileno=socket.dup(descriptor)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def admit_ranks_only(
    store: distributed.Store, *, rank: int, ranks: int, before: Collection[int]
) -> None:
    """Guard the ports opened since `before`, and check that only ranks are connected to them.

    Args:
        store: The store of the ranks.
        rank: Number of this process.
        ranks: Number of processes; all call this after they have connected.
        before: `open_sockets` from before they connected.

    Raises:
        InvariantError: A process that is not a rank is connected to one of the ports.
    """
    drop_incoming(_listeners(_opened_since(before)))  # first: the check below misses later peers
    opened = _opened_since(before)
    connected = [each for each in opened if each.status == ESTABLISHED]
    store.set(_key(rank), json.dumps([_end(each.laddr) for each in connected]))
    ends_of_ranks: set[str] = set()
    for other in range(ranks):
        ends_of_ranks.update(json.loads(store.get(_key(other))))
    listening = {_end(each.laddr) for each in opened if each.status == LISTENING}
    peers = {_end(each.raddr) for each in connected if _end(each.laddr) in listening}
    foreign = peers - ends_of_ranks
    if foreign:
        raise InvariantError(
            f"A connection to rank {rank} from {', '.join(sorted(foreign))} does not come from a "
            "rank: another user of this machine or network has connected to the run. Nothing was "
            "sent. Identify that process, and start again."
        )


def _key(rank: int) -> str:
    return f"siirl/connections/{rank}"


def _end(address: tuple[str, int]) -> str:
    """Address and port; an IPv4 address in IPv6 form is written as IPv4."""
    host, port = address
    return f"{host.removeprefix('::ffff:')}:{port}"


def _tcp() -> list[Any]:
    import psutil  # NCCL alone has no ports to close

    connections: list[Any] = psutil.Process().net_connections("tcp")
    return connections


def _opened_since(before: Collection[int]) -> list[Any]:
    return [each for each in _tcp() if each.fd not in before]


def _listeners(connections: Iterable[Any]) -> list[int]:
    return [each.fd for each in connections if each.status == LISTENING]
