"""The training ranks' side of the exchange: rows of each agent group, and steps of the run.

`TrainingSide` is the context's `exchange`: the node that gets rows calls `get`. Rank 0 calls the
exchange and broadcasts its answers, so that all ranks take the same decisions; each rank fetches
only the references of its own share. `SeparateRollouts` has what the agent groups share: steps, and
the state of a checkpoint. Left out: what a training rank has in place of rollouts
(`siirl.dag_worker.separate.substitutes`).
"""

# B trajectory of this rank

import itertools
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from siirl.dag_worker.agent_groups import AGENTS, ROLLOUTS
from siirl.dag_worker.empty_ranks import with_columns_of_all
from siirl.dag_worker.separate.edge import PROMPT
from siirl.dag_worker.separate.exchange_messages import LOST, Report, StepPrompts
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.data_coordinator.balance import get_seqlen_balanced_partitions
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.rollout import too_many_failures
from siirl.engine.training.collectives import Collectives
from siirl.execution.dag import NodeOutput
from siirl.interrupts import STOP, Interrupted
from siirl.occupation import OCCUPATION
from siirl.reporting.metric_reduction import combine, merge_rounds
from siirl.reporting.metrics import Value, Weighted

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine

VERSIONS = "policy_versions"
"""Column with the weight version of each token; a robot's chunk has one for all its tokens."""


