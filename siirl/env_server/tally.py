"""Counters of the pool: environment steps, busy time of simulators, failures and replays.

A cause that fails one episode usually fails its whole step. So the first failure of each cause is
logged in full, and `take`, once a step, logs how many more there were.
"""

import logging
import time

MOST_CAUSES = 3  # logged in full within a step; an exception's text may differ in each episode
SHOWN_CHARACTERS = 200
logger = logging.getLogger(__name__)


class Tally:
    """Counts since the last `take`.

    `failures` are episodes that could not be simulated; `replays` are episodes simulated again,
    from their reset or up to the call that failed.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset the counts."""
        self._since = time.perf_counter()
        self.steps = self.failures = self.replays = 0
        self._failures_of: dict[str, int] = {}
        """Cause to its failures after the first, which is in the log."""
        self._others = 0

    def fail(self, cause: str, message: str) -> None:
        """Count an episode that failed; log `message` unless an episode failed by `cause` before.

        Args:
            cause: The reason, without what distinguishes the episode.
            message: The whole sentence about the episode.
        """
        self.failures += 1
        if cause not in self._failures_of and len(self._failures_of) < MOST_CAUSES:
            logger.error(message)
            self._failures_of[cause] = 0
        elif cause in self._failures_of:
            self._failures_of[cause] += 1
        else:
            self._others += 1

    def report_failures(self) -> None:
        """Log how many failures `fail` did not show."""
        for cause, more in self._failures_of.items():
            if more:
                logger.error("%s for the same reason: %s", _and_more(more), _short(cause))
        if self._others:
            logger.error(
                "%s for other reasons; the first %d are above.",
                _and_more(self._others),
                MOST_CAUSES,
            )
        self._failures_of.clear()
        self._others = 0

    def take(self, *, busy_s: float, num_servers: int) -> dict[str, float]:
        """Return the counts as metrics, log failures not yet shown, and reset all.

        Args:
            busy_s: Seconds that servers worked on requests, summed over servers.
            num_servers: Number of servers.
        """
        self.report_failures()
        wall_s = max(time.perf_counter() - self._since, 1e-9)
        metrics = {
            "env/steps": float(self.steps),
            "env/steps_per_s": self.steps / wall_s,
            "env/busy_share": busy_s / (wall_s * num_servers),
            "env/failures": float(self.failures),
            "env/replays": float(self.replays),
        }
        self.restart()
        return metrics


def _and_more(episodes: int) -> str:
    return f"And {episodes} more episode{'s' * (episodes != 1)} of this step could not be simulated"


def _short(cause: str) -> str:
    """The first line of a cause."""
    line = cause.splitlines()[0]
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
