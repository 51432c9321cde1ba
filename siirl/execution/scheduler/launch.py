"""The Ray edge of the scheduler: one actor for each rank, what they report as it happens, and an end that leaves nothing behind.

A worker is any class with `run() -> Iterator`; ranks are started together, and when one of them dies, the others, which would wait
for it for ever, are ended too. `local` runs the one rank in this process, for a debugger; Ray is not imported then.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from siirl.errors import ConfigError, InvariantError

Make = Callable[..., Any]
"""Makes the worker of a rank: called with `rank` and `init_method`."""


@dataclass(frozen=True)
class ClusterSettings:
    """Where the workers run."""

    address: str | None
    """Address of a running Ray cluster, or None for one on this machine that ends with the run."""
    env_vars: Mapping[str, str]
    """Environment variables of every process."""
    gpus_per_rank: int


def run_local(make: Make) -> Iterator[Any]:
    """Run the only rank in this process and yield what it reports."""
    yield from make(rank=0, init_method="").run()


@contextmanager
def ray_session(settings: ClusterSettings) -> Iterator[None]:
    """Connect to a cluster, or start one, and leave or end it again, whatever happens.

    Raises:
        ConfigError: There is no cluster at the address.
    """
    import ray

    # Ray starts workers at niceness 15; simulators and ranks are the job itself, and should not wait for whatever else runs.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(
            address=settings.address or "local",
            include_dashboard=False,
            log_to_driver=True,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": dict(settings.env_vars)},
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cluster.address={settings.address}: {error} Start a cluster there (ray start --head), or leave cluster.address out "
            "to run on this machine."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def run_on_ray(make: Make, *, world_size: int, settings: ClusterSettings) -> Iterator[Any]:
    """Run every rank as a Ray actor; yield what rank 0 reports, and raise what any rank raises.

    Call it within `ray_session`. Leaving the iterator early ends all ranks.
    """
    import ray

    actors = [_actor_class(settings).remote(make, rank) for rank in range(world_size)]
    try:
        init_method = ray.get(actors[0].meeting_point.remote()) if world_size > 1 else ""
        streams = [actor.run.remote(init_method) for actor in actors]
        yield from _merge(streams)
    finally:
        for actor in actors:
            ray.kill(actor)


def _merge(streams: list[Any]) -> Iterator[Any]:
    """What the first stream yields, until all have ended; an error of any of them is raised as it was there."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    first, running = streams[0], list(streams)
    while running:
        ready: list[Any] = ray.wait(running, num_returns=1)[0]
        try:
            item = ray.get(next(ready[0]))
        except StopIteration:
            running.remove(ready[0])
        except RayTaskError as error:
            raise error.cause from error
        except RayActorError as error:
            raise InvariantError(f"The process of rank {streams.index(ready[0])} died: {error}") from error
        else:
            if ready[0] is first:
                yield item


def _actor_class(settings: ClusterSettings) -> Any:
    import ray

    # No CPU is asked for: on a laptop there are fewer than processes, and simulators and ranks take turns.
    return ray.remote(num_cpus=0, num_gpus=settings.gpus_per_rank, max_restarts=0)(_Rank)


class _Rank:
    """One rank in its own process."""

    def __init__(self, make: Make, rank: int) -> None:
        self.make, self.rank = make, rank

    def meeting_point(self) -> str:
        """Where the ranks meet for torch.distributed: a free port of this machine."""
        import socket

        from ray.util import get_node_ip_address

        node_ip_address: Callable[[], str] = get_node_ip_address
        with socket.socket() as listener:
            listener.bind(("", 0))
            return f"tcp://{node_ip_address()}:{listener.getsockname()[1]}"

    def run(self, init_method: str) -> Iterator[Any]:
        """Make the worker and hand on what it reports."""
        yield from self.make(rank=self.rank, init_method=init_method).run()
