"""Runs a checked job: starts the workers, shows and records their events, writes the summary."""

import dataclasses
import functools
import gc
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.text import Text

from envs.base import EnvSpec
from siirl import interrupts, stacks
from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint
from siirl.dag_worker.events import Activity, Ended, Event, Ready
from siirl.dag_worker.separate.edge import Edge
from siirl.dag_worker.separate.workers import (
    WorkerFactory,
    edges_of,
    exclude_from_collections,
    rolls_out_only,
)
from siirl.dag_worker.temporary_checkpoint import remove_unfinished
from siirl.data_coordinator.redistribution import Redistribution
from siirl.execution.dag import TaskGraph
from siirl.execution.scheduler.launch import Replacement, run_local, run_on_ray
from siirl.execution.scheduler.placement import (
    ClusterLayout,
    ClusterMachine,
    machines,
    require_machines,
)
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager
from siirl.execution.scheduler.watchdog import OwnWatch
from siirl.interrupts import STOP, Interrupted
from siirl.jobs.cluster_session import session
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import group_configs
from siirl.params.domains import is_text
from siirl.params.env_spec import describe_env
from siirl.params.parser import to_tree
from siirl.params.training_args import TrainingArguments
from siirl.preflight.group_placement import scheduled
from siirl.preflight.machine import device_slots
from siirl.preflight.object_store import small_stores
from siirl.reporting.command_console import CommandConsole
from siirl.reporting.console import (
    EMBODIED_COLUMNS,
    SEGMENT_COLUMNS,
    TEXT_COLUMNS,
    TableColumn,
    interval_table,
    tasks_below_others,
)
from siirl.reporting.earlier_rows import comparable_rows, other_episodes
from siirl.reporting.graph_drawing import write_graph
from siirl.reporting.metric_writers import MetricWriters, RunDescription
from siirl.reporting.metrics import Reduced
from siirl.reporting.recorder import VIDEOS_FOLDER
from siirl.reporting.report_page import LiveReport
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER
from siirl.reporting.sentinels import Sentinels
from siirl.reporting.statistics import SuccessInterval, evaluations, mean_scores
from siirl.terminal.printable import printable

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine

MEAN_RETURN = "val/all/return"  # in every evaluation with a graded episode
# used if some episodes may be ungraded; the job's reward scores them
MEAN_SCORE = "val/all/mean_score"


def run(config: SiiRLArguments, graph: TaskGraph, run_folder: Path, *, store_bytes: float) -> None:
    """Train to the end and summarise the policy's results.

    Args:
        config: The checked job.
        graph: The job's checked graph.
        run_folder: Output folder.
        store_bytes: Size that Ray's object store needs (`siirl.preflight.object_store`).

    Raises:
        Interrupted: The run was interrupted; it can resume from a checkpoint of the completed
            steps.
    """
    description = _description(config, run_folder)
    evaluated: list[dict[str, Reduced]] = []
    step = 0
    sentinels, ended = Sentinels(), False
    remove_unfinished_files(config.trainer, run_folder)
    with ExitStack() as stack:
        write_graph(graph, run_folder, groups=config.dag.groups)
        stacks_folder = stack.enter_context(stacks.folder_of(run_folder))
        # first, so that nothing has been written if the cluster refuses
        stack.enter_context(session(config.cluster, folder=run_folder, store_bytes=store_bytes))
        layout = layout_of(config, graph)
        report = LiveReport(run_folder)
        stack.callback(report.finish)
        writers = stack.enter_context(MetricWriters(config.trainer.logger, description))
        if config.cluster.address is not None:
            warn_of_small_stores(writers, store_bytes, layout, there=machines())
        for event in stack.enter_context(
            closing(start(config, graph, run_folder, layout, stacks_folder))
        ):
            if isinstance(event, Activity):
                writers.activity(event.text)
                continue
            if isinstance(event, Ready):
                writers.begin()
                stack.enter_context(interrupts.grace_period(config.trainer.grace_s))
                continue
            if isinstance(event, Ended):
                ended = True
                continue
            step = event.step
            writers.write(step=step, metrics=event.metrics)
            report.after_step()
            signs = sentinels.look(event.metrics) if step > 0 else []
            for warning in (*event.warnings, *signs):
                writers.warn(warning)
            if _is_evaluation(event.metrics):
                evaluated.append(event.metrics)
        writers.finish(evaluated)
    if ended:
        raise Interrupted(STOP.number or signal.SIGTERM)
    earlier, changed = comparable_rows(run_folder, before=first_step(config.trainer))
    show_summary(
        run_folder,
        report=report.file,
        evaluated=[*filter(_is_evaluation, earlier), *evaluated],
        changed=changed,
        limit=limit_line(config.trainer, step=step, files=bool(config.data.train_files)),
    )


