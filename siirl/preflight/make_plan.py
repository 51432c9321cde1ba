"""Computes the plan of a run, or of each of its agent groups.

Memory (`siirl.preflight.memory`) and time are estimates. Left out: checks
(`siirl.preflight.config_checks`); a plan requires a configuration that passed them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from envs.base import EnvSpec
from envs.names import listed_tasks
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.drawing import drawn
from siirl.execution.dag.task_loader import trained_models, update_nodes
from siirl.files.weight_files import learnt_tasks
from siirl.params import sizes
from siirl.params.agents import rows_of_step, rows_per_episode
from siirl.params.build import as_text
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.domains import SERVER, is_text
from siirl.params.model_args import ActorArguments, ModelArguments
from siirl.params.server_args import ServerArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.duration import estimated_minutes
from siirl.preflight.group_placement import GroupPlan
from siirl.preflight.host_fit import run_memory
from siirl.preflight.memory import IMAGES_PART, disk_bytes
from siirl.preflight.plan import (
    LengthPlan,
    Machine,
    Needs,
    PipelinePlan,
    Plan,
    ResumePoint,
    UpdatePlan,
)
from siirl.preflight.rank_memory import rank_memory


def make_plan(
    config: SiiRLArguments,
    graph: TaskGraph,
    spec: EnvSpec,
    *,
    machine: Machine,
    loss: str,
    critic: str | None = None,
    begins: ResumePoint | None = None,
    groups: Sequence[GroupPlan] = (),
    group: int = 0,
    episodes_of: tuple[int, SiiRLArguments] | None = None,
    sends: bool | None = None,
) -> Plan:
    """Compute the plan of a run, or of an agent group.

    Args:
        config: A configuration that passed the checks.
        graph: The pipeline.
        spec: The environment's spec.
        machine: This machine.
        loss: The resolved policy loss in words.
        critic: The critic's update in words; None without a critic.
        begins: Start of a run with `trainer.resume`.
        groups: Resource groups (`siirl.preflight.group_placement.place`).
        group: The agent group.
        episodes_of: The agent group whose episodes it trains on, and that group's configuration;
            None: it plays its own.
        sends: The run's `sends_weights`; None: that of `config`.
    """
    done = 0 if begins is None else begins.step
    length = _length(config.trainer, config.data, done=done, tasks=len(spec.tasks))
    rollout = config.actor_rollout_ref.rollout
    rollout_ranks = sizes.rollout_ranks(config.trainer, config.dag)
    playing = config if episodes_of is None else episodes_of[1]
    agents = config.env.played_by.count(group) if spec.agent_names else spec.num_agents
    return Plan(
        pipeline=_pipeline(graph, name=_graph_name(config.dag), group=group),
        policy=_policy(config.actor_rollout_ref.model, resumed=config.trainer.resume),
        env=config.env.name,
        tasks=spec.tasks,
        roles=tuple(zip(spec.agent_names, config.env.played_by, strict=False)),
        task_sampling=config.data.task_sampling,
        ranks=sizes.ranks(config.trainer),
        machines=config.trainer.nnodes,
        cluster=config.cluster.address or config.cluster.mode,
        num_servers=sizes.servers(config.env, ranks=rollout_ranks),
        envs_per_server=config.env.envs_per_server,
        prompts=playing.data.train_batch_size,
        group_size=playing.actor_rollout_ref.rollout.n,
        decisions=rollout.n_steps,
        agents=agents,
        varies=bool(spec.agent_names),
        episodes_of=None if episodes_of is None else episodes_of[0],
        update=_update(config, graph, spec, group=group, playing=playing, loss=loss, critic=critic),
        groups=tuple(groups),
        max_staleness=config.trainer.max_staleness,
        streams=sizes.streams(config.trainer, config.dag, rollout),
        begins=begins,
        start=_start(config.actor_rollout_ref.model, config.trainer, spec),
        length=length,
        machine=machine,
        needs=_needs(
            config,
            spec,
            machine,
            length,
            has_critic=critic is not None,
            plays=episodes_of is None,
            sends=sends,
        ),
        ungraded=spec.leaves_ungraded,
        servers=rollout.server.urls if rollout.name == SERVER else (),
        way_of_weights=_way_of_weights(rollout.server),
    )


def plan_of_groups(plans: Mapping[int, Plan], *, shared: Mapping[int, int]) -> Plan:
    """The plan of a run from those of its agent groups.

    Args:
        plans: Plans by agent group.
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
            plan = dataclasses.replace(plan, policy=f"that of agent {shared[group]}")
        agents.append((f"agent {group}", plan))
    own = [plan.needs for group, plan in plans.items() if group not in shared]
    minutes = [plan.needs.minutes for plan in plans.values()]
    trains = any(plan.pipeline.trains for plan in plans.values())
    val_episodes = sum(
        plan.length.val_episodes for plan in plans.values() if plan.episodes_of is None
    )
    return dataclasses.replace(
        first,
        length=dataclasses.replace(first.length, val_episodes=val_episodes),
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
    """Additional memory of an agent group. A group that shares weights adds no policy; a group that
    plays no episodes adds no environments.
    """
    of_run = ("workers", "Ray", *(("environments",) if plan.episodes_of is not None else ()))
    return [
        (f"agent {group}'s {name}", size)
        for name, size in plan.needs.memory_parts
        if name not in of_run and not (shares and name not in ("environments", IMAGES_PART))
    ]


def _pipeline(graph: TaskGraph, *, name: str, group: int) -> PipelinePlan:
    nodes = graph.get_nodes()
    running = [node for node in nodes if node.skip_reason is None]
    own = [node for node in running if node.agent_group == group]
    return PipelinePlan(
        name=name,
        nodes=tuple(node.node_id for node in running),
        paths=drawn(graph),
        skipped=tuple((node.node_id, node.skip_reason) for node in nodes if node.skip_reason),
        trains=bool(trained_models(own)),
    )


def _policy(model: ModelArguments, *, resumed: str | None) -> str:
    """The policy in words; `resumed` is the checkpoint whose weights replace those of its path."""
    options = f" {as_text(model.options)}" if model.options else ""
    source = model.path if resumed is None else resumed
    weights = "new weights" if source is None else f"weights of {source}"
    adapters = f", LoRA of rank {model.lora.rank}" if model.lora.rank else ""
    return f"{model.policy}{options}, {weights}{adapters}"


def _rate(actor: ActorArguments) -> str:
    followed = "" if actor.target_kl is None else f", adjusted to target_kl={actor.target_kl:g}"
    return f"{actor.optim.lr:g}, {actor.optim.scheduler}{followed}"


def _way_of_weights(server: ServerArguments) -> str:
    if server.weights == "collective":
        return "by a collective"
    return f"through {server.weights_folder or 'memory of this machine'}"


def _update(
    config: SiiRLArguments,
    graph: TaskGraph,
    spec: EnvSpec,
    *,
    group: int,
    playing: SiiRLArguments,
    loss: str,
    critic: str | None,
) -> UpdatePlan:
    """The update of an agent group on episodes of a group with the configuration `playing`."""
    policy, actor = config.actor_rollout_ref, config.actor_rollout_ref.actor
    ranks = sizes.training_ranks(config.trainer, config.dag)
    rows = rows_of_step(config, group=group, playing=playing)
    agents = rows_per_episode(spec)
    return UpdatePlan(
        nodes=len(update_nodes(graph, ("policy", group))),
        epochs=actor.ppo_epochs,
        mini_batches=sizes.mini_batches(policy, rows=rows),
        trajectories_per_mini_batch=sizes.trajectories_per_mini_batch(policy) * agents,
        micro_batches=sizes.micro_batches_per_mini_batch(policy, ranks=ranks, agents=agents),
        micro_batch_size=actor.micro_batch_size,
        micro_batch_tokens=actor.micro_batch_tokens,
        micro_batch_chunks=actor.micro_batch_chunks,
        rate=_rate(actor),
        loss=loss,
        critic=critic,
    )


def _length(
    trainer: TrainingArguments, data: DataArguments, *, done: int, tasks: int
) -> LengthPlan:
    return LengthPlan(
        steps=trainer.total_steps,
        done=done if trainer.total_steps is None else min(done, trainer.total_steps),
        critic_warmup=trainer.critic_warmup,
        max_minutes=trainer.max_minutes,
        file_epochs=trainer.total_epochs if data.train_files else None,
        val_episodes=trainer.val_episodes * trainer.val_samples * tasks,
        evaluations=_evaluations(trainer, done=done),
    )


def _needs(
    config: SiiRLArguments,
    spec: EnvSpec,
    machine: Machine,
    length: LengthPlan,
    *,
    has_critic: bool,
    plays: bool,
    sends: bool | None,
) -> Needs:
    """Needs of a group; one that does not play (`plays`) records no videos."""
    on_gpu = machine.gpu is not None
    return Needs(
        memory_parts=run_memory(config, spec, on_gpu=on_gpu, with_critic=has_critic, sends=sends),
        rank_memory=rank_memory(config, spec, with_critic=has_critic, sends=sends)
        if on_gpu
        else None,
        disk_bytes=disk_bytes(
            config,
            models=1 + has_critic,
            trajectories=plays
            * sizes.trajectories_per_step(config.data, config.actor_rollout_ref.rollout),
            val_episodes=plays * length.val_episodes,
            done=length.done,
            evaluations=length.evaluations,
            films=not is_text(spec),
        ),
        minutes=estimated_minutes(
            config,
            spec,
            cores=machine.cores,
            done=length.done,
            val_episodes=plays * length.val_episodes * (length.evaluations or 0),
            plays=plays,
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
    trained_on = f"{path} was trained on {listed_tasks(known)}"
    unseen = (
        "on none of this run's tasks"
        if len(others) == len(spec.tasks)
        else f"not on {listed_tasks(others)}"
    )
    return (
        f"WARNING: {trained_on}, {unseen}: expect almost no success there, or train weights "
        "for them with siirl warm-start"
    )


def _evaluations(trainer: TrainingArguments, *, done: int) -> int | None:
    """Number of evaluations after `done` steps; None if the number of steps is open."""
    if trainer.total_steps is None:
        return None
    if trainer.val_episodes == 0:
        return 0
    last = trainer.total_steps - 1  # the last step that may be followed by one
    every = trainer.test_freq if trainer.test_freq > 0 else trainer.total_steps
    between = last // every - min(done, last) // every
    return int(trainer.val_before_train and done == 0) + between + 1
