"""The exchange between the groups `rollout` and `train`: prompts one way, rows and weights another.

    rollout rank                    exchange                         training rank 0
    work(rank, wanted)  <---------  RolloutLedger
    put(prompt, refs)   --------->  DataCoordinator  ------------->  take(step, count), references
    weights(after)      <---------  newest buckets   <-------------  publish(step, version)
    result(...)         --------->  evaluation       <------------>  evaluate(step, ...)

It holds counts, metadata and references, never rows or weights. A call that has to wait returns
None after `WAIT_S`, so that its caller can check for a stop request. Left out: Ray
(`siirl.dag_worker.separate.ray_exchange`); one object serves threads in tests.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from siirl.dag_worker.separate.line import Evaluation, Report, Taken, Weights, Work
from siirl.data_coordinator.coordinator import DataCoordinator
from siirl.data_coordinator.leases import Lease
from siirl.data_coordinator.queues import QueueKey
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import Finished, Prompt, RolloutLedger
from siirl.errors import InvariantError

WAIT_S = 0.5
HOLDER = "train"
PROMPT = "prompt"
"""Key of `SampleInfo.dict_info`: number of the prompt whose rows the entry has."""


class Exchange:
    """The exchange; call `open` first.

    Args:
        ledger: Counts prompts by state.
        node: Id of the node that gets the rows.
    """

    def __init__(self, *, ledger: RolloutLedger, node: str) -> None:
        self.ledger = ledger
        self.coordinator = DataCoordinator()
        self.key = QueueKey(node, 0)
        self.published: dict[int, Weights] = {}
        self._changed = asyncio.Condition()
        self._opened = self._over = False
        self._taken: list[tuple[Lease, list[Finished]]] = []
        self._reports: list[tuple[int, int, Report]] = []
        """Rollout rank, step and report."""
        self._rewards: dict[int, dict[str, float]] = {rank: {} for rank in range(ledger.ranks)}
        self._rewarded = dict.fromkeys(range(ledger.ranks), -1)
        self._calls = self._puts = 0
        self._evaluation: Evaluation | None = None
        self._results: dict[int, Any] = {}
        self._gathered: dict[tuple[int, int], dict[int, Any]] = {}
        self._discarded = 0

    # Training side

    async def open(
        self,
        version: int,
        position: int,
        state: Mapping[str, Any] | None,
        rows: Sequence[tuple[SampleInfo, Any]],
    ) -> None:
        """Let rollouts begin.

        Args:
            version: Number of completed training steps.
            position: Number of prompts already taken from the stream, if there is no `state`.
            state: The ledger's state from a checkpoint; None for a new run, or one that was
                colocated before.
            rows: Metadata and reference of each prompt that waited to be used.
        """
        if state is None:
            self.ledger.version, self.ledger.position = version, position
            self.ledger.used = self.ledger.used_before = version * self.ledger.batch
        else:
            self.ledger.load_state_dict(dict(state))
            self._put([info for info, _ in rows], [ref for _, ref in rows])
        self._opened = True
        await self._notify()

    async def publish(self, weights: Weights) -> None:
        """Offer the weights of a step, which ends it: its rows are used."""
        self.published[weights.step] = weights
        if self._opened:
            self.ledger.step_done(weights.step)
            for lease, _ in self._taken:
                self.coordinator.acknowledge(lease.lease_id)
            self._taken = []
        oldest = weights.step - (0 if self.ledger.streaming else self.ledger.max_staleness)
        self.published = {step: kept for step, kept in self.published.items() if step >= oldest}
        await self._notify()

    async def take(self, step: int, count: int) -> Taken | None:
        """`count` prompts with their rows for a step; None if they are not complete yet."""
        for _ in range(2):
            self._drop_old()
            taken = self.ledger.take(count, step=step)
            if taken is not None:
                return self._deliver(taken)
            await self._wait()
        return None

    async def references(self, numbers: Sequence[int]) -> list[Any]:
        """The reference of the rows of each taken prompt; None where all its episodes failed.

        Each training rank asks for those of its share: Ray knows the owner of an object only on a
        process that got the reference from Ray.
        """
        taken = {
            info.dict_info[PROMPT]: ref
            for lease, _ in self._taken  # rows that were lost are in an earlier lease
            for info, ref in zip(lease.infos, lease.refs, strict=True)
        }
        return [taken[number] for number in numbers]

    async def lost(self, numbers: Sequence[int]) -> None:
        """Restart taken prompts whose rows were lost with their rank."""
        for lease, prompts in self._taken:
            again = [entry for entry in prompts if entry.prompt.number in numbers]
            self.ledger.take_back(entry.prompt for entry in again)
            prompts[:] = [entry for entry in prompts if entry not in again]
        await self._notify()

    async def refill(self, step: int, count: int) -> None:
        """Ask for `count` further prompts for the step under way."""
        self.ledger.refill(step, count)
        await self._notify()

    async def send_rewards(self, step: int, rewards: Mapping[str, float]) -> None:
        """Send the rewards of a step's samples to the rollout ranks, for their recordings."""
        for rank, known in self._rewards.items():
            known |= rewards
            self._rewarded[rank] = step
        await self._notify()

    async def evaluate(self, step: int, greedy: bool, record: bool) -> None:
        """Ask for an evaluation with the weights of `step`."""
        self._calls += 1
        self._evaluation = Evaluation(self._calls, step, greedy, record)
        self._results, self._gathered = {}, {}
        await self._notify()

    async def results(self) -> list[Any] | None:
        """Results of the rollout ranks' evaluation; None while one still works."""
        if len(self._results) < self.ledger.ranks:
            await self._wait()
        if len(self._results) < self.ledger.ranks:
            return None
        self._evaluation = None
        return [self._results[rank] for rank in range(self.ledger.ranks)]

    async def state(self, complete: bool) -> dict[str, Any] | None:
        """The ledger, and metadata and references of all rows that wait to be used.

        Args:
            complete: In block mode, wait until no prompt runs under weights older than the newest,
                because a resumed run has no older ones. Returns None while such prompts run.
        """
        last = self.ledger.version + self.ledger.max_staleness
        if complete and not self.ledger.streaming and self.ledger.due_until(last):
            await self._wait()
            if self.ledger.due_until(last):
                return None
        unused = [entry for _, prompts in self._taken for entry in prompts]
        waiting = self._lease(list(self.ledger.finished))
        leases = [lease for lease, _ in self._taken] + ([waiting] if waiting else [])
        known = {entry.prompt.number for entry in unused} | set(self.ledger.finished)
        rows = {
            info.dict_info[PROMPT]: (info, ref)
            for lease in leases
            for info, ref in zip(lease.infos, lease.refs, strict=True)
            if info.dict_info[PROMPT] in known
        }
        if waiting:
            self.coordinator.release(waiting.holder)
        ledger = self.ledger.state_dict(unused)
        return {"ledger": ledger, "rows": [rows[number] for number, _, _ in ledger["finished"]]}

    async def totals(self) -> dict[str, int]:
        """Prompts by outcome (`RolloutLedger.totals`)."""
        return self.ledger.totals()

    async def end(self) -> None:
        """Signal the end of the run to the rollout ranks."""
        self._over = True
        await self._notify()

    # Rollout side

    async def work(self, rank: int, wanted: int, acting: int) -> Work:
        """The next work of `rank`, whose weights are those of step `acting`: up to `wanted`
        prompts, an evaluation, or nothing yet.
        """
        found = self._work(rank, wanted, acting)
        if found == Work():
            await self._wait()
            found = self._work(rank, wanted, acting)
        return found

    async def weights(self, step: int | None, after: int) -> Weights | None:
        """Weights of `step`, or the newest after step `after`; None if not published yet."""
        for _ in range(2):
            newest = max(self.published, default=-1) if step is None else step
            if newest in self.published and newest > after:
                return self.published[newest]
            await self._wait()
        return None

    async def put(
        self,
        rank: int,
        entries: Sequence[tuple[Prompt, SampleInfo, Any, int]],
        report: Report | None,
    ) -> None:
        """Hand over rows; those of a prompt that another rank has by now are ignored.

        Args:
            rank: Rollout rank.
            entries: Prompt, metadata, reference of its rows (None: no episode could be simulated)
                and step of the oldest weights that acted.
            report: Metrics since the last one.
        """
        if report is not None:
            self._reports.append((rank, max(entry[0].step for entry in entries), report))
        for prompt, info, ref, version in entries:
            if self.ledger.finish(rank, prompt, version=version):
                self._put([info], [ref])
        await self._notify()

    async def gather(self, call: int, number: int, rank: int, thing: Any) -> list[Any] | None:
        """Objects of all rollout ranks for gather number `number` of evaluation `call`; None:
        incomplete.
        """
        given = self._gathered.setdefault((call, number), {})
        given[rank] = thing
        await self._notify()
        if len(given) < self.ledger.ranks:
            await self._wait()
        if len(given) < self.ledger.ranks:
            return None
        return [given[other] for other in range(self.ledger.ranks)]

    async def result(self, rank: int, call: int, found: Any) -> None:
        """Answer an evaluation."""
        if self._evaluation is not None and self._evaluation.call == call:
            self._results[rank] = found
            await self._notify()

    async def rank_died(self, rank: int) -> None:
        """Requeue the prompts of a dead rollout rank, for another rank or its replacement."""
        numbers = self.ledger.lost(rank)
        lost = self._lease(numbers)
        if lost is not None:
            self.coordinator.acknowledge(lost.lease_id)
        self._results.pop(rank, None)
        await self._notify()

    # Inside

    def _work(self, rank: int, wanted: int, acting: int) -> Work:
        if self._over or not self._opened:
            return Work(over=self._over)
        news: dict[str, Any] = {
            "rewards": self._rewards[rank],
            "rewarded_step": self._rewarded[rank],
        }
        self._rewards[rank], self._rewarded[rank] = {}, -1
        command = self._evaluation
        if command is not None and rank not in self._results:
            return Work(evaluation=command, **news)
        if self.ledger.streaming:
            prompts = self.ledger.next_prompts(rank, wanted, acting=acting)
            return Work(tuple(prompts), **news)
        block = self.ledger.next_block(rank) if wanted else None
        if block is None:
            return Work(**news)
        scheduled = block[0].step - 1 - self.ledger.max_staleness
        return Work(tuple(block), weights_step=max(min(self.published), scheduled), **news)

    def _put(self, infos: list[SampleInfo], refs: list[Any]) -> None:
        for info in infos:  # a prompt that runs again stores its rows again
            self._puts += 1
            info.uid = f"{info.dict_info[PROMPT]}/{self._puts}"
        if not self.coordinator.put_batch(self.key, infos, refs):
            raise InvariantError(
                f"{len(infos)} prompts do not fit in the buffer, whose bound the ledger keeps."
            )

    def _lease(self, numbers: Sequence[int], holder: str = "look") -> Lease | None:
        if not numbers:
            return None
        wanted = frozenset(numbers)
        lease = self.coordinator.get_batch(
            self.key,
            count=len(wanted),
            holder=holder,
            filter_plugin=lambda info: info.dict_info[PROMPT] in wanted,
        )
        if lease is None:
            raise InvariantError(f"The buffer lacks some of the prompts {sorted(wanted)}.")
        return lease

    def _drop_old(self) -> None:
        if not self.ledger.streaming:
            return
        dropped = self._lease(self.ledger.too_old())
        if dropped is not None:
            self._discarded += len(dropped.infos)
            self.coordinator.acknowledge(dropped.lease_id)

    def _deliver(self, taken: list[Finished]) -> Taken:
        lease = self._lease([entry.prompt.number for entry in taken], HOLDER)
        assert lease is not None
        place = {info.dict_info[PROMPT]: i for i, info in enumerate(lease.infos)}
        order = [place[entry.prompt.number] for entry in taken]
        self._taken.append((lease, list(taken)))
        reports = self._due_reports(max(entry.prompt.step for entry in taken))
        discarded, self._discarded = self._discarded, 0
        return Taken(
            prompts=tuple(taken),
            infos=tuple(lease.infos[i] for i in order),
            reports=tuple(reports),
            discarded=discarded,
        )

    def _due_reports(self, step: int) -> list[tuple[int, Report]]:
        """Reports so far; in block mode only those of the step, sorted, so timing has no effect."""
        due = self._reports
        if not self.ledger.streaming:
            due = sorted((entry for entry in due if entry[1] <= step), key=lambda entry: entry[0])
        self._reports = [entry for entry in self._reports if entry not in due]
        return [(rank, report) for rank, _, report in due]

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self) -> None:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait(), WAIT_S)
            except TimeoutError:
                return
