"""Two ranks on Ray that write to their output: `python talking_ranks.py`.

A separate process, because Ray keeps the first settings of a process.
"""

import logging
import time
from collections.abc import Iterator

from siirl.execution.scheduler.launch import run_on_ray
from siirl.execution.scheduler.placement import ClusterLayout
from siirl.execution.scheduler.ray_session import ClusterSettings, ray_session

UNTIL_RAY_HAS_READ_S = 3.0  # its log monitor looks at the files several times a second


class Talker:
    """A rank that prints its number, and a line that every rank prints."""

    def __init__(self, *, rank: int, init_method: str) -> None:
        self.rank = rank

    def run(self) -> Iterator[None]:
        """Yields once, so that there is something to report."""
        logging.getLogger("talker").warning("loaded by rank %d", self.rank)
        print("said by all", flush=True)
        time.sleep(UNTIL_RAY_HAS_READ_S)
        yield


def main() -> None:
    """Run the ranks to their end."""
    with ray_session(ClusterSettings(address=None, env_vars={})):
        for _ in run_on_ray(Talker, layout=ClusterLayout(ranks_per_node=2)):
            pass


if __name__ == "__main__":
    main()
