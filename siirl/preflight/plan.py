"""The plan: sizes, length, memory and time of a run, before any process starts.

Memory (`siirl.preflight.memory`) and time are estimates. Left out: checks
(`siirl.preflight.config_checks`); a plan requires a configuration that passed them; the plan as
text (`siirl.preflight.plan_text`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envs.base import EnvSpec
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.drawing import drawn
from siirl.execution.dag.task_loader import trained_models
from siirl.params import sizes
from siirl.params.agents import rows_per_episode
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.domains import SERVER
from siirl.params.model_args import ActorRolloutRefArguments, ModelArguments
from siirl.params.server_args import ServerArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.params.weight_files import learnt_tasks
from siirl.preflight.duration import estimated_minutes
from siirl.preflight.group_placement import GroupPlan
from siirl.preflight.memory import disk_bytes, total, training_memory
from siirl.preflight.rank_memory import RankMemory, rank_memory

LISTED_TASKS = 10


@dataclass(frozen=True)
class Machine:
    """The machine on which a plan is made."""

    free_memory_bytes: float
    cores: int
    speed: float = 1.0
    """Speed relative to the benchmarks' machine (`duration.measured_speed`)."""
    gpu_bytes: float | None = None
    """Memory of a GPU; None without a GPU, or if it is unknown."""


@dataclass(frozen=True)
class PipelinePlan:
    """The graph of a run."""

    name: str
    nodes: tuple[str, ...]
    """Nodes that run, in order."""
    paths: tuple[str, ...]
    """The graph in lines: one for a chain, else one for each branch and join."""
    skipped: tuple[tuple[str, str], ...]
    """Nodes that do not run, with the reason."""
    trains: bool
    """Whether a node that runs updates a model."""


@dataclass(frozen=True)
class UpdatePlan:
    """How the trajectories of a step become optimiser steps."""

    epochs: int
    mini_batches: int
    trajectories_per_mini_batch: int
    micro_batches: int
    micro_batch_size: int
    micro_batch_tokens: int | None
    """Token budget, which replaces `micro_batch_size`."""
    micro_batch_chunks: int | None
    """Chunk budget, which replaces `micro_batch_size`."""
    loss: str
    """The resolved policy loss with its bounds, options and aggregation."""
    critic: str | None
    """The critic's update; None without a critic."""


@dataclass(frozen=True)
class LengthPlan:
    """When a run ends, and how often it is evaluated."""

    steps: int | None
    max_minutes: float | None
    file_epochs: int | None
    """Passes over the prompt files; None without files."""
    val_episodes: int
    """Episodes of one evaluation, over all tasks."""
    evaluations: int | None


@dataclass(frozen=True)
class Needs:
    """Estimated memory, disk space and duration of a run."""

    memory_parts: tuple[tuple[str, float], ...]
    rank_memory: RankMemory | None
    """GPU memory of a rank; None for a model of unknown shape."""
    disk_bytes: float
    minutes: float | None
    """Of training and evaluation; None without a comparable measurement."""

    @property
    def memory_bytes(self) -> float:
        """Sum of all parts."""
        return total(self.memory_parts)


@dataclass(frozen=True)
class Plan:
    """A run in numbers."""

    pipeline: PipelinePlan
    weights: str
    """Folder of the initial weights."""
    env: str
    tasks: tuple[str, ...]
    roles: tuple[tuple[str, int], ...]
    """Agents with roles, and the agent group that plays each."""
    task_sampling: str
    ranks: int
    machines: int
    cluster: str
    num_servers: int
    envs_per_server: int
    prompts: int
    group_size: int
    agents: int
    """Agents of an episode; each produces a trajectory."""
    update: UpdatePlan
    groups: tuple[GroupPlan, ...]
    """Resource groups; none if every rank does everything."""
    max_staleness: int
    streams: bool
    """Whether episodes are started continuously."""
    begins: str | None
    """Checkpoint and step that a resumed run continues from; None for a new run."""
    start: str | None
    """Warning about tasks that the initial weights were not trained on; None if there is none."""
    length: LengthPlan
    machine: Machine
    needs: Needs
    ungraded: bool
    """Whether the run includes rows that the environment cannot grade."""
    servers: tuple[str, ...] = ()
    """Addresses of the inference servers; none if the ranks generate themselves."""
    way_of_weights: str = ""
    """Transport of new weights to the servers, in words."""
    decisions: int | None = None
    """Decisions of an environment in a step; None if rows are whole episodes."""
    agents_of_run: "tuple[tuple[str, Plan], ...]" = ()
    """Names and plans of the agent groups; none if the run has one policy."""

    @property
    def trajectories(self) -> int:
        """Trajectories of a step, over all ranks."""
        return self.prompts * self.group_size * self.agents

    @property
    def optimiser_steps(self) -> int:
        """Optimiser steps of a training step."""
        return self.update.mini_batches * self.update.epochs if self.pipeline.trains else 0


