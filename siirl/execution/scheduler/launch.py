"""Starts ranks as Ray actors, yields their reports as they arrive, and ends all processes.

A worker is any class with `run() -> Iterator`. Ranks start together. If one dies, the others are
ended too, because they would wait for it forever. `local` runs the only rank in this process, for a
debugger, without importing Ray.
"""

import logging
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.mistakes import UsersError, users_report
from siirl.errors import EngineDied, RunFailed, SiirlError
from siirl.execution.scheduler.placement import (
    ClusterLayout,
    Placement,
    machines,
    servers_of_cluster,
)
from siirl.execution.scheduler.private_session import PRIVATE_FOLDER
from siirl.execution.scheduler.ray_errors import stated_cause
from siirl.execution.scheduler.vitals import Vitals
from siirl.terminal import warning_lines

if TYPE_CHECKING:
    from siirl.execution.scheduler.messages import Supervision

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5  # between checks of the ranks while they report nothing
REPORTS_AHEAD = 2  # that a rank makes before the command has taken them; a step makes two
DEATH_KNOWN_S = 5.0  # Ray detects a death at once, by a closed connection; busy machines lag
Make = Callable[..., Any]
"""Makes the worker of a rank; called with `rank` and `init_method`."""


@dataclass(frozen=True)
class Replacement:
    """Ranks that are replaced when they die."""

    ranks: frozenset[int]
    make: Make
    """Makes the replacement worker."""
    died: Callable[[int], object]
    """Called with the rank beforehand, to release its resources."""
    at_most: int = 3
    """Largest number of replacements of a rank; after more deaths the cause is persistent."""


def run_local(make: Make) -> Iterator[Any]:
    """Run the only rank in this process and yield its reports."""
    yield from make(rank=0, init_method="").run()


def run_on_ray(
    make: Make,
    *,
    layout: ClusterLayout,
    hang_s: float | None = None,
    stacks_folder: Path = Path(),
    replacement: Replacement | None = None,
) -> Iterator[Any]:
    """Run every rank as a Ray actor; yield the reports of rank 0, and raise an error of any rank.

    Call it within `ray_session`. Leaving the iterator early ends all ranks.

    Args:
        make: Makes the worker of a rank.
        layout: Placement of the ranks.
        hang_s: Longest time without progress of a rank (`siirl.execution.scheduler.watchdog`);
            None: no limit.
        stacks_folder: Folder of the stack traces of a hang.
        replacement: Ranks that are replaced; None: any rank's death ends the run.
    """
    import ray

    from siirl.execution.scheduler.messages import Supervision, message_prefix

    vitals, post = Vitals(servers_of_cluster()), message_prefix()
    placement = Placement(layout, vitals)
    supervision = Supervision(
        vitals, post=post, ranks=layout.ranks, limit_s=hang_s, folder=stacks_folder
    )
    actors: dict[int, Any] = {}

    def start(rank: int, make: Make) -> Any:
        replaceable = replacement is not None and rank in replacement.ranks
        rank_class = _ReplaceableRank if replaceable else _Rank
        actor = _actor_class(rank_class).options(
            num_gpus=layout.gpus_of_rank(rank), scheduling_strategy=placement.of_rank(rank)
        )
        if rank in actors:  # its process may live, without its engine's
            ray.kill(actors[rank])
        actors[rank] = actor.remote(make, rank, post)
        return actors[rank]

    try:
        first = [start(rank, make) for rank in range(layout.ranks)]
        init_method = _meeting_point(first[0], layout, supervision) if layout.ranks > 1 else ""
        streams = [_stream(actor, init_method) for actor in first]

        def again(rank: int) -> Any:
            assert replacement is not None
            return _stream(start(rank, replacement.make), init_method)

        replacements = _Replacements(
            replacement, again, has_room=lambda: len(machines()) >= layout.nodes
        )
        yield from _merge(streams, supervision, replacements)
    finally:
        for actor in actors.values():
            ray.kill(actor)
        if not vitals.lost:
            # otherwise Ray would wait for an answer until its C++ ends this process
            placement.release()
            supervision.close()


def _stream(actor: Any, init_method: str) -> Any:
    """Reports of a rank, which waits for a command that does not take them.

    If the command is killed, the rank trains no further steps: their metrics would be lost.
    """
    run = actor.run.options(_generator_backpressure_num_objects=REPORTS_AHEAD)
    return run.remote(init_method)


def _meeting_point(first: Any, layout: ClusterLayout, supervision: "Supervision") -> str:
    import ray
    from ray.exceptions import RayActorError

    answer = first.meeting_point.remote(layout.nodes)
    while not ray.wait([answer], timeout=LOOK_EVERY_S)[0]:
        supervision.check()
    try:
        place: str = ray.get(answer)
    except RayActorError as error:
        raise _died(0, error, supervision.vitals) from error
    return place


