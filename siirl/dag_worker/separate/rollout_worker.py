"""RolloutWorker: a rank of the group `rollout`. It acts and does not train.

It has two modes. In block mode, it runs its share of each step with the weights that the schedule
names (at most `max_staleness` steps old), independent of timing. In stream mode, it runs as many
prompts as its environments take, starts another whenever one ends, and swaps in new weights between
two forward passes, so that running episodes continue with them. Left out: training, which
`siirl.dag_worker.dagworker` does.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensordict import TensorDict

from siirl.dag_worker.dataflow import Dataflow
from siirl.dag_worker.events import Event
from siirl.dag_worker.no_rows import with_columns_of_all, with_columns_of_prompts
from siirl.dag_worker.separate.exchange import PROMPT
from siirl.dag_worker.separate.line import Evaluation, Line, Report, Weights, Work
from siirl.dag_worker.separate.published_weights import SecondCopy, WeightThread
from siirl.dag_worker.separate.rollout_ranks import RolloutParts
from siirl.dag_worker.separate.training_side import columns_of
from siirl.data_coordinator.protocol.batch import shallow_copy
from siirl.data_coordinator.sample import Dict2Samples, Sample, Samples2Dict
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import Prompt
from siirl.engine.rollout.workflow import RolloutResult
from siirl.errors import ConfigError, TooManyFailures
from siirl.execution.dag import Node, NodeOutput, TaskGraph
from siirl.interrupts import Interrupted
from siirl.occupation import OCCUPATION
from siirl.reporting.metrics import Value

REPORT_EVERY_S = 1.0  # in stream mode: counts over shorter times are noise


class RolloutWorker:
    """Runs the prompts that the exchange hands out.

    Args:
        graph: Graph of the group, which ends with a PUT_TO_BUFFER node.
        rank: Number of this rank in the group.
        line: Connection to the exchange.
        build: Makes the components.
        streaming: Stream mode; otherwise block mode.
        on_start: Called when everything is built.
    """

    def __init__(
        self,
        *,
        graph: TaskGraph,
        rank: int,
        line: Line,
        build: Any,
        streaming: bool,
        on_start: Callable[[], object] | None = None,
    ) -> None:
        self.graph, self.rank, self.line, self.build = graph, rank, line, build
        self._flow = Dataflow(
            graph,
            call=self._run_node,
            begin=lambda node, batch: None,
            draw=lambda group, more: self._drawn,
        )
        self.streaming = streaming
        self.on_start = on_start
        self._parts: RolloutParts | None = None
        self._entries: list[tuple[Prompt, SampleInfo, Any, int]] = []
        self._prompts: dict[int, Prompt] = {}
        self._metrics: list[dict[str, Value]] = []
        self._result = RolloutResult()
        self._episodes = 0
        self._failed: list[str] = []
        self._reported_at = time.perf_counter()
        self._idle_s = 0.0
        self._groups: set[asyncio.Task[None]] = set()
        self._arrived: Weights | None = None
        self._evaluating = False

    @property
    def parts(self) -> RolloutParts:
        """Components of this rank."""
        assert self._parts is not None
        return self._parts

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
        """Build the components and start the environments."""
        self._parts = self.build(buffer=self)
        self.parts.context.collector.check = self._count
        self.copy = SecondCopy(self.parts.acting, self.line)
        self.parts.rollout.start()
        if self.on_start is not None:
            self.on_start()

    def _close(self) -> None:
        if self._parts is None:
            return
        parts, self._parts = self._parts, None
        for task in self._groups:
            task.cancel()
        if self._groups:
            parts.rollout.inference.loop.run_until_complete(asyncio.wait(self._groups))
        parts.rollout.close()
        for part in parts.closes:
            part.close()

    # Commands

    def _serve(self) -> None:
        with OCCUPATION.doing("waits for the first weights", waiting=True):
            self._use(self._weights(None))
        serve = self._stream if self.streaming else self._blocks
        try:
            serve()
        except Interrupted:  # the training ranks save and end the run
            self._until_over()

    def _blocks(self) -> None:
        while True:
            work = self._next_work(wanted=1)
            self._record_rewards(work)
            if work.over:
                return
            if work.evaluation is not None:
                self._use(self._weights(work.evaluation.step))
                self._evaluate(work.evaluation)
            elif work.prompts:
                assert work.weights_step is not None
                self._use(self._weights(work.weights_step))
                self._run_block(work.prompts)

    def _next_work(self, *, wanted: int) -> Work:
        begin = time.perf_counter()
        with OCCUPATION.doing("waits for prompts", waiting=True):
            while (work := self.line.call("work", self.rank, wanted, self.copy.step)) == Work():
                pass
        self._idle_s += time.perf_counter() - begin
        return work

    def _until_over(self) -> None:
        while not self._next_work(wanted=0).over:
            pass

    def _weights(self, step: int | None) -> Weights | None:
        """Weights of `step`; None if they act."""
        if step == self.copy.step and step is not None:
            return None
        with OCCUPATION.doing(f"waits for the weights of step {step}", waiting=True):
            while (found := self.line.call("weights", step, -1)) is None:
                pass
        return found

    def _use(self, weights: Weights | None) -> None:
        if weights is None:
            return
        self.copy.receive(weights)
        self._swap_in(weights)

    def _swap_in(self, weights: Weights) -> None:
        self.copy.swap(weights)
        self.parts.rollout.engine.update_weights(weights.version)

    def _record_rewards(self, work: Work) -> None:
        if work.rewards or work.rewarded_step >= 0:
            self.parts.recording.write_up_to(work.rewarded_step, work.rewards)

    def _evaluate(self, evaluation: Evaluation) -> None:
        parts = self.parts
        parts.validator.ranks.begin(evaluation.call)  # type: ignore[attr-defined]
        with OCCUPATION.doing(f"evaluates step {evaluation.step}"):
            found = parts.validator.evaluate(
                step=evaluation.step, greedy=evaluation.greedy, record=evaluation.record
            )
        self.line.call("result", self.rank, evaluation.call, found)

    # Blocks

    def _run_block(self, prompts: Sequence[Prompt]) -> None:
        self.parts.context.step = prompts[0].step
        self._drawn = self._batch(prompts)
        self._prompts = self._of_groups(self._drawn, prompts)
        try:
            self._flow.run_step()
        except TooManyFailures:  # no episode of this rank; the training ranks decide over all
            self.put(self._drawn[:0])
        self.line.call("put", self.rank, self._take_entries(), self._report({}))

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
                config=self.parts.context.config,
                context=self.parts.context,
                process_group=None,
                agent_group=node.agent_group,
                started=started,
            )
        if output.more_prompts:
            raise ConfigError(
                f"Node {node.node_id!r} of the group 'rollout' asks for more prompts, which only "
                "training ranks can: set group=train, or leave its group out."
            )
        self._metrics.append({**output.metrics, f"time/{node.node_id}_s": _since(begin)})
        return output

    def put(self, batch: TensorDict) -> None:
        """Keep the rows of each prompt for the training ranks; PUT_TO_BUFFER nodes call it."""
        rows: dict[int, list[Sample]] = {group: [] for group in self._prompts}
        for sample in Dict2Samples(batch) if len(batch) else ():
            rows[int(sample.columns["index"])].append(sample)
        prompts, self._prompts = self._prompts, {}
        for group, samples in rows.items():
            self._entries.append(self._entry(prompts[group], samples))

    def _entry(
        self, prompt: Prompt, samples: Sequence[Sample]
    ) -> tuple[Prompt, SampleInfo, Any, int]:
        infos = [sample.info() for sample in samples]
        info = SampleInfo(
            sum_tokens=sum(info.sum_tokens for info in infos), dict_info={PROMPT: prompt.number}
        )
        versions = [int(sample.columns["policy_version"]) for sample in samples]
        step = min((self.copy.steps_of_versions[version] for version in versions), default=None)
        reference = self.line.store(columns_of(samples)) if samples else None
        return prompt, info, reference, self.copy.step if step is None else step

    def _take_entries(self) -> list[tuple[Prompt, SampleInfo, Any, int]]:
        entries, self._entries = self._entries, []
        return entries

    def _count(self, result: RolloutResult, *, episodes: int) -> None:
        """Count failures for the training ranks, which decide over all rollout ranks."""
        if result.broken_off:
            raise Interrupted(result.broken_off)
        self._episodes += episodes
        self._failed += [
            f"{request.task!r} with seed {request.seed}: {reason}"
            for request, reason in result.failed
        ]

    def _report(self, more: dict[str, Value]) -> Report:
        seconds, self._reported_at = _since(self._reported_at), time.perf_counter()
        idle, self._idle_s = self._idle_s / max(seconds, 1e-9), 0.0
        metrics: dict[str, Value] = {"group/rollout/idle_share": min(1.0, idle)}
        for record in (*self._metrics, more):
            metrics |= record
        report = Report(metrics, self._episodes, tuple(self._failed))
        self._metrics, self._episodes, self._failed = [], 0, []
        return report

    # Stream

    def _stream(self) -> None:
        loop = self.parts.rollout.inference.loop

        def arrived(weights: Weights) -> None:
            loop.call_soon_threadsafe(self._weights_arrived, weights)

        self._thread = WeightThread(self.copy, self.line, arrived=arrived)
        self._thread.start()
        try:
            while True:
                work = loop.run_until_complete(self._until_command())
                if work.over:
                    return
                assert work.evaluation is not None
                loop.run_until_complete(self._until_weights(work.evaluation.step))
                self._evaluating = True
                self._evaluate(work.evaluation)
                self._evaluating = False
                self._swap_arrived()
        finally:
            self._thread.stop()

    async def _until_command(self) -> Work:
        """Keep the environments busy until the run is over or an evaluation is due."""
        ask: asyncio.Task[Work] | None = None
        while True:
            if ask is None:
                ask = asyncio.ensure_future(
                    self.line.acall("work", self.rank, self._wanted(), self.copy.step)
                )
            begin, idle = time.perf_counter(), not self._groups
            with OCCUPATION.doing("waits for prompts", waiting=idle):
                await asyncio.wait({ask, *self._groups}, return_when=asyncio.FIRST_COMPLETED)
            self._idle_s += _since(begin) if idle else 0.0
            for task in [task for task in self._groups if task.done()]:
                self._groups.remove(task)
                task.result()
            self._thread.check()
            if not ask.done():
                continue
            work, ask = ask.result(), None
            self._record_rewards(work)
            for prompt in work.prompts:
                self._groups.add(asyncio.ensure_future(self._run_prompt(prompt)))
            if work.over or work.evaluation is not None:
                return work

    def _wanted(self) -> int:
        """Prompts to ask for: one group waits while the others have all environments."""
        rollout, context = self.parts.rollout, self.parts.context
        n = context.config.actor_rollout_ref.rollout.n
        return max(0, -(-rollout.inference.at_once // n) + 1 - len(self._groups))

    async def _run_prompt(self, prompt: Prompt) -> None:
        batch = self._batch([prompt])

        def resume() -> None:
            """Note whose nodes run from here to the next wait for episodes."""
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
        entries = self._take_entries()
        await self.line.acall("put", self.rank, entries, self._due_report())

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
        if _since(self._reported_at) < REPORT_EVERY_S:
            return None
        stats = self.parts.rollout.take_stats(seconds=_since(self._reported_at))
        result, self._result = self._result, RolloutResult()
        return self._report(self.parts.context.collector.measure(result, stats))

    def _weights_arrived(self, weights: Weights) -> None:
        """Called between two forward passes, which are synchronous in this loop."""
        self._arrived = weights
        if not self._evaluating:
            self._swap_arrived()

    def _swap_arrived(self) -> None:
        weights, self._arrived = self._arrived, None
        if weights is not None:
            self._swap_in(weights)
            self._thread.release()

    async def _until_weights(self, step: int) -> None:
        while self.copy.step < step:
            self._thread.check()
            await asyncio.sleep(0.01)


def _since(begin: float) -> float:
    return time.perf_counter() - begin
