"""Keeps strangers out of ports that libraries open without a secret: gloo's, and torch's store.

gloo listens on a port for as long as its group lives, and takes whoever connects there with the
number that it expects of another rank: the next of a count from 0, which anybody can guess. PyPI's
torch is built without its TLS. So after ranks have connected, two things happen here. The ports
that were opened turn deaf: the kernel drops what arrives at them. And ranks tell each other,
through their store, which connections they hold: one that came in and is held by no rank is a
stranger's, and ends the run before anything is sent.

Left out: encryption, and groups that are made later (`torch.distributed.new_group`), of which siirl
has none.
"""

import ctypes
import json
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from torch import distributed

from siirl.errors import InvariantError

SO_ATTACH_FILTER = 26  # include/uapi/asm-generic/socket.h; Python's socket module does not name it
# One instruction of classic BPF: return 0, keep no byte (linux/filter.h).
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)


def open_sockets() -> frozenset[int]:
    """Descriptors of this process's TCP sockets."""
    return frozenset(each.fd for each in _tcp())


@contextmanager
def shut_afterwards() -> Iterator[None]:
    """Turn deaf the ports that are opened within, when what had to connect has connected."""
    before = open_sockets()
    yield
    deafen(_listeners(_opened_since(before)))


def shut_all() -> None:
    """Turn deaf every port of this process, because whoever had to connect has."""
    deafen(_listeners(_tcp()))


def deafen(listeners: Iterable[int]) -> None:
    """Drop what arrives at these listening sockets: nobody connects any more, connections stay.

    They are not closed: gloo's thread would abort the process.
    """
    instruction = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
    program = struct.pack(
        "HL", 1, ctypes.addressof(instruction)
    )  # struct sock_fprog: how many, where
    for descriptor in listeners:
        with socket.socket(fileno=socket.dup(descriptor)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def admit_ranks_only(
    store: distributed.Store, *, rank: int, ranks: int, before: Collection[int]
) -> None:
    """Shut the ports that this process has opened since `before`, and see that only ranks have come
    in.

    Args:
        store: Where ranks meet.
        rank: Number of this process.
        ranks: How many there are; all call this, when they are connected.
        before: `open_sockets` from before they connected.

    Raises:
        InvariantError: Somebody else is connected to one of the ports.
    """
    deafen(_listeners(_opened_since(before)))  # first: who comes in later is not seen below
    opened = _opened_since(before)
    connected = [each for each in opened if each.status == psutil.CONN_ESTABLISHED]
    store.set(_key(rank), json.dumps([_end(each.laddr) for each in connected]))
    ends_of_ranks = {end for other in range(ranks) for end in json.loads(store.get(_key(other)))}
    doors = {_end(each.laddr) for each in opened if each.status == psutil.CONN_LISTEN}
    strangers = {
        _end(each.raddr) for each in connected if _end(each.laddr) in doors
    } - ends_of_ranks
    if strangers:
        raise InvariantError(
            f"A connection to rank {rank} from {', '.join(sorted(strangers))} is not a rank's: another "
            "user of this machine, or of this network, has connected to the run. Nothing was sent. "
            "Find out who it was, and start again."
        )


def _key(rank: int) -> str:
    return f"siirl/connections/{rank}"


def _end(address: tuple[str, int]) -> str:
    """Address and port; IPv4 as such, also where the socket is one of IPv6."""
    host, port = address
    return f"{host.removeprefix('::ffff:')}:{port}"


def _tcp() -> list[Any]:
    connections: list[Any] = psutil.Process().net_connections("tcp")
    return connections


def _opened_since(before: Collection[int]) -> list[Any]:
    return [each for each in _tcp() if each.fd not in before]


def _listeners(connections: Iterable[Any]) -> list[int]:
    return [each.fd for each in connections if each.status == psutil.CONN_LISTEN]
