"""Whether somebody could connect to the ports of a process."""

import socket
from concurrent.futures import ThreadPoolExecutor

import psutil

NOBODY_ANSWERS_S = 3.0  # a port of this machine takes a connection at once, also when its process does nothing


def takes_connections(address: tuple[str, int]) -> bool:
    """Whether somebody could connect there."""
    try:
        socket.create_connection(address, timeout=NOBODY_ANSWERS_S).close()
    except TimeoutError:
        return False
    return True


def ports_of(*processes: psutil.Process) -> set[tuple[str, bool]]:
    """Of each port that these processes listen at its address, and whether it takes connections."""
    sockets = [each for process in processes for each in process.net_connections("tcp")]
    ports = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
    with ThreadPoolExecutor(max(1, len(ports))) as pool:
        return {(address.ip, taken) for address, taken in zip(ports, pool.map(takes_connections, ports), strict=True)}