def make_plan(
    config: SiiRLArguments,
    graph: TaskGraph,
    spec: EnvSpec,
    *,
    machine: Machine,
    loss: str,
    critic: str | None = None,
    begins: str | None = None,
    groups: Sequence[GroupPlan] = (),
    group: int | None = None,
) -> Plan:
    """Compute the plan of a run, or of an agent group.

    Args:
        config: A configuration that passed the checks.
        graph: The pipeline.
        spec: The environment's spec.
        machine: This machine.
        loss: The resolved policy loss in words.
        critic: The critic's update in words; None without a critic.
        begins: Checkpoint and step of a resumed run, in words.
        groups: Resource groups (`siirl.preflight.group_placement.place`).
        group: The agent group; None: all nodes are of the only one.
    """
    length = _length(config.trainer, config.data, tasks=len(spec.tasks))
    rollout = config.actor_rollout_ref.rollout
    return Plan(
        pipeline=_pipeline(graph, name=_graph_name(config.dag), group=group),
        weights=config.actor_rollout_ref.model.path or "new",
        env=config.env.name,
        tasks=spec.tasks,
        roles=tuple(zip(spec.agent_names, config.env.played_by, strict=False)),
        task_sampling=config.data.task_sampling,
        ranks=sizes.ranks(config.trainer),
        machines=config.trainer.nnodes,
        cluster=config.cluster.address or config.cluster.mode,
        num_servers=sizes.servers(
            config.env, ranks=sizes.rollout_ranks(config.trainer, config.dag)
        ),
        envs_per_server=config.env.envs_per_server,
        prompts=config.data.train_batch_size,
        group_size=rollout.n,
        decisions=rollout.n_steps,
        agents=rows_per_episode(spec),
        update=_update(
            config.data,
            config.actor_rollout_ref,
            ranks=sizes.training_ranks(config.trainer, config.dag),
            agents=rows_per_episode(spec),
            loss=loss,
            critic=critic,
        ),
        groups=tuple(groups),
        max_staleness=config.trainer.max_staleness,
        streams=sizes.streams(config.trainer, config.dag, config.actor_rollout_ref.rollout),
        begins=begins,
        start=_start(config.actor_rollout_ref.model, config.trainer, spec),
        length=length,
        machine=machine,
        needs=_needs(config, spec, machine, length, models=1 if critic is None else 2),
        ungraded=spec.leaves_ungraded,
        servers=rollout.server.urls if rollout.name == SERVER else (),
        way_of_weights=_way_of_weights(rollout.server),
    )


def together(plans: Mapping[int, Plan], *, shared: Mapping[int, int]) -> Plan:
    """The plan of a run from those of its agent groups.

    Args:
        plans: By agent group.
        shared: For each group that acts with another group's weights, that group.
    """
    if len(plans) == 1:
        return next(iter(plans.values()))
    first = plans[min(plans)]
    memory = list(first.needs.memory_parts)
    agents = []
    for group, plan in sorted(plans.items()):
        if plan is not first:
            memory += _memory_of_agent(group, plan, shares=group in shared)
        if group in shared:
            plan = dataclasses.replace(plan, weights=f"those of agent {shared[group]}")
        agents.append((f"agent {group}", plan))
    own = [plan.needs for group, plan in plans.items() if group not in shared]
    minutes = [plan.needs.minutes for plan in plans.values()]
    trains = any(plan.pipeline.trains for plan in plans.values())
    return dataclasses.replace(
        first,
        pipeline=dataclasses.replace(first.pipeline, trains=trains),
        needs=dataclasses.replace(
            first.needs,
            memory_parts=tuple(memory),
            disk_bytes=sum(needs.disk_bytes for needs in own),
            minutes=None if None in minutes else sum(minute or 0.0 for minute in minutes),
        ),
        agents_of_run=tuple(agents),
    )


def _memory_of_agent(group: int, plan: Plan, *, shares: bool) -> list[tuple[str, float]]:
    """Additional memory of an agent group; a group that shares weights adds no policy."""
    parts = []
    for name, size in plan.needs.memory_parts:
        of_run = name in ("workers", "Ray")
        if not of_run and not (shares and name.startswith("policy")):
            parts.append((f"agent {group}'s {name}", size))
    return parts


