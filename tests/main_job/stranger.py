"""Connects to loopback ports like another user of this machine: `python stranger.py PORT...`,
without the run's environment.

Prints a word for each port: `deaf` if no one can connect, `token` if Ray requires its token, or
`open`.
"""

import socket
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc

# A port of this machine takes a connection at once, also when its process does nothing.
DEAF_AFTER_S = 5.0
ANSWERS_WITHIN_S = 60.0
# One call of each service of Ray 2.60's; a server that has it asks for the token first, and does
# not know the others.
CALLS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.CoreWorkerService/Exit",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
)


def got_from(port: int) -> str:
    """`deaf`, `token` or `open`."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=DEAF_AFTER_S).close()
    except TimeoutError:
        return "deaf"
    return "token" if any(refused(port, call) for call in CALLS) or refused_page(port) else "open"


def refused(port: int, call: str) -> bool:
    """Whether a server of gRPC asks for the token."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(call)(b"", timeout=ANSWERS_WITHIN_S)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
    return False


def refused_page(port: int) -> bool:
    """Whether a server of HTTP asks for the token."""
    try:
        urllib.request.urlopen(
            f"http://127.0.0.1:{port}/get_runtime_envs_info", b"", timeout=ANSWERS_WITHIN_S
        ).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    except (OSError, ValueError):  # no HTTP
        return False
    return False


if __name__ == "__main__":
    with ThreadPoolExecutor(16) as pool:  # deaf ones take their time
        print(*pool.map(got_from, map(int, sys.argv[1:])))
