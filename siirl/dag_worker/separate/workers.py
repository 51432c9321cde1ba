"""Makes the worker of a rank from the graph that the scheduler gave it.

A rank whose graph ends with a PUT_TO_BUFFER node only rolls out; one whose graph begins with a
GET_FROM_BUFFER node only trains; any other is colocated.
"""

import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from siirl.dag_worker.accounting import MemoryPeaks
from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint
from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import Event
from siirl.dag_worker.registries import load_plug_ins
from siirl.dag_worker.separate.arriving_weights import arriving_copies
from siirl.dag_worker.separate.edge import Edge
from siirl.dag_worker.separate.group_components import build_rollouts, build_training
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.dag_worker.separate.received_weights import stored_copies
from siirl.dag_worker.separate.rollout_worker import RolloutWorker
from siirl.dag_worker.separate.sent_weights import WeightSender
from siirl.dag_worker.separate.training_side import SeparateRollouts
from siirl.data_coordinator.redistribution import Redistribution
from siirl.engine.rollout.ledger import RolloutLedger
from siirl.engine.training.rank_device import prepare_process, require_run_folder
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.resource_groups import GET, PUT
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import config_of_group, group_configs, sends_weights

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine


class Worker(Protocol):
    """The worker that a rank runs."""

    def run(self) -> Iterator[Event]:
        """Do all the work of the rank."""


@dataclass(frozen=True)
class WorkerFactory:
    """Makes workers; sent to every rank."""

    config: SiiRLArguments
    graphs: Mapping[int, TaskGraph]
    """The scheduler's result."""
    groups: ProcessGroupManager
    run_folder: Path
    connect: Callable[[int], Redistribution] | None = None
    """Connects a training rank to the others' rows; None with one."""
    line: Callable[[], "ExchangeLine"] | None = None
    """Connects a rank to the exchange; None if the ranks are colocated."""
    on_start: Callable[[], object] | None = None
    """Called in the process of each rank when its worker is built."""
    replaces: bool = False
    """Whether the worker replaces one that died; existing recordings of the run then stay."""

    def __call__(self, *, rank: int, init_method: str) -> Worker:
        """The worker of `rank`; several training ranks rendezvous at `init_method`."""
        graph, group = self.graphs[rank], self.groups.group_of(rank)
        number = group.ranks.index(rank)
        if rolls_out_only(graph):
            return self._rollout(graph, rank=rank, number=number)
        rollouts = build = None
        if self.line is not None:
            rollouts = SeparateRollouts(self.line())
            build = functools.partial(
                build_training,
                rollouts=rollouts,
                publishes=WeightSender if sends_weights(self.config) else WeightPublisher,
            )
        return DAGWorker(
            config=self.config,
            graph=graph,
            rank=number,
            world_size=len(group.ranks),
            init_method=init_method,
            backend=group.backend,
            run_folder=self.run_folder,
            connect=self.connect,
            build=build,
            rollouts=rollouts,
            on_start=self.on_start,
        )

    def _rollout(self, graph: TaskGraph, *, rank: int, number: int) -> RolloutWorker:
        config = self.config
        require_run_folder(self.run_folder, rank=rank)
        for of_group in group_configs(config).values():
            load_plug_ins(of_group, graph)
        device = prepare_process(config.trainer)
        assert self.line is not None
        line = self.line()
        build = functools.partial(
            build_rollouts,
            config=config,
            graph=graph,
            run_folder=self.run_folder,
            device=device,
            first_step=self._first_step(),
            line=line,
            rank=number,
        )
        return RolloutWorker(
            graph=graph,
            rank=number,
            line=line,
            build=build,
            receives=functools.partial(arriving_copies, line=line, streaming=_streams(config))
            if sends_weights(config)
            else functools.partial(stored_copies, line=line),
            streaming=_streams(config),
            peaks=MemoryPeaks(device),
            on_start=self.on_start,
        )

    def _first_step(self) -> int:
        """First step whose recordings this run writes; earlier ones stay."""
        if self.replaces:
            return sys.maxsize
        resume = self.config.trainer.resume
        if resume is None:
            return 0
        return int(read_manifest(resolve_checkpoint(Path(resume)))["step"]) + 1


def edges_of(config: SiiRLArguments, graph: TaskGraph) -> dict[int, Edge]:
    """An edge for each agent group whose rows the training graph gets."""
    gets = [node for node in graph.nodes.values() if node.executable_ref == GET]
    return {node.agent_group: _edge(config, node.agent_group, node.node_id) for node in gets}


def _edge(config: SiiRLArguments, group: int, node: str) -> Edge:
    ledger = RolloutLedger(
        batch=config_of_group(config, group).data.train_batch_size,
        max_staleness=config.trainer.max_staleness,
        ranks=sizes.rollout_ranks(config.trainer, config.dag),
        streaming=_streams(config),
    )
    return Edge(ledger=ledger, node=node)


def _streams(config: SiiRLArguments) -> bool:
    """Whether episodes are started continuously; the setting is the same for all agents."""
    own = next(iter(group_configs(config).values()))
    return sizes.streams(config.trainer, config.dag, own.actor_rollout_ref.rollout)


def exclude_from_collections() -> None:
    """Exclude the objects of this process from garbage collection. For a process that runs one
    worker: its objects live as long as the process. Collecting them took 1/6 of a profiled step of
    short answers.
    """
    gc.collect()
    gc.freeze()


def rolls_out_only(graph: TaskGraph) -> bool:
    """Whether the graph's rows go to another group."""
    return any(node.executable_ref == PUT for node in graph.nodes.values())
