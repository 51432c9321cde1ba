"""A run with separate groups in threads of the test's process: the real workers and exchange,
without Ray.
"""

import asyncio
import copy
import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siirl.dag_worker.events import Event, StepDone
from siirl.dag_worker.separate.exchange import Exchange
from siirl.dag_worker.separate.workers import WorkerFactory, edges_of
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager
from siirl.params import sizes
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph
from siirl.preflight.group_placement import place, scheduled

LOADING = threading.Lock()
"""transformers loads a model in one thread at a time."""


class ThreadLine:
    """Connects threads of one process; the exchange lives on `loop`, which another thread runs."""

    def __init__(self, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        self.exchange, self.loop = exchange, loop

    def call(self, method: str, *arguments: Any) -> Any:
        """See `ExchangeLine`."""
        coroutine = getattr(self.exchange, method)(*arguments)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def acall(self, method: str, *arguments: Any) -> Any:
        """See `ExchangeLine`."""
        coroutine = getattr(self.exchange, method)(*arguments)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def address(self) -> str:
        """See `ExchangeLine`."""
        return "127.0.0.1"

    def store(self, thing: Any) -> Any:
        """See `ExchangeLine`."""
        return copy.deepcopy(thing)

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """See `ExchangeLine`."""
        return list(references)


class WatchedLine(ThreadLine):
    """Starts the rollout ranks when the training rank waits for them, and raises what one of them
    raised.
    """

    def __init__(self, exchange, loop, errors: list[BaseException], start) -> None:
        super().__init__(exchange, loop)
        self.errors, self.start = errors, start

    def call(self, method, *arguments):
        if method == "all_ready":
            self.start()
        if self.errors and method != "end":
            raise self.errors[0]
        return super().call(method, *arguments)


class TwoGroups:
    """A training rank in the caller's thread, and rollout ranks in separate threads."""

    def __init__(
        self, folder: Path, words: Sequence[str], *, config_file: Path | None = None
    ) -> None:
        self.errors: list[BaseException] = []
        self.rollouts: list[threading.Thread] = []
        self.config = parse_config(words, config_file=config_file)
        self.config.cluster.mode = "local"  # simulators in this process
        folder.mkdir(exist_ok=True)
        graph = load_graph(self.config)
        place(self.config, graph)
        graphs = scheduled(self.config.trainer, self.config.dag, graph)
        self.loop = asyncio.new_event_loop()
        self.exchange = Exchange(edges_of(self.config, graphs[0]))
        self.factory = WorkerFactory(
            config=self.config,
            graphs=graphs,
            groups=ProcessGroupManager(sizes.ranks(self.config.trainer), graphs),
            run_folder=folder.absolute(),
            line=functools.partial(
                WatchedLine, self.exchange, self.loop, self.errors, self._start_rollouts
            ),
        )

    def run(self) -> list[Event]:
        """Events of the training rank; an error of a rollout rank is raised here."""
        exchange = threading.Thread(target=self.loop.run_forever, daemon=True)
        exchange.start()
        events = []
        try:
            for event in self.factory(rank=0, init_method="").run():
                events.append(event)
                self._raise()
        except BaseException as error:
            self.errors.append(error)  # a rollout rank that waits for this one ends, too
            raise
        finally:
            for thread in self.rollouts:
                thread.join()
            self.loop.call_soon_threadsafe(self.loop.stop)
            exchange.join()
            self.loop.close()
        self._raise()
        return events

    def _start_rollouts(self) -> None:
        """Once; not before the training rank has loaded its model."""
        if self.rollouts:
            return
        self.rollouts = [
            threading.Thread(target=self._roll_out, args=(rank,), daemon=True)
            for rank in range(1, sizes.ranks(self.config.trainer))
        ]
        for thread in self.rollouts:
            thread.start()

    def _roll_out(self, rank: int) -> None:
        try:
            with LOADING:
                worker = self.factory(rank=rank, init_method="")
                worker.start = _once(worker.start)
                worker.start()
            list(worker.run())
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            self.errors.append(error)

    def _raise(self) -> None:
        if self.errors:
            raise self.errors[0]


def _once(start):
    """`start`; a second call does nothing."""
    calls = iter([start])
    return lambda: next(calls, lambda: None)()


def run_groups(
    folder: Path, words: Sequence[str], *, config_file: Path | None = None
) -> list[StepDone]:
    """The steps of the job."""
    events = TwoGroups(folder, words, config_file=config_file).run()
    return [event for event in events if isinstance(event, StepDone)]