class TrainingSide:
    """Takes rows of an agent group for training steps.

    Args:
        group: Number of the agent group.
        rollouts: The rollout ranks of the run.
        ranks: The training ranks.
        publisher: Publishes the group's acting weights.
        max_failed_share: `env.max_failed_share`.
        max_staleness: `trainer.max_staleness`.
    """

    def __init__(
        self,
        *,
        group: int,
        rollouts: "SeparateRollouts",
        ranks: Collectives,
        publisher: WeightPublisher,
        max_failed_share: float,
        max_staleness: int,
    ) -> None:
        self.group = group
        self.rollouts = rollouts
        self.ranks = ranks
        self.publisher = publisher
        self.max_failed_share, self.max_staleness = max_failed_share, max_staleness
        self.draws = True
        """Whether the group draws prompts; if not, its rows come from episodes of another group."""
        self._step = -1
        self.taken = 0
        """Prompts taken in the current step."""
        self.waited_s = 0.0
        self._stepped_at = time.perf_counter()
        rollouts.sides[group] = self

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the exchange for this agent group."""
        return self.rollouts.line.call(method, self.group, *arguments)

    # Rows

    def get(self, *, step: int, prompts: int) -> NodeOutput:
        """This rank's rows of the step's first `prompts` prompts, without rows returned earlier.

        Raises:
            Interrupted: The run was interrupted; the same on every rank.
            TooManyFailures: Too many episodes could not be simulated, or none could.
        """
        if step != self._step:
            self._step, self.taken = step, 0
        count = prompts - self.taken
        if self.taken and self.ranks.rank == 0:
            self.call("refill", step, count)
        self.taken = prompts
        begin, sent_before = time.perf_counter(), self.publisher.sending_s
        parts: list[tuple[tuple[int, int], dict[str, Any]]] = []
        reports: list[tuple[int, Report]] = []
        discarded = 0
        while count:
            taken = self._take(step, count)
            reports += taken.reports
            discarded += taken.discarded
            rows, count = self._fetch(taken)
            parts += rows
        sending = self.publisher.sending_s - sent_before
        self.waited_s += time.perf_counter() - begin - sending
        self._check_failures(reports)
        samples = [Sample(columns) for _, columns in sorted(parts, key=lambda part: part[0])]
        batch = with_columns_of_all(Samples2Dict(samples), ranks=self.ranks)
        metrics: dict[str, Value] = {} if self.ranks.rank else _of_rollouts(reports)
        return NodeOutput(
            batch=batch, metrics=metrics | self._metrics(batch, taken=prompts, discarded=discarded)
        )

    def _take(self, step: int, count: int) -> StepPrompts:
        with OCCUPATION.doing(f"waits for the rollouts of step {step}", waiting=True):
            while True:
                taken: StepPrompts | None = None
                if self.ranks.rank == 0:
                    taken = self.call("take", step, count)
                stop, taken = self.ranks.broadcast_object((STOP.number, taken))
                if taken is not None:
                    return taken
                if stop is not None:
                    raise Interrupted(stop or signal.SIGTERM)
                self.publisher.serve()

    def _fetch(
        self, taken: StepPrompts
    ) -> tuple[list[tuple[tuple[int, int], dict[str, Any]]], int]:
        """Rows of this rank's share with their place in the step, and how many prompts are lost."""
        share = shares(taken.infos, ranks=self.ranks.size)[self.ranks.rank]
        own = [taken.prompts[place].prompt.number for place in share]
        references = dict(zip(own, self.call("references", own), strict=True))
        present = [number for number in own if references[number] is not None]
        fetched = self.rollouts.line.fetch([references[number] for number in present])
        lost, rows = [], []
        for number, columns_of_rows in zip(present, fetched, strict=True):
            if columns_of_rows is LOST:
                lost.append(number)
                continue
            rows += [((number, row), columns) for row, columns in enumerate(columns_of_rows)]
        numbers = list(itertools.chain(*self.ranks.gather_objects(lost)))
        if numbers and self.ranks.rank == 0:
            self.call("lost", numbers)
        return rows, len(numbers)

    def _check_failures(self, reports: Sequence[tuple[int, Report]]) -> None:
        episodes = sum(report.episodes for _, report in reports)
        failed = [reason for _, report in reports for reason in report.failed]
        if len(failed) > self.max_failed_share * episodes:
            raise too_many_failures(
                len(failed),
                episodes=episodes,
                max_failed_share=self.max_failed_share,
                first=failed[0],
            )

    def _metrics(self, batch: TensorDict, *, taken: int, discarded: int) -> dict[str, Value]:
        now = time.perf_counter()
        idle = self.waited_s / max(now - self._stepped_at, 1e-9)
        self._stepped_at, self.waited_s = now, 0.0
        found: dict[str, Value] = {"group/train/idle_share": idle}
        if self.max_staleness == 0:
            return found
        behind = self._behind(batch)
        found["staleness/samples"] = behind.tolist()
        found["staleness/stale_share"] = _share(behind > 0)
        if VERSIONS in batch.keys():
            own = batch["response_mask"].bool()
            versions = batch[VERSIONS]
            newest = torch.where(own, versions, versions.min()).amax(1)
            found["staleness/mixed_share"] = _share(newest > batch["policy_version"])
        if self.ranks.rank == 0:
            found["staleness/discarded_prompts"] = float(discarded)
            found["staleness/discarded_share"] = discarded / (discarded + taken)
        return found

    def _behind(self, batch: TensorDict) -> torch.Tensor:
        """Age in training steps of the oldest weights that acted in each row."""
        known = self.rollouts.steps_of_versions()
        groups = batch.get("agent_group", torch.full((len(batch),), self.group)).tolist()
        versions = batch["policy_version"].tolist()
        return torch.tensor(
            [
                max(known[group].values()) - known[group][version]
                for group, version in zip(groups, versions, strict=True)
            ],
            dtype=torch.int64,
        )

    # Checkpoints

    def state(self, *, complete: bool) -> dict[str, Any]:
        """Running prompts and waiting rows; called on rank 0."""
        with OCCUPATION.doing("waits for rollouts with older weights", waiting=True):
            found = self.call("state", complete)
            while found is None:
                found = self.call("state", complete and STOP.number is None)
        ledger = found["ledger"]
        rows = self.rollouts.line.fetch([ref for _, ref in found["rows"] if ref is not None])
        fetched = iter(rows)
        kept, again = [], []
        for (number, step, version), (info, ref) in zip(
            ledger["finished"], found["rows"], strict=True
        ):
            columns = [] if ref is None else next(fetched)
            if columns is LOST:
                again.append((number, step))
                continue
            kept.append((number, step, version))
            rows_of_prompt = {"tokens": info.sum_tokens, "rows": columns}
            found.setdefault("kept", []).append(rows_of_prompt)
        ledger = ledger | {"finished": kept, "pending": sorted([*ledger["pending"], *again])}
        reports = [(rank, step, *report.packed()) for rank, step, report in found["reports"]]
        return {"ledger": ledger, "rows": found.get("kept", []), "reports": reports}

    def open(self, *, step: int, position: int, state: Mapping[str, Any] | None) -> None:
        """Let the rollouts begin; called on rank 0."""
        rows = []
        ledger = None if state is None else state["ledger"]
        if state is not None and ledger is not None:
            for (number, _, _), kept in zip(ledger["finished"], state["rows"], strict=True):
                info = SampleInfo(sum_tokens=kept["tokens"], dict_info={PROMPT: number})
                stored = self.rollouts.line.store(kept["rows"]) if kept["rows"] else None
                rows.append((info, stored))
        reports = [
            (rank, step_of_report, Report.unpacked(*packed))
            for rank, step_of_report, *packed in (state or {}).get("reports", ())
        ]
        self.call("open", step, position, ledger, rows, reports)


