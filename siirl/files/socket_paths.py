"""Where sockets lie that other libraries name."""

import os
import tempfile

LONGEST = 107  # bytes of a socket's path (unix(7))


def socket_folder(name: str, *, wanted: str | None = None) -> str:
    """`wanted`, by default the folder of temporary files; /tmp if the path of a socket with a name
    like `name`, relative to the folder, would be too long there.
    """
    wanted = wanted or tempfile.gettempdir()
    return wanted if len(os.fsencode(f"{wanted}/{name}")) <= LONGEST else "/tmp"
