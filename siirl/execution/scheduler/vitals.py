"""Checks whether the processes of a Ray cluster are alive, without asking Ray.

Ray reports their death late or not at all. A driver whose GCS died keeps computing for a minute;
Ray's C++ then ends it before Python can print a message. The death of a raylet is reported after 15
seconds, unless the driver's own actors die earlier. A dead process no longer listens, so a
connection attempt detects its death at once.
"""

import errno
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from siirl.errors import RunFailed

EVERY_S = 1.0
CONNECT_S = 2.0
OWN_FAULTS = (errno.EMFILE, errno.ENFILE)  # no descriptor left here: nothing is known of the server


@dataclass(frozen=True)
class Server:
    """A process that a run on Ray needs."""

    name: str
    """Name of the process in messages."""
    host: str
    port: int
    patience_s: float
    """Seconds without an answer after which it counts as dead."""


class Vitals:
    """Checks that all servers answer."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        self.lost = False
        self._silent_since: dict[str, float] = {}
        self._looked_at = 0.0

    @property
    def all_answer(self) -> bool:
        """Whether every server answered at the last check."""
        return not self._silent_since

    def check(self) -> None:
        """Check, unless the last check was recent; cheap enough to call often.

        Raises:
            RunFailed: A server is dead.
        """
        if time.monotonic() - self._looked_at >= EVERY_S:
            self._look()

    def explain(self) -> None:
        """Check until all servers answer, or one has been silent for its `patience_s`. Used after a
        Ray error that a dead server may explain.

        Raises:
            RunFailed: A server is dead.
        """
        self._look()
        while self._silent_since:
            time.sleep(EVERY_S)
            self._look()

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        for server in self.servers:
            silence = _silence(server)
            if silence is None:
                self._silent_since.pop(server.name, None)
                continue
            since = self._silent_since.setdefault(server.name, self._looked_at)
            if self._looked_at - since >= server.patience_s:
                self.lost = True
                raise RunFailed(
                    f"{server.name} ({server.host}:{server.port}) died; a run on Ray cannot "
                    f"continue without it ({silence})."
                )


def _silence(server: Server) -> str | None:
    """Why the address does not answer; None if it does."""
    try:
        socket.create_connection((server.host, server.port), timeout=CONNECT_S).close()
    except OSError as error:
        if error.errno in OWN_FAULTS:
            return None
        return error.strerror or str(error)
    return None
