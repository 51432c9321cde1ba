"""Resolves `cluster.address=` and checks with a plain socket that a Ray cluster listens there.

Ray itself retries an address for two minutes, and its `auto` also joins a private cluster of
another run. Here `auto` means RAY_ADDRESS, or the address that the last `ray start` on this
machine recorded.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from siirl.errors import ConfigError

AUTO = "auto"
TIMEOUT_S = 5.0  # a server in the same data centre answers in milliseconds
REMEDY = (
    "Start a cluster there (ray start --head), or leave cluster.address out to run on this machine."
)


def resolve_address(address: str) -> str:
    """Resolve a value of cluster.address to `HOST:PORT`.

    Raises:
        ConfigError: Neither `auto` nor HOST:PORT, or `auto` without a started cluster.
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
            f"{place} is not the address of a Ray cluster: write HOST:PORT as `ray start --head` "
            f"prints it, or {AUTO}."
        )
    return address


def address_problems(address: str | None) -> Iterator[ConfigError]:
    """Errors: a malformed address, or an address where nothing listens."""
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
            f"cluster.address={place}: no answer ({error.strerror or error}). {REMEDY}"
        )


def _started_last() -> str:
    """Address that the last `ray start` on this machine recorded in Ray's temporary folder."""
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(temporary) / "ray" / "ray_current_cluster"
    if not file.is_file():
        raise ConfigError(
            f"cluster.address={AUTO}: no Ray cluster was started on this machine ({file} does "
            f"not exist). {REMEDY}"
        )
    return file.read_text().strip()
