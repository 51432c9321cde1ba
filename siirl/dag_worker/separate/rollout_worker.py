"""RolloutWorker: a rank of the group `rollout`. It acts and does not train.

It has two modes. In block mode, it runs its share of each step with the weights that the schedule
names (at most `max_staleness` steps old), independent of timing; agent groups take turns. In stream
mode, it runs as many prompts of each agent group as its environments take, and starts another
whenever one ends. It swaps in new weights of all agents between two forward passes, and running
episodes continue with them. Left out: training (`siirl.dag_worker.dagworker`) and running a prompt
(`siirl.dag_worker.separate.prompt_runner`).
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from siirl.dag_worker.accounting import HELD_ELSEWHERE, MemoryPeaks
from siirl.dag_worker.events import Event
from siirl.dag_worker.separate.exchange_messages import (
    EvaluationRequest,
    PublishedWeights,
    RolloutProcess,
    Work,
)
from siirl.dag_worker.separate.prompt_runner import PromptRunner, since
from siirl.dag_worker.separate.rollout_ranks import RolloutParts
from siirl.dag_worker.separate.weight_copies import RunEnded, WeightCopies, WeightThread
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.resource_groups import part_of_agent
from siirl.interrupts import Interrupted
from siirl.occupation import OCCUPATION
from siirl.reporting.metrics import Value

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine


class RolloutWorker:
    """Runs the prompts that the exchange hands out.

    Args:
        graph: Graph of the group, with a PUT_TO_BUFFER node for each agent group in it.
        rank: Number of this rank in the group.
        line: Connection to the exchange.
        build: Makes the components by agent group; groups without nodes play in the environments
            of the others, or own their weights.
        receives: Makes the copies of the weights of the components, for this process.
        streaming: Stream mode; otherwise block mode.
        peaks: Peaks of this process's memory.
        on_start: Called when everything is built.
    """

    def __init__(
        self,
        *,
        graph: TaskGraph,
        rank: int,
        line: "ExchangeLine",
        build: Callable[[], dict[int, RolloutParts]],
        receives: Callable[[dict[int, RolloutParts], RolloutProcess], WeightCopies[Any]],
        streaming: bool,
        peaks: MemoryPeaks,
        on_start: Callable[[], object] | None = None,
    ) -> None:
        self.graph = graph
        self.process = RolloutProcess(rank, life=0)
        self.line = line
        self.build = build
        self.receives = receives
        self.streaming = streaming
        self.peaks = peaks
        self.on_start = on_start
        self._parts: dict[int, RolloutParts] = {}
        self._runners: dict[int, PromptRunner] = {}
        self._arrived: PublishedWeights | None = None
        self._evaluating = False
        self._ask: asyncio.Task[Work] | None = None

    def run(self) -> Iterator[Event]:
        """Work until the run is over; environments are closed in any case."""
        try:
            with OCCUPATION.doing("starts simulators and loads the policy"):
                self.start()
            self._serve()
            yield from ()  # the training ranks report
        finally:
            self._close()

    def start(self) -> None:
        """Build the components and start the environments of the agent groups with nodes."""
        self.process = self.line.call("join", self.process.rank)
        self._parts = self.build()
        self.copies = self.receives(self._parts, self.process)
        groups = self.graph.agent_groups()
        self._runners = {
            group: PromptRunner(
                group=group,
                graph=part_of_agent(self.graph, group),
                parts=self._parts[group],
                copies=self.copies,
                process=self.process,
                line=self.line,
                # the rank's, under names without an agent's prefix
                memory=self._memory if group == min(groups) else dict,
            )
            for group in groups
        }
        first, *others = [runner.parts.rollout for runner in self._runners.values()]
        self._loop = first.loop
        for rollout in others:
            rollout.advance_on(self._loop)
        for runner in self._runners.values():
            runner.parts.rollout.start()
        self.peaks.begin()
        self.line.call("ready", self.process)
        if self.on_start is not None:
            self.on_start()

    def _close(self) -> None:
        parts, self._parts = self._parts, {}
        tasks: set[asyncio.Task[Any]] = {*self._running()}
        if self._ask is not None:
            tasks.add(self._ask)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        first = min(self.graph.agent_groups())
        with ExitStack() as closing:  # in reverse; an error keeps no other part open
            for group in sorted(parts, key=lambda group: group != first):  # one event loop for all
                for part in reversed((parts[group].rollout, *parts[group].closes)):
                    closing.callback(part.close)

    def _memory(self) -> dict[str, Value]:
        """Bytes of the acting weights and their second copies, and peaks since the last call."""
        held = self.copies.nbytes
        found = {HELD_ELSEWHERE: held, **self.peaks.metrics(held=held)}
        self.peaks.begin()
        return found

    # Commands

    def _serve(self) -> None:
        serve = self._stream if self.streaming else self._blocks
        try:
            with OCCUPATION.doing("waits for the first weights", waiting=True):
                self._use(self._weights(None))
            serve()
        except (Interrupted, RunEnded):  # the training ranks save and end the run
            self._until_over()

    def _blocks(self) -> None:
        wanted = dict.fromkeys(self._runners, 1)
        while True:
            work = self._next_work(wanted)
            self._record_rewards(work)
            if work.over:
                return
            if work.evaluation is not None:
                self._use(self._weights(work.evaluation.step))
                self._evaluate(work.evaluation)
            elif work.prompts:
                assert work.weights_step is not None
                self._use(self._weights(work.weights_step))
                [(group, prompts)] = work.prompts.items()
                entries, report = self._runners[group].run_block(prompts)
                self.line.call("put", group, self.process, entries, report)

    def _next_work(self, wanted: dict[int, int]) -> Work:
        begin = time.perf_counter()
        with OCCUPATION.doing("waits for prompts", waiting=True):
            while (work := self.line.call("work", *self._asks(wanted))) == Work():
                pass
        self._note_idle(since(begin))
        return work

    def _asks(self, wanted: dict[int, int]) -> tuple[RolloutProcess, dict[int, int], int]:
        """Arguments of `Exchange.work`."""
        return self.process, wanted, self.copies.step

    def _until_over(self) -> None:
        while not self._next_work(dict.fromkeys(self._runners, 0)).over:
            pass

    def _note_idle(self, seconds: float) -> None:
        for runner in self._runners.values():
            runner.idle_s += seconds

    def _weights(self, step: int | None) -> PublishedWeights | None:
        """Weights of `step`; None if they already act."""
        if step == self.copies.step and step is not None:
            return None
        with OCCUPATION.doing(f"waits for the weights of step {step}", waiting=True):
            while (found := self.line.call("weights", step, -1)) is None:
                pass
        return found

    def _use(self, published: PublishedWeights | None) -> None:
        if published is None:
            return
        self._swap(self.copies.receive(published))

    def _record_rewards(self, work: Work) -> None:
        for group, rewards in work.rewards.items():
            self._parts[group].recording.write_up_to(rewards.step, rewards.by_uid)

    def _evaluate(self, evaluation: EvaluationRequest) -> None:
        validator = self._parts[evaluation.group].validator
        validator.ranks.begin(self.process, evaluation.call)  # type: ignore[attr-defined]
        with OCCUPATION.doing(f"evaluates step {evaluation.step}"):
            found = validator.evaluate(
                step=evaluation.step, greedy=evaluation.greedy, record=evaluation.record
            )
        self.line.call("result", self.process, evaluation.call, found)

    # Stream

    def _stream(self) -> None:
        def arrived(published: PublishedWeights) -> None:
            self._loop.call_soon_threadsafe(self._weights_arrived, published)

        self._thread = WeightThread(self.copies, self.line, arrived=arrived)
        self._thread.start()
        try:
            while True:
                work = self._loop.run_until_complete(self._until_command())
                if work.over:
                    return
                assert work.evaluation is not None
                self._loop.run_until_complete(self._until_weights(work.evaluation.step))
                self._evaluating = True
                self._evaluate(work.evaluation)
                self._evaluating = False
                self._swap_arrived()
        finally:
            self._thread.stop()

    async def _until_command(self) -> Work:
        """Keep the environments busy until the run ends or an evaluation is due."""
        while True:
            if self._ask is None:
                wanted = {group: runner.wanted() for group, runner in self._runners.items()}
                self._ask = asyncio.ensure_future(self.line.acall("work", *self._asks(wanted)))
            running = self._running()
            begin, idle = time.perf_counter(), not running
            with OCCUPATION.doing("waits for prompts", waiting=idle):
                await asyncio.wait({self._ask, *running}, return_when=asyncio.FIRST_COMPLETED)
            if idle:
                self._note_idle(since(begin))
            for runner in self._runners.values():
                runner.check()
            self._thread.check()
            if not self._ask.done():
                continue
            work, self._ask = self._ask.result(), None
            self._record_rewards(work)
            for group, prompts in work.prompts.items():
                for prompt in prompts:
                    self._runners[group].start(prompt)
            if work.over or work.evaluation is not None:
                return work

    def _running(self) -> set[asyncio.Task[None]]:
        return set(itertools.chain(*(runner.running for runner in self._runners.values())))

    def _weights_arrived(self, published: PublishedWeights) -> None:
        """Called between two forward passes, which are synchronous in this loop."""
        self._arrived = published
        if not self._evaluating:
            try:
                self._swap_arrived()
            except Exception as error:  # noqa: BLE001 - the loop would only log it
                self._thread.fail(error)

    def _swap_arrived(self) -> None:
        published, self._arrived = self._arrived, None
        if published is not None:
            self._swap(published)
            self._thread.release()

    def _swap(self, published: PublishedWeights) -> None:
        begin = time.perf_counter()
        self.copies.swap(published)
        for runner in self._runners.values():
            runner.swap_s += since(begin)

    async def _until_weights(self, step: int) -> None:
        while self.copies.step < step:
            self._thread.check()
            await asyncio.sleep(0.01)
