"""Checks whether the ports of a process accept connections."""

import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import psutil

NOBODY_ANSWERS_S = 3.0  # a local port accepts a connection at once, even if its process is idle


Address = tuple[str, int]


def takes_connections(address: Address) -> bool:
    """Whether a connection succeeds."""
    try:
        socket.create_connection(address, timeout=NOBODY_ANSWERS_S).close()
    except TimeoutError:
        return False
    return True


def ports(*processes: psutil.Process) -> set[Address]:
    """Address and port at which these processes listen."""
    sockets = [each for process in processes for each in process.net_connections("tcp")]
    return {tuple(each.laddr) for each in sockets if each.status == psutil.CONN_LISTEN}


def knocked_at(addresses: Collection[Address]) -> set[tuple[str, bool]]:
    """The addresses without ports, each with whether one of its ports accepts connections."""
    ordered = sorted(addresses)
    with ThreadPoolExecutor(max(1, len(ordered))) as pool:
        taken = pool.map(takes_connections, ordered)
        return {(host, each) for (host, _), each in zip(ordered, taken, strict=True)}
