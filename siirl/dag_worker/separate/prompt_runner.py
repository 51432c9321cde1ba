"""PromptRunner: runs the prompts of one agent group through the nodes of a rollout rank.

It keeps rows and metrics until the worker hands them to the exchange. Left out: which prompts, and
when (`siirl.dag_worker.separate.rollout_worker`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensordict import TensorDict

from siirl.dag_worker.dataflow import Dataflow
from siirl.dag_worker.empty_ranks import with_columns_of_all, with_columns_of_prompts
from siirl.dag_worker.metric_worker import plain_record
from siirl.dag_worker.separate.edge import PROMPT
from siirl.dag_worker.separate.exchange_messages import Report, RolloutProcess
from siirl.dag_worker.separate.rollout_ranks import RolloutParts
from siirl.dag_worker.separate.training_side import columns_of
from siirl.dag_worker.separate.weight_copies import WeightCopies
from siirl.data_coordinator.protocol.batch import check_shapes, shallow_copy
from siirl.data_coordinator.sample import Dict2Samples, Sample, Samples2Dict
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import Prompt
from siirl.engine.rollout.workflow import RolloutResult
from siirl.errors import ConfigError, InvariantError, TooManyFailures
from siirl.execution.dag import Node, NodeOutput, TaskGraph
from siirl.interrupts import Interrupted
from siirl.occupation import OCCUPATION
from siirl.reporting.metrics import Value

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine

REPORT_EVERY_S = 1.0  # in stream mode: counts over shorter times are noise

KEEP = (
    "A custom node in the group 'rollout' must return rows of its input and leave the columns "
    "index, uid and policy_version unchanged."
)

Entry = tuple[Prompt, SampleInfo, Any, int]
"""See `Exchange.put`."""


class PromptRunner:
    """Runs prompts of an agent group.

    Args:
        group: Number of the agent group.
        graph: The group's rollout nodes, which end with a PUT_TO_BUFFER node.
        parts: The group's components on this rank.
        copies: The weights that act on this rank.
        process: This process, for the exchange.
        line: Stores rows.
        memory: Metrics of the rank's memory since the last call, for each report.
    """

    def __init__(
        self,
        *,
        group: int,
        graph: TaskGraph,
        parts: RolloutParts,
        copies: WeightCopies[Any],
        process: RolloutProcess,
        line: "ExchangeLine",
        memory: Callable[[], dict[str, Value]],
    ) -> None:
        self.group = group
        self.parts = parts
        self.copies = copies
        self.process = process
        self.line = line
        self.memory = memory
        self._flow = Dataflow(
            graph,
            call=self._run_node,
            begin=lambda node, batch: None,
            draw=lambda group, more: self._drawn,
        )
        parts.context.exchange = self
        parts.context.collector.check = self._count
        self.running: set[asyncio.Task[None]] = set()
        """Prompts that run concurrently."""
        self.idle_s = 0.0
        """Time that the rank has waited for work since the last report."""
        self.swap_s = 0.0
        """Time in which it exchanged weights since then."""
        self._entries: list[Entry] = []
        self._prompts: dict[int, Prompt] = {}
        self._metrics: list[dict[str, Value]] = []
        self._result = RolloutResult()
        self._episodes = 0
        self._failed: list[str] = []
        self._reported_at = time.perf_counter()

    # Blocks

    def run_block(self, prompts: Sequence[Prompt]) -> tuple[list[Entry], Report]:
        """Run this rank's share of a step."""
        self.parts.context.step = prompts[0].step
        self._drawn = self._batch(prompts)
        self._prompts = self._of_groups(self._drawn, prompts)
        try:
            self._flow.run_step()
        except TooManyFailures:  # no episode of this rank; the training ranks decide over all
            self.put(self._drawn[:0])
        return self._take_entries(), self._report({})

    # Stream

    def wanted(self) -> int:
        """Prompts to ask for: one group waits while the others have all environments."""
        rollout, context = self.parts.rollout, self.parts.context
        n = context.config.actor_rollout_ref.rollout.n
        return max(0, -(-rollout.at_once // n) + 1 - len(self.running))

    def start(self, prompt: Prompt) -> None:
        """Start a prompt, concurrently with the running ones."""
        self.running.add(asyncio.ensure_future(self._run_prompt(prompt)))

    def check(self) -> None:
        """Remove finished prompts, and raise the error of one that failed."""
        for task in [task for task in self.running if task.done()]:
            self.running.remove(task)
            task.result()

    async def _run_prompt(self, prompt: Prompt) -> None:
        batch = self._batch([prompt])

        def resume() -> None:
            """Record which prompt's nodes run until the next wait for episodes."""
            self.parts.context.step = prompt.step
            self._prompts = self._of_groups(batch, [prompt])

        async def roll_out(prompts: TensorDict) -> TensorDict:
            result = await self._episodes_of(prompts, step=prompt.step)
            resume()
            rows = with_columns_of_all(result.training_batch(), ranks=self.parts.context.ranks)
            return with_columns_of_prompts(rows, prompts=prompts)

        resume()
        try:
            await self._flow.run_beside(batch, roll_out=roll_out)
        except TooManyFailures:  # no episode of the prompt
            self.put(batch[:0])
        entries, report = self._take_entries(), self._due_report()
        await self.line.acall("put", self.group, self.process, entries, report)

    async def _episodes_of(self, prompts: TensorDict, *, step: int) -> RolloutResult:
        collector = self.parts.context.collector
        requests = collector.requests(prompts, step=step)
        result = await self.parts.rollout.generate_beside(requests)
        self._count(result, episodes=len(requests))
        collector.recorder.keep(result.trajectories, kind="train", step=step)
        self._result.trajectories.extend(result.trajectories)
        self._result.failed.extend(result.failed)
        self._result.rejected.extend(result.rejected)
        return result

    def _due_report(self) -> Report | None:
        if since(self._reported_at) < REPORT_EVERY_S:
            return None
        stats = self.parts.rollout.take_stats(seconds=since(self._reported_at))
        result, self._result = self._result, RolloutResult()
        return self._report(self.parts.context.collector.measure(result, stats))

    # Rows

    def _batch(self, prompts: Sequence[Prompt]) -> TensorDict:
        loader: Any = self.parts.context.require_loader()
        tasks = loader.prompts_at([prompt.number for prompt in prompts])
        return Samples2Dict([Sample(task.columns()) for task in tasks])

    def _of_groups(self, batch: TensorDict, prompts: Sequence[Prompt]) -> dict[int, Prompt]:
        """The prompt of each group of rollouts."""
        return dict(zip(batch["index"].tolist(), prompts, strict=True))

    def _run_node(self, node: Node, batch: TensorDict, started: Any = None) -> NodeOutput:
        begin = time.perf_counter()
        with OCCUPATION.doing(f"computes node {node.node_id} of step {self.parts.context.step}"):
            output = node.run(
                batch=batch,
                copy=shallow_copy,
                settle=check_shapes,
                config=self.parts.context.config,
                context=self.parts.context,
                process_group=None,
                agent_group=node.agent_group,
                started=started,
            )
        if output.more_prompts:
            raise ConfigError(
                f"Node {node.node_id!r} of the group 'rollout' asks for more prompts, but only "
                "training ranks can do so: set group=train, or leave its group out."
            )
        self._metrics.append({**output.metrics, f"time/{node.node_id}_s": since(begin)})
        return output

    def put(self, batch: TensorDict) -> None:
        """Keep the rows of each prompt for the training ranks; PUT_TO_BUFFER nodes call it."""
        rows: dict[int, list[Sample]] = {group: [] for group in self._prompts}
        for sample in Dict2Samples(batch) if len(batch) else ():
            rows[self._prompt_of(sample.columns)].append(sample)
        prompts, self._prompts = self._prompts, {}
        for group, samples in rows.items():
            self._entries.append(self._entry(prompts[group], samples))

    def _entry(self, prompt: Prompt, samples: Sequence[Sample]) -> Entry:
        infos = [sample.info() for sample in samples]
        info = SampleInfo(
            sum_tokens=sum(info.sum_tokens for info in infos), dict_info={PROMPT: prompt.number}
        )
        step = min((self._step_of(sample.columns) for sample in samples), default=None)
        reference = self.line.store(columns_of(samples)) if samples else None
        return prompt, info, reference, self.copies.step if step is None else step

    def _prompt_of(self, columns: Mapping[str, Any]) -> int:
        """Key in `_prompts` of the prompt of a row."""
        index = int(columns["index"])
        if index not in self._prompts:
            raise InvariantError(
                f"A row has the prompt index {index}, but the running prompts have "
                f"{sorted(self._prompts)}. {KEEP}"
            )
        return index

    def _step_of(self, columns: Mapping[str, Any]) -> int:
        """Training step that made the oldest weights that acted in a row."""
        player = int(columns.get("agent_group", self.group))
        version = int(columns["policy_version"])
        try:
            return self.copies.step_of(player, version)
        except KeyError:
            raise InvariantError(
                f"A row has policy_version={version}, which never acted on this rank. {KEEP}"
            ) from None

    def _take_entries(self) -> list[Entry]:
        entries, self._entries = self._entries, []
        return entries

    # Reports

    def _count(self, result: RolloutResult, *, episodes: int) -> None:
        """Count failures for the training ranks, which decide over all rollout ranks."""
        if result.broken_off:
            raise Interrupted(result.broken_off)
        self._episodes += episodes
        self._failed += result.reasons()

    def _report(self, more: dict[str, Value]) -> Report:
        seconds, self._reported_at = since(self._reported_at), time.perf_counter()
        idle, self.idle_s = self.idle_s / max(seconds, 1e-9), 0.0
        metrics: dict[str, Value] = {
            "group/rollout/idle_share": min(1.0, idle),
            "sync/swap_seconds": self.swap_s,
            **self.memory(),
        }
        self.swap_s = 0.0
        for record in (*self._metrics, more):
            metrics |= plain_record(record)
        report = Report(metrics, self._episodes, tuple(self._failed))
        self._metrics = []
        self._episodes = 0
        self._failed = []
        return report


def since(begin: float) -> float:
    """Seconds since `begin`."""
    return time.perf_counter() - begin
