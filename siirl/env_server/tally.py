"""Counters of the pool: environment steps, busy time of simulators, failures and replays."""

import time


class Tally:
    """Counts since the last `take`.

    `failures` are episodes that could not be simulated; `replays` are episodes simulated again.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset the counts."""
        self._since = time.perf_counter()
        self.steps = self.failures = self.replays = 0

    def take(self, *, busy_s: float, num_servers: int) -> dict[str, float]:
        """Return the counts as metrics and reset them.

        Args:
            busy_s: Seconds that servers worked on requests, summed over servers.
            num_servers: Number of servers.
        """
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
