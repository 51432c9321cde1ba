"""The training ranks' side of the exchange, and substitutes for components of rollout ranks.

`TrainingSide` is the context's `buffer`: the node that gets rows calls `get`. Rank 0 calls the
exchange and broadcasts its answers, so that all ranks take the same decisions; each rank fetches
only the references of its own share. The other classes replace a colocated rank's loader,
validator, collector and rollout.
"""

# B trajectory of this rank

import itertools
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from envs.base import EnvSpec
from siirl.dag_worker.no_rows import with_columns_of_all
from siirl.dag_worker.rollout_collector import refuse_segments
from siirl.dag_worker.separate.exchange import PROMPT
from siirl.dag_worker.separate.line import LOST, Line, Report, Taken
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.data_coordinator.balance import get_seqlen_balanced_partitions
from siirl.data_coordinator.prompts.prompt_loader import PromptLoader
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.data_coordinator.task_stream import Outcomes, TaskLoader
from siirl.engine.training.collectives import Collectives
from siirl.errors import TooManyFailures
from siirl.execution.dag import NodeOutput
from siirl.interrupts import STOP, Interrupted
from siirl.occupation import OCCUPATION
from siirl.reporting.metric_reduction import combine, merge_rounds
from siirl.reporting.metrics import Value, Weighted

VERSIONS = "policy_versions"
"""Column of the version of each token; a robot's chunk has one for all its tokens."""
STATE = "rollouts"
"""Key of a checkpoint's state: prompts under way, and rows that wait to be used."""


class TrainingSide:
    """Takes rows for training steps.

    Args:
        line: This rank's connection to the exchange.
        ranks: The training ranks.
        publisher: Publishes the weights.
        max_failed_share: `env.max_failed_share`.
        max_staleness: `trainer.max_staleness`.
    """

    def __init__(
        self,
        *,
        line: Line,
        ranks: Collectives,
        publisher: WeightPublisher,
        max_failed_share: float,
        max_staleness: int,
    ) -> None:
        self.line, self.ranks, self.publisher = line, ranks, publisher
        self.max_failed_share, self.max_staleness = max_failed_share, max_staleness
        self.taken = 0
        """Prompts taken in the current step."""
        self.waited_s = 0.0
        self._stepped_at = time.perf_counter()

    # Rows

    def get(self, *, step: int, prompts: int) -> NodeOutput:
        """This rank's rows of the step's first `prompts` prompts, without rows returned earlier.

        Raises:
            Interrupted: The run was interrupted; the same on every rank.
            TooManyFailures: Too many episodes could not be simulated, or none could.
        """
        if step != self.publisher.step:
            self.publisher.step, self.taken = step, 0
        count = prompts - self.taken
        if self.taken and self.ranks.rank == 0:
            self.line.call("refill", step, count)
        self.taken = prompts
        begin = time.perf_counter()
        parts: list[tuple[tuple[int, int], dict[str, Any]]] = []
        reports: list[tuple[int, Report]] = []
        discarded = 0
        while count:
            taken = self._take(step, count)
            reports += taken.reports
            discarded += taken.discarded
            rows, count = self._fetch(taken)
            parts += rows
        self.waited_s += time.perf_counter() - begin
        self._check_failures(reports)
        samples = [Sample(columns) for _, columns in sorted(parts, key=lambda part: part[0])]
        batch = with_columns_of_all(Samples2Dict(samples), ranks=self.ranks)
        metrics: dict[str, Value] = {} if self.ranks.rank else _of_rollouts(reports)
        return NodeOutput(
            batch=batch, metrics=metrics | self._metrics(batch, taken=prompts, discarded=discarded)
        )

    def _take(self, step: int, count: int) -> Taken:
        with OCCUPATION.doing(f"waits for the rollouts of step {step}", waiting=True):
            while True:
                taken: Taken | None = None
                if self.ranks.rank == 0:
                    taken = self.line.call("take", step, count)
                stop, taken = self.ranks.broadcast_object((STOP.number, taken))
                if taken is not None:
                    return taken
                if stop is not None:
                    raise Interrupted(stop or signal.SIGTERM)

    def _fetch(self, taken: Taken) -> tuple[list[tuple[tuple[int, int], dict[str, Any]]], int]:
        """Rows of this rank's share with their place in the step, and how many prompts are lost."""
        share = shares(taken.infos, ranks=self.ranks.size)[self.ranks.rank]
        own = [taken.prompts[place].prompt.number for place in share]
        references = dict(zip(own, self.line.call("references", own), strict=True))
        present = [number for number in own if references[number] is not None]
        fetched = self.line.fetch([references[number] for number in present])
        lost, rows = [], []
        for number, columns_of_rows in zip(present, fetched, strict=True):
            if columns_of_rows is LOST:
                lost.append(number)
                continue
            rows += [((number, row), columns) for row, columns in enumerate(columns_of_rows)]
        numbers = list(itertools.chain(*self.ranks.gather_objects(lost)))
        if numbers and self.ranks.rank == 0:
            self.line.call("lost", numbers)
        return rows, len(numbers)

    def _check_failures(self, reports: Sequence[tuple[int, Report]]) -> None:
        episodes = sum(report.episodes for _, report in reports)
        failed = [reason for _, report in reports for reason in report.failed]
        if len(failed) > self.max_failed_share * episodes:
            raise TooManyFailures(
                f"{len(failed)} of {episodes} episodes could not be simulated, more than "
                f"env.max_failed_share={self.max_failed_share} allows. The first: {failed[0]}"
            )

    def _metrics(self, batch: TensorDict, *, taken: int, discarded: int) -> dict[str, Value]:
        now = time.perf_counter()
        idle = self.waited_s / max(now - self._stepped_at, 1e-9)
        self._stepped_at, self.waited_s = now, 0.0
        found: dict[str, Value] = {"group/train/idle_share": idle}
        if self.max_staleness == 0:
            return found
        behind = self._behind(batch["policy_version"])
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

    def _behind(self, versions_B: torch.Tensor) -> torch.Tensor:
        """Training steps by which the oldest weights that acted in each row are behind."""
        known = self.publisher.steps_of_versions
        newest = max(known.values())
        return torch.tensor([newest - known[int(version)] for version in versions_B])

    # Checkpoints

    def state(self, step: int) -> dict[str, Any]:
        """State of the rollouts for a run that resumes after `step`; the same on every rank."""
        state: dict[str, Any] | None = None
        if self.ranks.rank == 0:
            state = self._state(complete=step == self.publisher.step)
        return {STATE: self.ranks.broadcast_object(state or {})}

    def _state(self, *, complete: bool) -> dict[str, Any]:
        with OCCUPATION.doing("waits for the rollouts that older weights act on", waiting=True):
            found = self.line.call("state", complete)
            while found is None:
                found = self.line.call("state", complete and STOP.number is None)
        ledger = found["ledger"]
        rows = self.line.fetch([ref for _, ref in found["rows"] if ref is not None])
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
        return {
            "ledger": ledger,
            "rows": found.get("kept", []),
            "versions": dict(self.publisher.steps_of_versions),
        }

    def open(self, *, step: int, position: int, resumed: Mapping[str, Any]) -> None:
        """Let the rollouts begin, after the weights of `step` were published; `resumed` is the
        state of the checkpoint that was loaded, empty if none was.
        """
        state = resumed.get(STATE)
        if state is not None:  # each rank measures how old its own rows are
            self.publisher.steps_of_versions |= state["versions"]
        if self.ranks.rank != 0:
            return
        rows = []
        if state is not None:
            for (number, _, _), kept in zip(
                state["ledger"]["finished"], state["rows"], strict=True
            ):
                info = SampleInfo(sum_tokens=kept["tokens"], dict_info={PROMPT: number})
                rows.append((info, self.line.store(kept["rows"]) if kept["rows"] else None))
        ledger = None if state is None else state["ledger"]
        self.line.call("open", step, position, ledger, rows)


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


