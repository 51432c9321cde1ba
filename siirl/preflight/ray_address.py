"""Which Ray cluster `cluster.address=` means, and whether something listens there; asked with a
plain socket, without Ray.

Ray itself tries for two minutes before it gives an address up, and its `auto` also joins a cluster
that another run has started for itself and ends with. Here `auto` is RAY_ADDRESS, or what `ray
start` wrote down last on this machine.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from siirl.errors import ConfigError

AUTO = "auto"
TIMEOUT_S = 5.0  # a listener in the same data centre answers in milliseconds
REMEDY = (
    "Start a cluster there (ray start --head), or leave cluster.address out to run on this machine."
)


def resolve_address(address: str) -> str:
    """`HOST:PORT` of the cluster that a value of cluster.address means.

    Raises:
        ConfigError: Neither `auto` nor HOST:PORT, or `auto` where no cluster was started.
    """
    place = f"cluster.address={address}"
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or _started_last()
        place = f"cluster.address={AUTO} ({address})"
    host, colon, port = address.rpartition(":")
    if (
        "://" in address
        or not colon
        or not host
        or not port.isdecimal()
        or not 0 < int(port) < 2**16
    ):
        raise ConfigError(
            f"{place} is no address of a Ray cluster: write HOST:PORT as `ray start --head` prints it, or {AUTO}."
        )
    return address


def address_problems(address: str | None) -> Iterator[ConfigError]:
    """What speaks against running there: a wrong address, or nobody who listens."""
    if address is None:
        return
    try:
        resolved = resolve_address(address)
    except ConfigError as error:
        yield error
        return
    host, _, port = resolved.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S).close()
    except OSError as error:
        place = address if address == resolved else f"{address} ({resolved})"
        yield ConfigError(
            f"cluster.address={place}: nobody answers there ({error.strerror or error}). {REMEDY}"
        )


def _started_last() -> str:
    """What the last `ray start` of this machine wrote down; where, is Ray's rule."""
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(temporary) / "ray" / "ray_current_cluster"
    if not file.is_file():
        raise ConfigError(
            f"cluster.address={AUTO}: no Ray cluster was started on this machine ({file} is not there). {REMEDY}"
        )
    return file.read_text().strip()
