"""Which network the ranks of several machines speak over.

Gloo listens where the machine's own name leads, and on Debian and Ubuntu that is the machine alone (/etc/hosts: 127.0.1.1): ranks elsewhere
try that address on their own machine and are refused. The network over which a rank reaches the meeting point is one that all ranks are on.
"""

import os
import socket
from urllib.parse import urlsplit

import psutil

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"  # torch's; NCCL looks for a network itself


def listen_towards(init_method: str) -> None:
    """Let gloo listen on the network that leads to the ranks' meeting point; what the user's environment names instead stays.

    Args:
        init_method: `tcp://host:port`. Ranks that meet in a file share a machine.
    """
    place = urlsplit(init_method)
    if place.scheme == "tcp" and place.hostname and place.port and GLOO_INTERFACE not in os.environ:
        interface = interface_of(own_address_towards(place.hostname, place.port))
        if interface is not None:
            os.environ[GLOO_INTERFACE] = interface


def own_address_towards(host: str, port: int) -> str:
    """The address from which this machine would speak to `host`; nothing is sent."""
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return own


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has `address`; None where none has."""
    return next((name for name, addresses in psutil.net_if_addrs().items() if address in {each.address for each in addresses}), None)
