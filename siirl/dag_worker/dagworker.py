"""DAGWorker: runs a rank's graph, step after step, without a central data controller.

The loop runs the graph (`siirl.dag_worker.dataflow`), saves and evaluates. Stages are in
`siirl.dag_worker.stages`; `assembly` combines the objects that they use. All user-visible output is
yielded as events, so the worker runs unchanged in a Ray actor and in a debugger.
"""

import copy
import functools
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from siirl.dag_worker import stages
from siirl.dag_worker.accounting import StepAccount, held_bytes
from siirl.dag_worker.agent_groups import AgentGroups, build_groups, load_state
from siirl.dag_worker.assembly import build_components
from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint
from siirl.dag_worker.colocated_buffer import ColocatedBuffer
from siirl.dag_worker.components import WorkerComponents
from siirl.dag_worker.dataflow import Dataflow
from siirl.dag_worker.events import Activity, Ended, Event, Ready, StepDone
from siirl.dag_worker.metric_worker import MetricWorker
from siirl.dag_worker.placed_rollouts import ColocatedRollouts, PlacedRollouts
from siirl.dag_worker.registries import load_plug_ins
from siirl.dag_worker.rewards import place_rewards
from siirl.dag_worker.step_trace import profiled_step
from siirl.data_coordinator.protocol.batch import (
    check_shapes,
    long_columns,
    shallow_copy,
)
from siirl.data_coordinator.redistribution import Redistribution, StayOnRank
from siirl.engine.training.collectives import join, leave
from siirl.engine.training.rank_device import prepare_process, require_run_folder
from siirl.errors import ConfigError, InvariantError, TooManyFailures
from siirl.execution.dag import Node, NodeOutput, NodeType, TaskGraph
from siirl.execution.dag.resource_groups import trains
from siirl.execution.dag.stage import declared_start
from siirl.interrupts import STOP, Interrupted
from siirl.occupation import OCCUPATION
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import group_configs
from siirl.params.build import as_text


