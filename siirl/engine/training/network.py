"""Where ranks meet, and which network they speak over.

Ranks of one machine meet in a file of a private folder and speak over the loopback. Ranks of
several machines meet at a port of rank 0's, on the network that they are all on, and speak over
that network. Left alone, torch's store listens on all interfaces, and gloo where the machine's own
name leads: on Debian and Ubuntu that is the machine alone (/etc/hosts: 127.0.1.1), so that ranks
elsewhere try that address on their own machine and are refused.
"""

import datetime
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psutil
from torch import distributed

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"
# NCCL 2.24 and later answers questions about its state at localhost:28028, whoever asks.
NCCL_ANSWERS = "NCCL_RAS_ENABLE"


def listen_towards(init_method: str) -> None:
    """Let gloo listen on the network that leads to the ranks' meeting point; what the user's
    environment names instead stays.

    Args:
        init_method: `tcp://host:port`, or `file:///path` for ranks that share a machine.
    """
    place = urlsplit(init_method)
    os.environ.setdefault(NCCL_ANSWERS, "0")
    if place.scheme == "file":
        _name(GLOO_INTERFACE, LOOPBACK)
        _name(NCCL_INTERFACE, LOOPBACK)
    elif place.hostname and place.port:
        _name(
            GLOO_INTERFACE, own_address_towards(place.hostname, place.port)
        )  # over machines NCCL chooses itself


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let gloo listen on the loopback alone, for groups and processes that are made within and stay
    on this machine.
    """
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
    """The store through which ranks exchange their addresses. Rank 0 keeps it, and listens at the
    named address only.

    Args:
        init_method: See `listen_towards`.
        rank: Number of this process.
        world_size: Number of processes.
        timeout: How long to wait for the others, here and at each question.
    """
    place = urlsplit(init_method)
    if place.scheme == "file":
        file = distributed.FileStore(place.path, world_size)
        file.set_timeout(timeout)
        return file
    assert place.hostname and place.port
    listener = _listener(place.hostname, place.port) if rank == 0 else None
    return distributed.TCPStore(
        place.hostname,
        place.port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=listener,
    )


def own_address_towards(host: str, port: int) -> str:
    """The address from which this machine would speak to `host`; nothing is sent."""
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_DGRAM
    )
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return own


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has `address`; None where none has."""
    return next(
        (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if address in {each.address for each in addresses}
        ),
        None,
    )


def _name(variable: str, address: str) -> None:
    """Name the interface of `address` in an environment variable that the user has not set."""
    interface = interface_of(address)
    if variable not in os.environ and interface is not None:
        os.environ[variable] = interface


def _listener(host: str, port: int) -> int:
    """Descriptor of a socket that listens at one address; torch's store takes it over."""
    [(family, *_, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return socket.create_server(address[:2], family=family).detach()
