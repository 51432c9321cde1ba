"""From a checked job to its end: workers started, their events shown and written down, and the summary that closes a run."""

import functools
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from siirl.dag_worker.console import success_table
from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import Activity, Event
from siirl.dag_worker.metric_writers import MetricWriters, RunDescription
from siirl.dag_worker.recorder import VIDEOS_FOLDER
from siirl.dag_worker.report_page import write_report
from siirl.dag_worker.statistics import SuccessInterval, evaluations
from siirl.execution.dag import TaskGraph
from siirl.execution.scheduler.launch import ClusterSettings, ray_session, run_local, run_on_ray
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager
from siirl.execution.scheduler.task_scheduler import TaskScheduler
from siirl.params import SiiRLArguments, sizes
from siirl.params.machine import device_slots

Success = dict[str, SuccessInterval]


def run(config: SiiRLArguments, graph: TaskGraph, run_folder: Path, *, first_step: int = 0) -> None:
    """Train to the end, and close with what became of the policy. Ctrl-C ends every process; the last checkpoint stays.

    Args:
        config: The job, checked.
        graph: Its graph, checked.
        run_folder: Where everything is written.
        first_step: 0, or the step after the checkpoint that is resumed.
    """
    description = RunDescription(
        folder=run_folder,
        total_steps=config.trainer.total_steps,
        limit_s=None if config.trainer.max_minutes is None else 60 * config.trainer.max_minutes,
        first_step=first_step,
        project=config.trainer.project_name,
        experiment=config.trainer.experiment_name,
    )
    before: Success = {}
    after: Success = {}
    with MetricWriters(config.trainer.logger, description) as writers:
        for event in start(config, graph, run_folder):
            if isinstance(event, Activity):
                writers.activity(event.text)
                continue
            writers.write(step=event.step, metrics=event.metrics)
            success = evaluations(event.metrics)
            before, after = before or success, success or after
    show_summary(run_folder, report=write_report(run_folder), before=before, after=after)


def start(config: SiiRLArguments, graph: TaskGraph, run_folder: Path) -> Iterator[Event]:
    """Start the ranks where `cluster` says, and yield what rank 0 tells."""
    ranks = sizes.ranks(config)
    scheduled = TaskScheduler(config.trainer.nnodes, config.trainer.n_gpus_per_node).schedule_and_assign_tasks([graph])
    device_type = device_slots()[1]
    groups = ProcessGroupManager(
        ranks, scheduled, device_type="cuda" if device_type == "GPU" else "cpu", backend_threshold=config.dag.backend_threshold
    )
    make = functools.partial(
        DAGWorker, config=config, graph=graph, world_size=ranks, backend=groups.world.backend, run_folder=run_folder.absolute()
    )
    if config.cluster.mode == "local":
        yield from run_local(functools.partial(make, coordinator=None))
        return
    from siirl.data_coordinator.ray_edge import start_coordinator

    settings = ClusterSettings(
        address=config.cluster.address, env_vars={"OMP_NUM_THREADS": "1"}, gpus_per_rank=1 if groups.world.backend != "gloo" else 0
    )
    with ray_session(settings):
        coordinator = start_coordinator() if ranks > 1 else None
        yield from run_on_ray(functools.partial(make, coordinator=coordinator), world_size=ranks, settings=settings)


def show_summary(run_folder: Path, *, report: Path, before: Success, after: Success) -> None:
    """Success before and after on the same held-out episodes, and where to look."""
    console = Console()
    if before and after:
        console.print(success_table("success on held-out episodes, 95 % intervals", {"before": before, "after": after}))
    console.print(f"run folder  {run_folder}", f"videos      {run_folder / VIDEOS_FOLDER}", f"report      {report}", sep="\n", soft_wrap=True)