class DAGWorker:
    """Trains one rank's part of a job.

    Args:
        config: The checked job.
        graph: The checked graph of this rank.
        rank: Number of this rank.
        world_size: Number of ranks.
        init_method: Rendezvous address of torch.distributed; unused with one rank.
        backend: Backend of torch.distributed.
        run_folder: Output folder of the run.
        connect: Returns this rank's client of the DataCoordinator; None with one rank.
        build: Builds the components; None: those of a colocated rank of the job's domain.
        rollouts: The ranks that roll out; None: the training ranks do.
        on_start: Called when everything is built and loaded.

    Raises:
        ConfigError: This machine does not have the run folder.
    """

    # Documented names: a graph may refer to `siirl.dag_worker.dagworker:DAGWorker.generate`.
    generate = staticmethod(stages.generate)
    compute_reward = staticmethod(stages.compute_reward)
    compute_value = staticmethod(stages.compute_value)
    compute_advantage = staticmethod(stages.compute_advantage)
    compute_old_log_prob = staticmethod(stages.compute_old_log_prob)
    compute_ref_log_prob = staticmethod(stages.compute_ref_log_prob)
    train_actor = staticmethod(stages.train_actor)
    train_critic = staticmethod(stages.train_critic)

    def __init__(
        self,
        *,
        config: SiiRLArguments,
        graph: TaskGraph,
        rank: int,
        world_size: int,
        init_method: str,
        backend: str,
        run_folder: Path,
        connect: Callable[[int], Redistribution] | None = None,
        build: Callable[..., WorkerComponents] | None = None,
        rollouts: PlacedRollouts | None = None,
        on_start: Callable[[], object] | None = None,
    ) -> None:
        require_run_folder(run_folder, rank=rank)
        for of_group in group_configs(config).values():
            load_plug_ins(of_group, graph)
        self.config = config
        self.taskgraph = graph
        self._flow = Dataflow(
            graph, call=self._call_node, begin=self._begin_node, draw=self._prompts
        )
        self.run_folder = run_folder
        self.device = prepare_process(config.trainer)
        self.build = build or build_components
        self.rollouts: PlacedRollouts = rollouts or ColocatedRollouts()
        self.on_start = on_start
        self.ranks = join(
            rank=rank,
            world_size=world_size,
            init_method=init_method,
            device=self.device,
            backend=backend,
            hang_s=sizes.hang_limit_s(config.trainer),
            force_group=config.trainer.force_process_group,
        )
        self.redistribution: Redistribution = StayOnRank() if connect is None else connect(rank)
        self.metrics = MetricWorker(gather=self.ranks.gather_objects, warns=rank == 0)
        self.account = StepAccount(
            self.device,
            gpus_of_job=sizes.gpus_of_job(
                config.trainer, config.dag, config.actor_rollout_ref.rollout
            ),
        )
        self.global_steps = 0
        self._groups: AgentGroups | None = None
        # State before a step that has not changed weights yet.
        self._before: dict[str, Any] | None = None
        self._saved: int | None = None  # step of the newest checkpoint
        self._evaluation_due = False

    @property
    def groups(self) -> AgentGroups:
        """Components of this rank's agent groups, made by `init_graph`.

        Raises:
            InvariantError: `init_graph` has not run, or the worker is closed.
        """
        if self._groups is None:
            raise InvariantError("The worker has no components: init_graph() makes them.")
        return self._groups

    @property
    def components(self) -> WorkerComponents:
        """Components of the first agent group."""
        return self.groups.first

    def run(self) -> Iterator[Event]:
        """Run the whole job; simulators and the process group are closed in any case."""
        try:
            yield Activity("loading policy and simulators")
            with OCCUPATION.doing("starts simulators and loads the policy"):
                self.init_graph()
            yield Ready()
            yield from self.train()
        finally:
            self.close()

    def init_graph(self) -> None:
        """Build the components, and load the checkpoint that `trainer.resume` names."""
        resume = (
            None
            if self.config.trainer.resume is None
            else resolve_checkpoint(Path(self.config.trainer.resume))
        )
        first_step = 0 if resume is None else read_manifest(resume, verify=False)["step"] + 1
        self._groups = build_groups(
            config=self.config,
            graph=self.taskgraph,
            run_folder=self.run_folder,
            ranks=self.ranks,
            rollouts=self.rollouts,
            build=functools.partial(
                self.build,
                ranks=self.ranks,
                redistribution=self.redistribution,
                device=self.device,
                first_step=first_step,
            ),
        )
        buffer = ColocatedBuffer(self.redistribution)
        for group in self.groups.groups.values():
            group.context.buffer = buffer
        if resume is not None:
            checkpoint = self.groups.checkpoints.load(resume)
            load_state(
                self.groups, checkpoint.state, folder=checkpoint.folder, graph=self.taskgraph
            )
            self.global_steps = self._saved = checkpoint.step
            if dropped := self.groups.dropped_prompts:
                successor = (
                    "colocated ranks begin" if self.rollouts.colocated else "a schedule begins"
                )
                self.metrics.warn(
                    f"{dropped} prompts are skipped: rollout ranks had started them at step "
                    f"{checkpoint.step}, and {successor} after them."
                )
            self._evaluation_due = (
                checkpoint.evaluation_due and self.config.trainer.val_episodes > 0
            )
        self.metrics.record(self.account.loading())
        self.groups.start(self.global_steps)
        if self.on_start is not None:
            self.on_start()

    def train(self) -> Iterator[Event]:
        """Evaluate, train, evaluate; yield metrics.

        An interrupt ends the run with a checkpoint. So does an environment or an inference server
        that fails too often: the completed steps are valid.

        Raises:
            ConfigError: The resumed run is already complete; with `total_epochs` only the loader
                knows the number of steps.
            TooManyFailures: Too many episodes could not be simulated or scored; on every rank.
        """
        try:
            yield from self._steps()
            self.groups.checkpoints.wait()
        except Interrupted:
            yield Activity("saving before the end")
            yield Ended(self._save_what_is_trained())
        except TooManyFailures:
            yield Activity("saving before the end")
            self._save_what_is_trained()
            raise

    execute_task_graph = train  # siiRL's name (siirl/compat/README.md)

    def _steps(self) -> Iterator[Event]:
        trainer, begin = self.config.trainer, time.monotonic()
        if self._evaluation_due:
            yield from self._evaluate()
            yield self._step_done()
            self._save()
        elif self.global_steps > 0 and self._is_last(begin):
            raise ConfigError(
                f"trainer.resume={trainer.resume}: the run is complete after step "
                f"{self.global_steps}. Raise trainer.total_steps={as_text(trainer.total_steps)} "
                f"or trainer.total_epochs={trainer.total_epochs}."
            )
        if self.global_steps == 0 and trainer.val_before_train and trainer.val_episodes > 0:
            yield from self._evaluate()
            yield self._step_done()
        last = self._is_last(begin)
        while not last:
            self.groups.checkpoints.check()
            self.global_steps += 1
            yield Activity(f"step {self.global_steps}")
            with profiled_step(
                self.config.profiler,
                run_folder=self.run_folder,
                step=self.global_steps,
                ranks=self.ranks,
            ):
                self._run_training_step()
            last = self._is_last(begin)
            due = last or (trainer.test_freq > 0 and self.global_steps % trainer.test_freq == 0)
            self._evaluation_due = due and trainer.val_episodes > 0
            try:
                if self._evaluation_due:
                    self._heed_request()
                    yield from self._evaluate()
            except Interrupted:
                yield self._step_done()
                raise
            yield self._step_done()
            if last or (trainer.save_freq > 0 and self.global_steps % trainer.save_freq == 0):
                self._save()

    def _step_done(self) -> StepDone:
        return StepDone(self.global_steps, self.metrics.reduce(), self.metrics.take_warnings())

    def close(self) -> None:
        """Close environments, graders, files and the process group; safe to call twice."""
        STOP.hold(False)
        if self._groups is not None:
            self._groups.close()
            self._groups = None
            leave(self.ranks)

    def _run_training_step(self) -> None:
        # milliseconds; the state_dict of a user's reward may be the memory that the step changes
        self._before = copy.deepcopy(self.groups.state())
        self.groups.begin_step(self.global_steps)
        if self.config.trainer.total_steps is not None:
            self.groups.set_progress((self.global_steps - 1) / self.config.trainer.total_steps)
        self.account.begin()
        self._flow.run_step()
        self.redistribution.acknowledge()
        for number, group in self.groups.groups.items():
            group.context.collector.write_recordings({})
            version = {"policy/version": float(group.context.weights.version)}
            self.metrics.record(
                version | held_bytes(group.context), prefix=self.groups.prefix(number)
            )
        self.metrics.record(self.groups.end_step())
        self._before = None
        STOP.hold(False)
        self.metrics.record(self.account.metrics(self.metrics.records))

    def _begin_node(self, node: Node, batch: TensorDict) -> "Future[Any] | None":
        start = declared_start(node.executable)
        if start is None:
            return None
        return start(batch=batch, context=self.groups.of(node.agent_group).context)

    def _call_node(self, node: Node, batch: Any, started: Any = None) -> NodeOutput:
        if self._before is not None:
            self._heed_request()
        if trains(node):
            # weights change from here on: the step completes despite an interrupt
            self._before = None
            STOP.hold(True)
        begin = time.perf_counter()
        context = self.groups.of(node.agent_group).context
        if node.node_type is NodeType.BARRIER_SYNC:
            self._meet_at(node)

        def settle(returned: Any) -> None:
            if not isinstance(returned, TensorDict):
                raise InvariantError(
                    "A node's function returns a TensorDict, such as its changed `batch`, or a "
                    f"NodeOutput with one, and this one returned a {type(returned).__name__}."
                )
            place_rewards(returned, before=batch)  # those of a custom node may be wider
            check_shapes(returned)

        doing = f"computes node {node.node_id} of step {self.global_steps}"
        with OCCUPATION.doing(doing), long_columns(node.label):
            output = node.run(
                batch=batch,
                copy=shallow_copy,
                settle=settle,
                config=context.config,
                context=context,
                process_group=self.ranks.group,
                agent_group=node.agent_group,
                started=started,
            )
        if output.more_prompts:
            context.count_refill(node)
        if self.config.dag.enable_perf and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.metrics.record(output.metrics, prefix=self.groups.prefix(node.agent_group))
        self.metrics.record({f"time/{node.node_id}_s": time.perf_counter() - begin})
        return output

    def _meet_at(self, node: Node) -> None:
        """Barrier at `node`: wait until every rank has completed the nodes before it."""
        places = set(self.ranks.gather_objects(node.node_id))
        if len(places) > 1:
            raise InvariantError(
                f"Ranks wait for each other at different nodes: {sorted(places)}. Every rank must "
                "run a graph's nodes in the same order."
            )

    def _prompts(self, group: int, more: int = 0) -> TensorDict:
        """This rank's prompts of the step for an agent group, or of `more` additional ones."""
        context = self.groups.of(group).context
        prompts = context.draw_prompts(more)
        self.metrics.record(context.require_loader().metrics(), prefix=self.groups.prefix(group))
        return prompts

    def _evaluate(self) -> Iterator[Event]:
        yield Activity("evaluating on held-out episodes")
        begin = time.perf_counter()
        with OCCUPATION.doing(f"evaluates step {self.global_steps}"):
            for number in sorted(self.groups.rolling_out):
                group = self.groups.of(number)
                for greedy in group.validator.kinds:
                    found = group.validator.evaluate(
                        step=self.global_steps, greedy=greedy, record=not greedy
                    )
                    self.metrics.record(found, prefix=self.groups.prefix(number))
        self.metrics.record({"time/evaluation_s": time.perf_counter() - begin})
        self._evaluation_due = False

    def _save(self) -> None:
        with OCCUPATION.doing(f"saves step {self.global_steps}"):
            checkpoints = self.groups.checkpoints
            save = checkpoints.start_saving if self.config.trainer.async_save else checkpoints.save
            save(step=self.global_steps, state=self.groups.state())
        self._saved = self.global_steps

    def _heed_request(self) -> None:
        """Raise Interrupted on all ranks if rank 0 was interrupted, unless weights change."""
        if self.ranks.broadcast_object(STOP.requested):
            raise Interrupted(STOP.number or signal.SIGTERM)

    def _save_what_is_trained(self) -> int:
        """Save the last completed step unless its checkpoint exists; return the step."""
        if self._before is not None:
            step, state = self.global_steps - 1, self._before
        else:
            step, state = self.global_steps, self.groups.state()
        if step not in (0, self._saved):
            self.groups.checkpoints.save(
                step=step, state=state, evaluation_due=self._evaluation_due
            )
        self.groups.checkpoints.wait()
        return step

    def _is_last(self, begin: float) -> bool:
        """Whether the run is over; rank 0's clock decides, so all ranks stop at the same step."""
        trainer = self.config.trainer
        if trainer.total_steps is not None and self.global_steps >= trainer.total_steps:
            return True
        if self.groups.passes() >= trainer.total_epochs:
            return True
        late = (
            trainer.max_minutes is not None and time.monotonic() - begin > 60 * trainer.max_minutes
        )
        return self.ranks.broadcast_object(late)