def _pipeline(graph: TaskGraph, *, name: str, group: int | None) -> PipelinePlan:
    nodes = graph.get_nodes()
    running = [node for node in nodes if node.skip_reason is None]
    own = [node for node in running if group in (None, node.agent_group)]
    return PipelinePlan(
        name=name,
        nodes=tuple(node.node_id for node in running),
        paths=drawn(graph),
        skipped=tuple((node.node_id, node.skip_reason) for node in nodes if node.skip_reason),
        trains=bool(trained_models(own)),
    )


def _way_of_weights(server: ServerArguments) -> str:
    if server.weights == "collective":
        return "by a collective"
    return f"through {server.weights_folder or 'memory of this machine'}"


def _update(
    data: DataArguments,
    policy: ActorRolloutRefArguments,
    *,
    ranks: int,
    agents: int,
    loss: str,
    critic: str | None,
) -> UpdatePlan:
    """The update on `ranks` ranks that train."""
    actor = policy.actor
    return UpdatePlan(
        epochs=actor.ppo_epochs,
        mini_batches=sizes.mini_batches(data, policy),
        trajectories_per_mini_batch=sizes.trajectories_per_mini_batch(policy) * agents,
        micro_batches=sizes.micro_batches_per_mini_batch(policy, ranks=ranks, agents=agents),
        micro_batch_size=actor.micro_batch_size,
        micro_batch_tokens=actor.micro_batch_tokens,
        micro_batch_chunks=actor.micro_batch_chunks,
        loss=loss,
        critic=critic,
    )


def _length(trainer: TrainingArguments, data: DataArguments, *, tasks: int) -> LengthPlan:
    return LengthPlan(
        steps=trainer.total_steps,
        max_minutes=trainer.max_minutes,
        file_epochs=trainer.total_epochs if data.train_files else None,
        val_episodes=trainer.val_episodes * trainer.val_samples * tasks,
        evaluations=_evaluations(trainer),
    )


def _needs(
    config: SiiRLArguments, spec: EnvSpec, machine: Machine, length: LengthPlan, *, models: int
) -> Needs:
    on_gpu = machine.gpu_bytes is not None
    return Needs(
        memory_parts=training_memory(config, spec, models=models, on_gpu=on_gpu),
        rank_memory=rank_memory(config, spec) if on_gpu else None,
        disk_bytes=disk_bytes(
            config.trainer,
            config.actor_rollout_ref.model,
            models=models,
            trajectories=sizes.trajectories_per_step(config.data, config.actor_rollout_ref.rollout),
            val_episodes=length.val_episodes,
            evaluations=length.evaluations,
        ),
        minutes=estimated_minutes(
            config,
            spec,
            cores=machine.cores,
            val_episodes=length.val_episodes * (length.evaluations or 0),
            speed=machine.speed,
        ),
    )


def _graph_name(dag: DagArguments) -> str:
    if dag.own_graph is None:
        return str(dag.pipeline)
    if dag.pipeline is None:
        return dag.own_graph
    return f"{dag.own_graph} (defaults of pipeline={dag.pipeline})"


def _start(model: ModelArguments, trainer: TrainingArguments, spec: EnvSpec) -> str | None:
    path = model.path
    known = () if path is None or trainer.resume is not None else learnt_tasks(path)
    others = [task for task in spec.tasks if task not in known]
    if not known or not others:
        return None
    trained_on = f"{path} was trained on {listed(known)}"
    unseen = (
        "on none of this run's tasks"
        if len(others) == len(spec.tasks)
        else f"not on {listed(others)}"
    )
    return (
        f"WARNING: {trained_on}, {unseen}: expect almost no success there, or train weights "
        "for them with siirl warm-start"
    )


def listed(tasks: Sequence[str]) -> str:
    """Names of tasks; of a long list, such as the 90 tasks of a LIBERO suite, the first ones and
    the number.
    """
    left_out = len(tasks) - LISTED_TASKS
    first = ", ".join(tasks[:LISTED_TASKS])
    return first if left_out <= 0 else f"{first} and {left_out} more, {len(tasks)} tasks in all"


def _evaluations(trainer: TrainingArguments) -> int | None:
    """Number of evaluations; None if the number of steps is open."""
    if trainer.total_steps is None:
        return None
    if trainer.val_episodes == 0:
        return 0
    between = (trainer.total_steps - 1) // trainer.test_freq if trainer.test_freq > 0 else 0
    return int(trainer.val_before_train) + between + 1