class _Replacements:
    """Starts replacements of dead ranks.

    Args:
        replacement: Ranks that are replaced.
        start: Starts another process for a rank; its stream.
        has_room: Whether the cluster still has as many machines as the job needs; a replacement for
            a machine that has left would wait forever.
    """

    def __init__(
        self,
        replacement: Replacement | None,
        start: Callable[[int], Any],
        *,
        has_room: Callable[[], bool],
    ) -> None:
        self._replacement = replacement
        self._start = start
        self._has_room = has_room
        self._deaths: Counter[int] = Counter()

    def take_place_of(self, rank: int, cause: str) -> Any | None:
        """The stream of the process that replaces `rank`, which `cause` ended; None if it may not
        be replaced.
        """
        replacement = self._replacement
        if replacement is None or rank not in replacement.ranks:
            return None
        self._deaths[rank] += 1
        if self._deaths[rank] > replacement.at_most:
            logger.warning(
                "The process of rank %d died (%s) after %d replacements: the run ends.",
                rank,
                cause,
                replacement.at_most,
            )
            return None
        if not self._has_room():
            return None
        logger.warning("The process of rank %d died (%s) and is replaced.", rank, cause)
        replacement.died(rank)
        return self._start(rank)


def _merge(
    streams: list[Any], supervision: "Supervision", replacements: _Replacements
) -> Iterator[Any]:
    """Items of all streams until all have ended; an error of any stream is raised unchanged."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    running = list(streams)
    while running:
        ready: list[Any] = ray.wait(running, num_returns=1, timeout=LOOK_EVERY_S)[0]
        supervision.check()
        if not ready:
            continue
        try:
            item = ray.get(next(ready[0]))
        except StopIteration:
            running.remove(ready[0])
        except (RayTaskError, RayActorError) as error:
            rank = streams.index(ready[0])
            other = _replaced(rank, error, replacements)
            if other is not None:
                running[running.index(ready[0])] = streams[rank] = other
            elif isinstance(error, RayActorError):
                raise _died(rank, error, supervision.vitals) from error
            else:
                if not isinstance(error.cause, SiirlError):
                    _explain_by_a_death(running, streams, supervision.vitals)
                raise error.cause from error
        else:
            yield item


def _replaced(rank: int, error: Exception, replacements: _Replacements) -> Any | None:
    """The stream of another process for a rank that died, or whose engine's process did; None if it
    is not replaced.
    """
    from ray.exceptions import RayActorError

    if isinstance(error, RayActorError):
        return replacements.take_place_of(rank, stated_cause(error))
    cause = getattr(error, "cause", None)
    if isinstance(cause, EngineDied):
        return replacements.take_place_of(rank, str(cause).rstrip("."))
    return None


def _explain_by_a_death(running: list[Any], streams: list[Any], vitals: Vitals) -> None:
    """Raise the error of a dead rank, if there is one: the other ranks' collectives fail when they
    lose the connection to it, and their error may arrive first.
    """
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    deadline = time.monotonic() + DEATH_KNOWN_S
    others = list(running)
    while others and (left_s := deadline - time.monotonic()) > 0:
        ready: list[Any] = ray.wait(others, num_returns=1, timeout=left_s)[0]
        for stream in ready:
            try:
                ray.get(next(stream))
            except (StopIteration, RayTaskError):
                others.remove(stream)
            except RayActorError as error:
                raise _died(streams.index(stream), error, vitals) from error


def _died(rank: int, error: Exception, vitals: Vitals) -> RunFailed:
    """Error of a rank whose process has ended, by itself or together with a process that it was
    connected to.
    """
    vitals.explain()
    return RunFailed(f"The process of rank {rank} died: {stated_cause(error)}.")


def _actor_class(rank_class: type) -> Any:
    import ray

    # Reserve no CPU: a laptop has fewer cores than the job has processes; simulators and ranks take
    # turns.
    return ray.remote(num_cpus=0, max_restarts=0)(rank_class)


class MeetingPoint:
    """Rendezvous of the ranks for torch.distributed: a folder that only they may enter, or a free
    port of this machine.
    """

    def __init__(self, *, several_machines: bool) -> None:
        import socket

        from ray.util import get_node_ip_address

        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if not several_machines:
            self._folder = tempfile.TemporaryDirectory(
                prefix="siirl-meeting-", dir=os.environ.get(PRIVATE_FOLDER)
            )
            self.place = f"file://{self._folder.name}/ranks"
            return
        node_ip_address: Callable[[], str] = get_node_ip_address
        with socket.socket() as listener:
            listener.bind((node_ip_address(), 0))
            self.place = f"tcp://{node_ip_address()}:{listener.getsockname()[1]}"

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.cleanup()


class _Rank:
    """One rank in its own process."""

    def __init__(self, make: Make, rank: int, post: str) -> None:
        from siirl.execution.scheduler.messages import RankReporter

        # Ray's handler raises SystemExit at any point of the rank's code
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        warning_lines.show()
        self.make, self.rank = make, rank
        self.reporter = RankReporter(post, rank)
        self.meeting: MeetingPoint | None = None

    def __repr__(self) -> str:
        """Name of the process before its lines (`siirl.execution.scheduler.rank_output`)."""
        return f"rank {self.rank}"

    def meeting_point(self, nodes: int) -> str:
        """Rendezvous address of the ranks for torch.distributed."""
        self.meeting = MeetingPoint(several_machines=nodes > 1)
        return self.meeting.place

    def run(self, init_method: str) -> Iterator[Any]:
        """Make the worker and yield its reports; ranks other than 0 only raise errors."""
        try:
            for item in self.make(rank=self.rank, init_method=init_method).run():
                if self.rank == 0:
                    yield item
        except SiirlError:
            raise
        except Exception as error:
            if report := users_report(error):
                raise UsersError(report) from error
            raise
        finally:
            if self.meeting is not None:
                self.meeting.close()


class _ReplaceableRank(_Rank):
    """A rank that is replaced if it dies, or if the process of its engine does (`EngineDied`); its
    title shows in `ps`.
    """