class SeparateRollouts:
    """The rollout ranks of a run, as a training rank sees them; a `PlacedRollouts`.

    Args:
        line: This rank's connection to the exchange.
    """

    colocated = False

    def __init__(self, line: "ExchangeLine") -> None:
        self.line = line
        self.sides: dict[int, TrainingSide] = {}
        """By agent group."""

    def begin_step(self, step: int) -> None:
        """See `PlacedRollouts`."""
        for side in self.sides.values():
            side.publisher.step = step

    def step_done(self) -> dict[str, Value]:
        """See `PlacedRollouts`."""
        begin = time.perf_counter()
        self._act()
        transfers = self._any_side.publisher.transfers()
        if not transfers:
            return {}
        return transfers | {"time/send_weights_s": time.perf_counter() - begin}

    def _act(self) -> None:
        """Let the weights of the running step act."""
        for side in self.sides.values():
            side.publisher.step_done()
        side = self._any_side
        if side.ranks.rank == 0:
            self.line.call("step_done", side.publisher.step)
        side.publisher.serve()

    def steps_of_versions(self) -> dict[int, dict[int, int]]:
        """For each agent group, the last training step that ended with a version."""
        return {group: side.publisher.steps_of_versions for group, side in self.sides.items()}

    def open(
        self, *, step: int, positions: Mapping[int, int], resumed: Mapping[str, Any] | None
    ) -> None:
        """See `PlacedRollouts`."""
        states = self._of_groups({} if resumed is None else resumed.get(ROLLOUTS, {}))
        for group, side in self.sides.items():
            state = states.get(group)
            if state is not None:  # each rank measures the age of its own rows
                side.publisher.steps_of_versions |= state["versions"]
            side.draws = group in positions
            if side.ranks.rank == 0 and side.draws:
                side.open(step=step, position=positions[group], state=state)
        self._act()
        if self._any_side.ranks.rank == 0:  # the first step is not to contain their start
            with OCCUPATION.doing("waits until the rollout ranks have started", waiting=True):
                while not self.line.call("all_ready"):
                    pass

    def state(self, step: int) -> dict[str, Any]:
        """State of the rollouts for a run that resumes after `step`; the same on every rank."""
        ranks, states = self._any_side.ranks, dict[int, dict[str, Any]]()
        if ranks.rank == 0:
            for group, side in self.sides.items():
                complete = step == side.publisher.step
                own = side.state(complete=complete) if side.draws else {}
                states[group] = own | {"versions": dict(side.publisher.steps_of_versions)}
        states = ranks.broadcast_object(states)
        return {ROLLOUTS: {AGENTS: states} if len(self.sides) > 1 else states[min(states)]}

    def _of_groups(self, state: Mapping[str, Any]) -> Mapping[int, Mapping[str, Any]]:
        if not state:
            return {}
        return state[AGENTS] if AGENTS in state else {min(self.sides): state}

    @property
    def _any_side(self) -> TrainingSide:
        return next(iter(self.sides.values()))


def shares(infos: Sequence[SampleInfo], *, ranks: int) -> list[list[int]]:
    """Indices into `infos` for each rank, balanced by work; a prompt's rows stay together."""
    if ranks == 1:
        return [list(range(len(infos)))]
    work = [max(1, info.sum_tokens) for info in infos]
    parts = get_seqlen_balanced_partitions(work, ranks, equal_size=len(infos) % ranks == 0)
    return [sorted(part) for part in parts]


def _of_rollouts(reports: Sequence[tuple[int, Report]]) -> dict[str, Value]:
    of_rank: dict[int, list[Mapping[str, Value]]] = {}
    for rank, report in reports:
        of_rank.setdefault(rank, []).append(report.metrics)
    merged = [record for records in of_rank.values() for record in merge_rounds(records)]
    return combine(merged)


def _share(values_B: torch.Tensor) -> Weighted:
    return Weighted(float(values_B.float().mean()) if len(values_B) else 0.0, float(len(values_B)))


def columns_of(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Rows as plain columns: numbers, strings and arrays, which a checkpoint may hold."""
    return [{name: _plain(value) for name, value in row.columns.items()} for row in samples]


def _plain(value: Any) -> Any:
    """A number for an array without axes."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
