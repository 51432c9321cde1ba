"""Ranks that write down where they run, on the two machines of a Ray cluster: `python
placed_ranks.py ADDRESS`, in an empty folder.

A separate process, because Ray keeps the first settings of a process. Prints results as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from siirl.errors import ConfigError
from siirl.execution.scheduler import placement
from siirl.execution.scheduler.launch import run_on_ray
from siirl.execution.scheduler.placement import (
    ClusterLayout,
    Placement,
    machines,
    require_machines,
    servers_of_cluster,
)
from siirl.execution.scheduler.ray_session import ClusterSettings, ray_session
from siirl.execution.scheduler.vitals import Vitals

HELD_S = 2.0


class Whereabouts:
    """A rank. Its file is in this process's folder only if that is also its own."""

    def __init__(self, *, rank: int, init_method: str) -> None:
        self.file = Path(f"rank_{rank}")

    def run(self) -> Iterator[None]:
        """Yields once, so that there is something to report."""
        import ray

        self.file.write_text(
            f"{ray.util.get_node_ip_address()} {os.environ.get('CUDA_VISIBLE_DEVICES', '')} "
            f"{os.environ.get('NCCL_DEBUG', '')}"
        )
        yield


def whereabouts(layout: ClusterLayout) -> list[list[str]]:
    """Machine, GPUs and NCCL_DEBUG of each rank."""
    for _ in run_on_ray(Whereabouts, layout=layout):
        pass
    return [Path(f"rank_{rank}").read_text().split(" ") for rank in range(layout.ranks)]


def main(address: str) -> None:
    """Ranks on CPUs; ranks on GPUs of which another holds one for a while; more machines than there
    are.
    """
    placement.TELL_AFTER_S = HELD_S / 4
    with ray_session(ClusterSettings(address=address, env_vars={})):
        on_cpus = whereabouts(ClusterLayout(nodes=2, ranks_per_node=2))
        held = Placement(ClusterLayout(ranks_per_node=1, gpus=(1,)), Vitals(servers_of_cluster()))
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(
                whereabouts, ClusterLayout(nodes=2, ranks_per_node=2, gpus=(1,) * 4)
            )
            time.sleep(HELD_S)
            placed_meanwhile = waiting.done()
            held.release()
            on_gpus = waiting.result()
        beside_an_engine = whereabouts(ClusterLayout(nodes=2, gpus=(1, 2)))
        try:
            require_machines(ClusterLayout(nodes=3), machines())
            refused = ""
        except ConfigError as error:
            refused = str(error)
        import ray  # not before `ray_session`: Ray reads its settings when it is imported

        here = ray.util.get_node_ip_address()
    print(
        json.dumps(
            {
                "here": here,
                "on_cpus": on_cpus,
                "on_gpus": on_gpus,
                "beside_an_engine": beside_an_engine,
                "placed_meanwhile": placed_meanwhile,
                "refused": refused,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
