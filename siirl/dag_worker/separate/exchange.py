"""The exchange between the groups `rollout` and `train`: passes prompts, rows and weights.

    rollout rank                    exchange                         training rank 0
    join(rank)          <---------  which process of the rank this is
    work(wanted)        <---------  Edge.ledger
    put(prompt, refs)   --------->  Edge.coordinator ------------->  take(step, count), references
    weights(after)      <---------  newest version   <-------------  publish(...), step_done(step)
    next_round(...)     <---------  Rounds           <-------------  receivers(), open_round(...)
    result(...)         --------->  evaluation       <------------>  evaluate(step, ...)

Every agent group that draws prompts has its own edge; steps and weights belong to the run.
It holds counts, metadata and references, never rows or weights. A call that has to wait returns
None after `WAIT_S`, so that the caller can check for a stop request. Left out: Ray
(`siirl.dag_worker.separate.ray_exchange`); one object serves threads in tests.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from siirl.dag_worker.separate.edge import NOTHING, Edge
from siirl.dag_worker.separate.exchange_messages import (
    OVER,
    EvaluationRequest,
    PublishedWeights,
    Receiver,
    Report,
    RolloutProcess,
    Round,
    StepPrompts,
    Weights,
    Work,
)
from siirl.dag_worker.separate.weight_rounds import Rounds
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import Prompt

WAIT_S = 0.5


class Exchange:
    """The exchange; call `open` for each edge first, then `step_done`.

    Args:
        edges: Edges by agent group; all with the same ranks, staleness, and way to hand out
            prompts.
    """

    def __init__(self, edges: Mapping[int, Edge]) -> None:
        self.edges = dict(edges)
        [self._ledger, *_] = [edge.ledger for edge in edges.values()]
        """Ledger of the first edge, for settings that all edges share."""
        self.published: dict[int, PublishedWeights] = {}
        self._weights: dict[int, Weights] = {}
        """The newest weights of each agent group; they act from the end of the step on."""
        self._rounds = Rounds()
        self._changed = asyncio.Condition()
        self._over = False
        self._calls = 0
        self._evaluation: EvaluationRequest | None = None
        self._results: dict[int, Any] = {}
        self._gathered: dict[tuple[int, int], dict[int, Any]] = {}
        self._served = dict.fromkeys(range(self._ledger.ranks), 0)
        """Number of blocks that each rank got."""
        self._deaths = dict.fromkeys(range(self._ledger.ranks), 0)
        self._ready: set[int] = set()
        """Rollout ranks that have built everything."""

    # Training side

    async def open(
        self,
        group: int,
        version: int,
        position: int,
        state: Mapping[str, Any] | None,
        rows: Sequence[tuple[SampleInfo, Any]],
        reports: Sequence[tuple[int, int, Report]],
    ) -> None:
        """Let the rollouts of an agent group begin.

        Args:
            group: Number of the agent group.
            version: Number of completed training steps.
            position: Number of prompts already taken from the stream, if there is no `state`.
            state: The ledger's state from a checkpoint; None for a new run, or one that was
                colocated before.
            rows: Metadata and reference of each prompt that waited to be used.
            reports: Rollout rank, step and report of everything not yet reported.
        """
        self.edges[group].open(version, position, state, rows, reports)
        await self._notify()

    async def all_ready(self) -> bool:
        """Whether every rollout rank has built its environments and its engine."""
        if len(self._ready) < self._ledger.ranks:
            await self._wait()
        return len(self._ready) == self._ledger.ranks

    async def publish(self, group: int, weights: Weights) -> None:
        """Offer weights of an agent group; they act when the step is done."""
        self._weights[group] = weights

    async def step_done(self, step: int) -> None:
        """End a step: its rows are used, and the weights of all agent groups start to act."""
        for edge in self.edges.values():
            edge.step_done(step)
        self.published[step] = PublishedWeights(step, dict(self._weights))
        oldest = step - (0 if self._ledger.streaming else self._ledger.max_staleness)
        self.published = {step: kept for step, kept in self.published.items() if step >= oldest}
        await self._notify()

    async def receivers(self, expected: bool) -> dict[RolloutProcess, Receiver]:
        """Processes that wait for weights; perhaps none.

        Args:
            expected: Whether the weights are new, so that all rollout ranks will ask for them.
        """
        if expected or self._rounds.waiting:
            deadline = time.monotonic() + WAIT_S
            while len(self._rounds.waiting) < len(self._ready) and time.monotonic() < deadline:
                await self._wait(deadline - time.monotonic())
        return dict(self._rounds.waiting)

    async def open_round(
        self, host: str, port: int, members: Sequence[RolloutProcess], shared: bool
    ) -> None:
        """Invite processes that wait for weights to a transfer of the newest ones."""
        newest = self.published[max(self.published)]
        self._rounds.open(Round(host, port, tuple(members), shared, newest))
        await self._notify()

    async def take(self, group: int, step: int, count: int) -> StepPrompts | None:
        """`count` prompts with their rows for a step; None if they are not complete yet, at once if
        a rollout rank waits for weights.
        """
        for _ in range(2):
            taken = self.edges[group].take(step, count)
            if taken is not None or self._rounds.waiting:
                return taken
            await self._wait()
        return None

    async def references(self, group: int, numbers: Sequence[int]) -> list[Any]:
        """The reference of the rows of each taken prompt; None where all its episodes failed.

        Each training rank asks for the references of its share: Ray knows an object's owner only in
        a process that got the reference from Ray.
        """
        return self.edges[group].references(numbers)

    async def lost(self, group: int, numbers: Sequence[int]) -> None:
        """Restart taken prompts whose rows were lost with their rank."""
        self.edges[group].lost(numbers)
        await self._notify()

    async def refill(self, group: int, step: int, count: int) -> None:
        """Ask for `count` additional prompts for the running step."""
        self.edges[group].ledger.refill(step, count)
        await self._notify()

    async def send_rewards(self, group: int, step: int, rewards: Mapping[str, float]) -> None:
        """Send the rewards of a step's samples to the rollout ranks, for their recordings."""
        self.edges[group].add_rewards(step, rewards)
        await self._notify()

    async def evaluate(self, group: int, step: int, greedy: bool, record: bool) -> None:
        """Ask for an evaluation of an agent group with the weights of `step`."""
        self._calls += 1
        self._evaluation = EvaluationRequest(group, self._calls, step, greedy, record)
        self._results, self._gathered = {}, {}
        await self._notify()

    async def results(self) -> list[Any] | None:
        """Results of the rollout ranks' evaluation; None while a rank is still running it."""
        if len(self._results) < self._ledger.ranks and not self._rounds.waiting:
            await self._wait()
        if len(self._results) < self._ledger.ranks:
            return None
        self._evaluation = None
        return [self._results[rank] for rank in range(self._ledger.ranks)]

    async def state(self, group: int, complete: bool) -> dict[str, Any] | None:
        """The ledger, and metadata and references of all rows that wait to be used.

        Args:
            group: Agent group.
            complete: In block mode, wait until no prompt runs under weights older than the newest,
                because a resumed run has no older ones. Returns None while such prompts run.
        """
        edge = self.edges[group]
        if complete and edge.is_behind():
            await self._wait()
            if edge.is_behind():
                return None
        return edge.state()

    async def totals(self, group: int) -> dict[str, int]:
        """Prompts by outcome (`RolloutLedger.totals`)."""
        return self.edges[group].ledger.totals()

    async def end(self) -> None:
        """Signal the end of the run to the rollout ranks."""
        self._over = True
        await self._notify()

    # Rollout side

    # A process that died may have left a call that waits or arrives later. It gets no work, because
    # its prompts would never come back, and its rows are ignored, because they were lost with it.

    async def join(self, rank: int) -> RolloutProcess:
        """Begin to work as `rank`; the result identifies the process in the calls below."""
        return RolloutProcess(rank, self._deaths[rank])

    async def ready(self, process: RolloutProcess) -> None:
        """Report that the process has built everything."""
        if self._is_alive(process):
            self._ready.add(process.rank)
            await self._notify()

    async def work(self, process: RolloutProcess, wanted: Mapping[int, int], acting: int) -> Work:
        """The next work of `process`, whose weights are those of step `acting`: up to `wanted`
        prompts of each agent group, an evaluation, or nothing yet.
        """
        found = self._work(process, wanted, acting)
        if found == Work():
            await self._wait()
            found = self._work(process, wanted, acting)
        return found

    async def weights(self, step: int | None, after: int) -> PublishedWeights | None:
        """Weights of `step`, or the newest after step `after`; None if not published yet."""
        for _ in range(2):
            newest = max(self.published, default=-1) if step is None else step
            if newest in self.published and newest > after:
                return self.published[newest]
            await self._wait()
        return None

    async def next_round(self, process: RolloutProcess, receiver: Receiver) -> Round | str | None:
        """The transfer in which `process` gets the newest weights; None: not yet. `OVER`: never."""
        deadline = time.monotonic() + WAIT_S
        while not self._over:
            if not self._is_alive(process):
                return None
            new = process not in self._rounds.waiting
            found = self._rounds.ask(process, receiver)
            if found is not None or time.monotonic() >= deadline:
                return found
            if new:  # not at each call: two processes would wake each other
                await self._notify()
            await self._wait(deadline - time.monotonic())
        return OVER

    async def put(
        self,
        group: int,
        process: RolloutProcess,
        entries: Sequence[tuple[Prompt, SampleInfo, Any, int]],
        report: Report | None,
    ) -> None:
        """Hand over rows; rows of a prompt that was meanwhile given to another rank are ignored.

        Args:
            group: Agent group that drew the prompts.
            process: Where they are.
            entries: Prompt, metadata, reference of its rows (None: no episode could be simulated)
                and step of the oldest weights that acted.
            report: Metrics since the last report.
        """
        if self._is_alive(process):
            self.edges[group].put(process.rank, entries, report)
            await self._notify()

    async def gather(
        self, process: RolloutProcess, call: int, number: int, thing: Any
    ) -> list[Any] | None:
        """Objects of all rollout ranks for gather number `number` of evaluation `call`; None:
        incomplete.
        """
        given = self._gathered.setdefault((call, number), {})
        if self._is_alive(process):
            given[process.rank] = thing
            await self._notify()
        if len(given) < self._ledger.ranks:
            await self._wait()
        if len(given) < self._ledger.ranks:
            return None
        return [given[other] for other in range(self._ledger.ranks)]

    async def result(self, process: RolloutProcess, call: int, found: Any) -> None:
        """Answer an evaluation."""
        current = self._evaluation is not None and self._evaluation.call == call
        if current and self._is_alive(process):
            self._results[process.rank] = found
            await self._notify()

    async def rank_died(self, rank: int) -> None:
        """Requeue the prompts of a dead rollout rank, for another rank or its replacement."""
        self._rounds.forget(RolloutProcess(rank, self._deaths[rank]))
        self._deaths[rank] += 1
        self._ready.discard(rank)
        for edge in self.edges.values():
            edge.rank_died(rank)
        self._results.pop(rank, None)
        for given in self._gathered.values():
            given.pop(rank, None)
        await self._notify()

    # Inside

    def _is_alive(self, process: RolloutProcess) -> bool:
        return process.life == self._deaths[process.rank]

    def _work(self, process: RolloutProcess, wanted: Mapping[int, int], acting: int) -> Work:
        if self._over or not all(edge.opened for edge in self.edges.values()):
            return Work(over=self._over)
        if not self._is_alive(process):
            return Work()
        rank = process.rank
        news = {group: edge.take_rewards(rank) for group, edge in self.edges.items()}
        rewards = {group: found for group, found in news.items() if found != NOTHING}
        command = self._evaluation
        if command is not None and rank not in self._results:
            return Work(evaluation=command, rewards=rewards)
        if not self._ledger.streaming:
            return self._next_block(rank, wanted, rewards)
        prompts = {
            group: tuple(edge.ledger.next_prompts(rank, wanted[group], acting=acting))
            for group, edge in self.edges.items()
        }
        return Work({group: found for group, found in prompts.items() if found}, rewards=rewards)

    def _next_block(self, rank: int, wanted: Mapping[int, int], rewards: Mapping[int, Any]) -> Work:
        """A block of the agent groups in turn, or nothing yet."""
        first = self._served[rank] % len(self.edges)
        groups = [*self.edges][first:] + [*self.edges][:first]
        for group in groups:
            block = self.edges[group].ledger.next_block(rank) if wanted[group] else None
            if block is not None:
                self._served[rank] += 1
                scheduled = block[0].step - 1 - self._ledger.max_staleness
                step = max(min(self.published), scheduled)
                return Work({group: tuple(block)}, weights_step=step, rewards=rewards)
        return Work(rewards=rewards)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, seconds: float = WAIT_S) -> None:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait(), seconds)
            except TimeoutError:
                return