def warn_of_small_stores(
    writers: MetricWriters,
    store_bytes: float,
    layout: ClusterLayout,
    *,
    there: Sequence[ClusterMachine],
) -> None:
    """Warn, also in the run's folder, of machines of a running cluster whose stores are too small.

    See `siirl.preflight.object_store.small_stores`.
    """
    small = small_stores(store_bytes, layout, there)
    if small is not None:
        writers.warn(small)


def _is_evaluation(metrics: Mapping[str, Any]) -> bool:
    return bool({MEAN_RETURN, MEAN_SCORE} & metrics.keys())


def _description(config: SiiRLArguments, run_folder: Path) -> RunDescription:
    specs = [describe_env(own) for own in group_configs(config).values()]
    trainer = config.trainer
    return RunDescription(
        folder=run_folder,
        total_steps=trainer.total_steps,
        limit_s=None if trainer.max_minutes is None else 60 * trainer.max_minutes,
        first_step=first_step(trainer),
        project=trainer.project_name,
        experiment=trainer.experiment_name,
        columns=_columns(config, specs[0]),
        notice=" ".join(dict.fromkeys(spec.notice for spec in specs if spec.notice)),
        config=to_tree(config),
        tags=trainer.tags,
    )


def _columns(config: SiiRLArguments, spec: EnvSpec) -> Sequence[TableColumn]:
    if is_text(spec):
        return TEXT_COLUMNS
    whole_episodes = config.actor_rollout_ref.rollout.n_steps is None
    return EMBODIED_COLUMNS if whole_episodes else SEGMENT_COLUMNS


def limit_line(trainer: TrainingArguments, *, step: int, files: bool) -> str:
    """Sentence on the limit that ended a run before its last step; empty if none did."""
    if trainer.total_steps is None or step >= trainer.total_steps:
        return ""
    minutes = trainer.max_minutes
    limits = [] if minutes is None else [f"trainer.max_minutes={minutes:g}"]
    limits += [f"trainer.total_epochs={trainer.total_epochs}"] if files else []
    return (
        f"{' or '.join(limits)} ended the run after step {step} of {trainer.total_steps}: raise it "
        "and resume, or train on a faster machine"
    )


def first_step(trainer: TrainingArguments) -> int:
    """First step to run: 0 (the evaluation before training), or the step after the checkpoint."""
    resume = trainer.resume
    return 0 if resume is None else int(read_manifest(resolve_checkpoint(Path(resume)))["step"]) + 1


def remove_unfinished_files(trainer: TrainingArguments, run_folder: Path) -> None:
    """Remove unfinished files of killed writers of this experiment or the resumed run."""
    folders = {*run_folder.parent.glob("*/checkpoints")}
    if trainer.resume is not None:
        folders.add(resolve_checkpoint(Path(trainer.resume)).parent)
    for folder in folders:
        remove_unfinished(folder)


def layout_of(config: SiiRLArguments, graph: TaskGraph) -> ClusterLayout:
    """Resources of the job: machines, ranks and GPUs; called within `session`.

    Raises:
        ConfigError: The cluster has too few resources.
    """
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    ranks = ClusterLayout(nodes=trainer.nnodes, ranks_per_node=trainer.n_gpus_per_node)
    gpus = tuple(
        sizes.gpus_of_rollout_rank(rollout)
        if rolls_out_only(part)
        else sizes.gpus_of_training_rank(rollout, config.dag)
        for _, part in sorted(scheduled(trainer, config.dag, graph).items())
    )
    on_gpus = dataclasses.replace(ranks, gpus=gpus)
    if config.cluster.mode == "local":
        return on_gpus if device_slots()[1] == "GPU" else ranks
    there = machines()
    if config.cluster.address is None:
        has_gpus = device_slots()[1] == "GPU"
    else:  # this machine may lack GPUs; the cluster's torch is what counts
        has_gpus = torch.version.cuda is not None and any(machine.gpus for machine in there)
    layout = on_gpus if has_gpus else ranks
    require_machines(layout, there)
    return layout


