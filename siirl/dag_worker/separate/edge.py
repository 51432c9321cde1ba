"""The edge of one agent group between `rollout` and `train`: its ledger and its rows in transit.

Rows of finished prompts wait in the DataCoordinator, under the id of the node that gets them. A
group that draws no prompts, because others play episodes with it, has no edge. Left out: waiting
and weights (`siirl.dag_worker.separate.exchange`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from siirl.dag_worker.separate.exchange_messages import Report, Rewards, StepPrompts
from siirl.data_coordinator.coordinator import DataCoordinator
from siirl.data_coordinator.leases import Lease
from siirl.data_coordinator.queues import QueueKey
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import FinishedPrompt, Prompt, RolloutLedger
from siirl.errors import InvariantError

HOLDER = "train"
PROMPT = "prompt"
"""Key of `SampleInfo.dict_info`: number of the prompt whose rows the entry has."""
NOTHING = Rewards({}, step=-1)


class Edge:
    """The edge; call `open` first.

    Args:
        ledger: Counts prompts by state.
        node: Id of the node that gets the rows.
    """

    def __init__(self, *, ledger: RolloutLedger, node: str) -> None:
        self.ledger = ledger
        self.coordinator = DataCoordinator()
        self.key = QueueKey(node, 0)
        self.opened = False
        self._taken: list[tuple[Lease, list[FinishedPrompt]]] = []
        self._reports: list[tuple[int, int, Report]] = []
        """Rollout rank, step and report."""
        self._told: list[tuple[int, int, Report]] = []
        """Prompts that an unfinished step has taken."""
        self._rewards = dict.fromkeys(range(ledger.ranks), NOTHING)
        self._puts = 0
        self._discarded = 0

    def open(
        self,
        version: int,
        position: int,
        state: Mapping[str, Any] | None,
        rows: Sequence[tuple[SampleInfo, Any]],
        reports: Sequence[tuple[int, int, Report]],
    ) -> None:
        """Let rollouts begin; see `Exchange.open`."""
        if state is None:
            self.ledger.version, self.ledger.position = version, position
            self.ledger.used = self.ledger.used_before = version * self.ledger.batch
        else:
            self.ledger.load_state_dict(dict(state))
            kept = [row for row in rows if row[0].dict_info[PROMPT] in self.ledger.finished]
            self._put([info for info, _ in kept], [ref for _, ref in kept])
            # reports of dropped rows go with them: no step trains on those episodes
            self._reports = list(reports) if len(kept) == len(rows) else []
        self.opened = True

    # Training side

    def take(self, step: int, count: int) -> StepPrompts | None:
        """See `Exchange.take`; does not wait."""
        self._drop_old()
        taken = self.ledger.take(count, step=step)
        return None if taken is None else self._deliver(taken)

    def references(self, numbers: Sequence[int]) -> list[Any]:
        """See `Exchange.references`."""
        taken = {}
        for lease, _ in self._taken:  # rows that were lost are in an earlier lease
            for info, ref in zip(lease.infos, lease.refs, strict=True):
                taken[info.dict_info[PROMPT]] = ref
        return [taken[number] for number in numbers]

    def lost(self, numbers: Sequence[int]) -> None:
        """Restart taken prompts whose rows were lost with their rank."""
        for lease, prompts in self._taken:
            again = [entry for entry in prompts if entry.prompt.number in numbers]
            self.ledger.take_back(entry.prompt for entry in again)
            prompts[:] = [entry for entry in prompts if entry not in again]

    def step_done(self, step: int) -> None:
        """Record that step `step` is complete: its rows are used."""
        self.ledger.step_done(step)
        for lease, _ in self._taken:
            self.coordinator.acknowledge(lease.lease_id)
        self._taken, self._told = [], []

    def add_rewards(self, step: int, rewards: Mapping[str, float]) -> None:
        """Keep the rewards of a step's samples for every rollout rank."""
        self._rewards = {
            rank: Rewards({**known.by_uid, **rewards}, step=step)
            for rank, known in self._rewards.items()
        }

    def is_behind(self) -> bool:
        """Whether blocks run, or will run, under weights older than the newest."""
        last = self.ledger.version + self.ledger.max_staleness
        return not self.ledger.streaming and self.ledger.due_until(last)

    def state(self) -> dict[str, Any]:
        """The ledger, metadata and references of all rows that wait to be used, and reports."""
        unused = [entry for _, prompts in self._taken for entry in prompts]
        waiting = self._lease(list(self.ledger.finished))
        leases = [lease for lease, _ in self._taken] + ([waiting] if waiting else [])
        known = {entry.prompt.number for entry in unused} | set(self.ledger.finished)
        rows = {}
        for lease in leases:
            for info, ref in zip(lease.infos, lease.refs, strict=True):
                if info.dict_info[PROMPT] in known:
                    rows[info.dict_info[PROMPT]] = (info, ref)
        if waiting:
            self.coordinator.release(waiting.holder)
        ledger = self.ledger.state_dict(unused)
        return {
            "ledger": ledger,
            "rows": [rows[number] for number, _, _ in ledger["finished"]],
            "reports": [*self._told, *self._reports],
        }

    # Rollout side

    def take_rewards(self, rank: int) -> Rewards:
        """Rewards since the last call of `rank`."""
        found, self._rewards[rank] = self._rewards[rank], NOTHING
        return found

    def put(
        self,
        rank: int,
        entries: Sequence[tuple[Prompt, SampleInfo, Any, int]],
        report: Report | None,
    ) -> None:
        """See `Exchange.put`."""
        if report is not None:
            self._reports.append((rank, max(entry[0].step for entry in entries), report))
        for prompt, info, ref, version in entries:
            if self.ledger.finish(rank, prompt, version=version):
                self._put([info], [ref])

    def rank_died(self, rank: int) -> None:
        """Requeue the prompts of a dead rollout rank."""
        lost = self._lease(self.ledger.lost(rank))
        if lost is not None:
            self.coordinator.acknowledge(lost.lease_id)

    # Inside

    def _put(self, infos: list[SampleInfo], refs: list[Any]) -> None:
        for info in infos:  # a prompt that runs again stores its rows again
            self._puts += 1
            info.uid = f"{info.dict_info[PROMPT]}/{self._puts}"
        if not self.coordinator.put_batch(self.key, infos, refs):
            raise InvariantError(
                f"{len(infos)} prompts exceed the buffer's capacity, although the ledger enforces "
                "it."
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

    def _deliver(self, taken: list[FinishedPrompt]) -> StepPrompts:
        lease = self._lease([entry.prompt.number for entry in taken], HOLDER)
        assert lease is not None
        place = {info.dict_info[PROMPT]: i for i, info in enumerate(lease.infos)}
        order = [place[entry.prompt.number] for entry in taken]
        self._taken.append((lease, list(taken)))
        reports = self._due_reports(max(entry.prompt.step for entry in taken))
        discarded, self._discarded = self._discarded, 0
        return StepPrompts(
            prompts=tuple(taken),
            infos=tuple(lease.infos[i] for i in order),
            reports=tuple(reports),
            discarded=discarded,
        )

    def _due_reports(self, step: int) -> list[tuple[int, Report]]:
        """Reports so far. In block mode, only those of the step, sorted, so that timing has no
        effect.
        """
        due = self._reports
        if not self.ledger.streaming:
            due = sorted((entry for entry in due if entry[1] <= step), key=lambda entry: entry[0])
        self._reports = [entry for entry in self._reports if entry not in due]
        self._told += due
        return [(rank, report) for rank, _, report in due]
