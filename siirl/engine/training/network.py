"""Rendezvous point of the ranks, and the network interface that they use.

Ranks of one machine meet in a file of a private folder and use the loopback. Ranks of several
machines meet at a port of rank 0, and use the network that leads there. By default torch's store
listens on all interfaces, and gloo on the address of the machine's host name. On Debian and Ubuntu
that is 127.0.1.1 (/etc/hosts): remote ranks would connect to their own machine and be refused.
"""

import datetime
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from torch import distributed

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"  # on Linux
# NCCL 2.24 and later serves its state at localhost:28028, without authentication.
NCCL_STATE_SERVER = "NCCL_RAS_ENABLE"


def listen_towards(init_method: str) -> None:
    """Let gloo listen on the network that leads to the meeting point of the ranks.

    Interfaces that the user's environment names take precedence.

    Args:
        init_method: `tcp://host:port`, or `file:///path` for ranks that share a machine; empty for
            a single rank.
    """
    url = urlsplit(init_method)
    os.environ.setdefault(NCCL_STATE_SERVER, "0")
    if url.scheme in ("file", ""):
        _name(GLOO_INTERFACE, LOOPBACK)
        _name(NCCL_INTERFACE, LOOPBACK)
    elif url.hostname and url.port:
        # between machines NCCL chooses its own interface
        _name(GLOO_INTERFACE, own_address_towards(url.hostname, url.port))


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let gloo listen on the loopback only, for groups and processes made within."""
    before = os.environ.get(GLOO_INTERFACE)
    os.environ[GLOO_INTERFACE] = interface_of(LOOPBACK) or ""
    try:
        yield
    finally:
        del os.environ[GLOO_INTERFACE]
        if before is not None:
            os.environ[GLOO_INTERFACE] = before


def meet(
    init_method: str, *, rank: int, world_size: int, timeout: datetime.timedelta
) -> distributed.Store:
    """The store in which ranks exchange their addresses.

    Rank 0 hosts it, and listens at the named address only.

    Args:
        init_method: `tcp://host:port`, or `file:///path` for ranks that share a machine; empty for
            a single rank.
        rank: Number of this process.
        world_size: Number of processes.
        timeout: Time limit to wait for the others, here and at each lookup.
    """
    url = urlsplit(init_method)
    if url.scheme == "file":
        file = distributed.FileStore(url.path, world_size)
        file.set_timeout(timeout)
        return file
    assert url.hostname and url.port
    listener = _listener(url.hostname, url.port) if rank == 0 else None
    return distributed.TCPStore(
        url.hostname,
        url.port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=listener,
    )


def own_address_towards(host: str, port: int) -> str:
    """The address from which this machine would reach `host`; nothing is sent."""
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_DGRAM
    )
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return own


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has `address`; None if there is none."""
    if address == LOOPBACK and LOOPBACK_INTERFACE in {name for _, name in socket.if_nameindex()}:
        return LOOPBACK_INTERFACE
    import psutil  # on one machine only gloo's ports need it

    for name, addresses in psutil.net_if_addrs().items():
        if address in {each.address for each in addresses}:
            return str(name)
    return None


def _name(variable: str, address: str) -> None:
    """Set an environment variable to the interface of `address`, unless the user has set it."""
    interface = interface_of(address)
    if variable not in os.environ and interface is not None:
        os.environ[variable] = interface


def _listener(host: str, port: int) -> int:
    """Descriptor of a socket that listens at one address; torch's store takes ownership."""
    [(family, *_, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return socket.create_server(address[:2], family=family).detach()
