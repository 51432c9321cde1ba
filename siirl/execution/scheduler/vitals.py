"""Whether the processes that make a Ray cluster still live, asked past Ray.

Ray itself tells late, at length or not at all: a driver whose GCS died computes on for a minute,
and is then ended by Ray's C++ before Python can say a word; of a dead raylet it hears after a
quarter of a minute, if its own actors have not died before. A process that is gone listens no more,
and that is seen at once.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from siirl.errors import RunFailed

EVERY_S = 1.0
CONNECT_S = 2.0


@dataclass(frozen=True)
class Server:
    """A process that a run on Ray cannot do without."""

    name: str
    """Name of the process in messages."""
    host: str
    port: int
    patience_s: float
    """Seconds without an answer after which it counts as dead."""


class Vitals:
    """Whether all of some servers answer."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        self.lost = False
        self._silent_since: dict[str, float] = {}
        self._looked_at = 0.0

    @property
    def all_answer(self) -> bool:
        """Whether every server answered at the last look."""
        return not self._silent_since

    def check(self) -> None:
        """Look, if the last look is a while ago; cheap, to be called often.

        Raises:
            RunFailed: One is gone.
        """
        if time.monotonic() - self._looked_at >= EVERY_S:
            self._look()

    def explain(self) -> None:
        """Look until all have answered, or one has been silent for long enough: something of Ray's
        failed, and this may be why.

        Raises:
            RunFailed: One is gone.
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
                    f"{server.name} ({server.host}:{server.port}) died, and a run on Ray cannot "
                    f"continue without it ({silence})."
                )


def _silence(server: Server) -> str | None:
    """Why the address does not answer; None if it does."""
    try:
        socket.create_connection((server.host, server.port), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