def start(
    config: SiiRLArguments,
    graph: TaskGraph,
    run_folder: Path,
    layout: ClusterLayout,
    stacks_folder: Path,
) -> Generator[Event, None, None]:
    """Start the ranks within `session`, and yield the events of rank 0."""
    graphs = scheduled(config.trainer, config.dag, graph)
    device_type = "cuda" if layout.gpus else "cpu"
    groups = ProcessGroupManager(
        layout.ranks,
        graphs,
        device_type=device_type,
        backend_threshold=config.dag.backend_threshold,
    )
    make = WorkerFactory(
        config=config,
        graphs=graphs,
        groups=groups,
        run_folder=run_folder.absolute(),
        on_start=exclude_from_collections,
    )
    hang_s = sizes.hang_limit_s(config.trainer)
    if config.cluster.mode == "local":
        with OwnWatch(
            limit_s=hang_s,
            folder=stacks_folder,
            environment=config.env.title,
            run_folder=run_folder,
            resume=config.trainer.resume,
        ):
            try:
                yield from run_local(make)
            finally:
                gc.unfreeze()  # the caller's process continues
        return
    make = dataclasses.replace(
        make, connect=_coordinator_for(sizes.training_ranks(config.trainer, config.dag))
    )
    replacement = None
    if sizes.separate(config.dag):
        make = dataclasses.replace(make, line=_exchange_for(edges_of(config, graphs[0])))
        replacement = _replacement(make)
    yield from run_on_ray(
        make,
        layout=layout,
        hang_s=hang_s,
        stacks_folder=stacks_folder,
        replacement=replacement,
    )


def _replacement(make: WorkerFactory) -> Replacement:
    """Replacement of dead rollout ranks; possible because they share no process group with
    others, except in a transfer of weights, which a death ends.
    """
    assert make.line is not None
    line, groups = make.line(), make.groups
    ranks = [rank for rank, graph in make.graphs.items() if rolls_out_only(graph)]

    def died(rank: int) -> None:
        line.call("rank_died", groups.group_of(rank).ranks.index(rank))

    return Replacement(frozenset(ranks), dataclasses.replace(make, replaces=True), died)


def _coordinator_for(ranks: int) -> Callable[[int], Redistribution] | None:
    """Start the DataCoordinator if there are several ranks; the result connects one rank to it."""
    if ranks == 1:
        return None
    from siirl.data_coordinator.ray_edge import start_coordinator
    from siirl.data_coordinator.ray_redistribution import RayRedistribution

    coordinator = start_coordinator()
    return lambda rank: RayRedistribution(coordinator, rank=rank, ranks=ranks)


def _exchange_for(edges: Mapping[int, Edge]) -> Callable[[], "ExchangeLine"]:
    """Start the exchange between the groups; the result connects one rank to it."""
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine, start_exchange

    return functools.partial(ExchangeLine, start_exchange(edges))


def show_summary(
    run_folder: Path,
    *,
    report: Path,
    evaluated: Sequence[Mapping[str, Any]],
    changed: Sequence[str] = (),
    limit: str = "",
) -> None:
    """Print first and last evaluation on the same held-out episodes, `limit`, and output paths.

    `changed` are the keys by which a resumed run was evaluated on other episodes.
    """
    console = CommandConsole()
    if changed:
        console.print(Text(other_episodes(changed)))
    if len(evaluated) > 1:
        ends = {"before": evaluated[0], "after": evaluated[-1]}
        columns = {when: evaluations(metrics) for when, metrics in ends.items()}
        scores = {when: mean_scores(metrics) for when, metrics in ends.items()}
        if columns["after"]:
            console.print(
                interval_table(
                    "success on the same held-out episodes before and after, 95 % intervals",
                    columns,
                )
            )
            console.print(Text(printable(success_change(columns["before"], columns["after"]))))
            for sentence in tasks_below_others(columns["after"]):
                console.print(Text(printable(sentence, keep="")))
        if scores["after"]:
            console.print(
                interval_table(
                    "mean reward of the same held-out episodes before and after, 95 % intervals",
                    scores,
                )
            )
        if not columns["after"] and not scores["after"]:
            console.print(
                f"mean return on held-out episodes: {evaluated[0][MEAN_RETURN]:.1f} before, "
                f"{evaluated[-1][MEAN_RETURN]:.1f} after"
            )
    if limit:
        console.print(Text(limit))
    console.print(
        f"run folder  {run_folder}",
        *recording_lines(run_folder),
        f"report      {report}",
        sep="\n",
        soft_wrap=True,
    )


def success_change(
    before: Mapping[str, SuccessInterval], after: Mapping[str, SuccessInterval]
) -> str:
    """Sentence on the change in success, over all tasks or of the only task."""
    name = list(after)[-1]
    first, last = before[name], after[name]
    relation = "overlap" if first.overlaps(last) else "do not overlap"
    return f"{name}: {100 * (last.rate - first.rate):+.1f} points, the intervals {relation}"


def recording_lines(run_folder: Path) -> list[str]:
    """A line per folder of recorded episodes (videos or text); none without recordings."""
    return [
        f"{name:<11} {run_folder / name}"
        for name in (VIDEOS_FOLDER, ROLLOUTS_FOLDER)
        if _holds_something(run_folder / name)
    ]


def _holds_something(folder: Path) -> bool:
    return any(file.is_file() and file.stat().st_size > 0 for file in folder.rglob("*"))
