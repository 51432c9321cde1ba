"""Waits until a server of a test accepts connections."""

import socket
import time

GIVE_UP_S = 250.0  # only a hang takes longer


def wait_for_server(port: int) -> None:
    """Return once something listens at a port of this machine."""
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError(f"No server at port {port}.")