class DistantLoader:
    """The stream of prompts; the exchange hands out positions in it.

    Args:
        loader: The whole stream, as one rank sees it.
    """

    def __init__(self, loader: TaskLoader | PromptLoader) -> None:
        self.loader = loader

    def draw(self, count: int) -> Sequence[Any]:
        """Count the prompts; the rollout ranks have them."""
        self.loader.position += count
        return []

    def observe(self, outcomes: Sequence[Outcomes]) -> None:
        """Nothing: streams that depend on outcomes need colocated rollouts."""

    def metrics(self) -> dict[str, float]:
        """Position in the data."""
        return dict(self.loader.metrics())

    def passes(self) -> float:
        """Number of passes over all prompts."""
        return self.loader.passes()

    def state_dict(self) -> dict[str, Any]:
        """See `Loader`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Loader`."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """See `Loader`."""
        self.loader.close()


class DistantCollector:
    """Sends rewards to the rollout ranks, which record episodes."""

    def __init__(self, *, side: TrainingSide, spec: EnvSpec) -> None:
        self.side = side
        self.reports_success = spec.reports_success
        self._rewards: dict[str, float] = {}

    def write_recordings(self, rewards: Mapping[str, float]) -> None:
        """Keep rewards by uid; the call without any, at the end of a step, sends them."""
        self._rewards |= rewards
        if rewards or self.side.ranks.rank != 0:
            return
        self.side.line.call("send_rewards", self.side.publisher.step, self._rewards)
        self._rewards = {}

    def state_dict(self) -> dict[str, Any]:
        """Empty: rollout ranks play whole episodes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RolloutCollector`."""
        refuse_segments(state)


class DistantValidator:
    """Has the rollout ranks evaluate the policy of the last step."""

    def __init__(self, *, side: TrainingSide, kinds: Sequence[bool]) -> None:
        self.side = side
        self.kinds = tuple(kinds)

    def evaluate(self, *, step: int, greedy: bool = False, record: bool = True) -> dict[str, Value]:
        """See `Validator`; rank 0 gets the counts of all ranks.

        Raises:
            Interrupted: The run was interrupted; the same on every rank.
        """
        side = self.side
        if side.ranks.rank == 0:
            side.line.call("evaluate", step, greedy, record)
        with OCCUPATION.doing("waits for the evaluation", waiting=True):
            while True:
                found = side.line.call("results") if side.ranks.rank == 0 else None
                stop, there = side.ranks.broadcast_object((STOP.number, found is not None))
                if there:
                    return {} if found is None else combine(found)
                if stop is not None:
                    raise Interrupted(stop)


class DistantRollout:
    """Replaces the rollout on a rank without environments and engine."""

    def __init__(self, side: TrainingSide) -> None:
        self.side = side

    def start(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Signal the end of the run to the rollout ranks."""
        if self.side.ranks.rank == 0:
            self.side.line.call("end")


class NoEpisodeLog:
    """Replaces the episode log on a rank that records nothing."""

    def close(self) -> None:
        """Nothing to finish."""


def columns_of(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Rows as plain columns: numbers, strings and arrays, which a checkpoint may hold."""
    return [{name: _plain(value) for name, value in row.columns.items()} for row in samples]


def _plain(value: Any) -> Any:
    """A number for an array without axes."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
