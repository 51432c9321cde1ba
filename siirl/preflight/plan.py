"""The plan: sizes, length, memory and time of a run, printed before any process starts.

Memory (`siirl.preflight.memory`) and time are estimates. Left out: checks
(`siirl.preflight.config_checks`); a plan requires a configuration that passed them.
"""

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envs.base import EnvSpec
from siirl.dag_worker.manifest import KEPT_CHECKPOINTS
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.drawing import drawn
from siirl.execution.dag.task_loader import trained_models
from siirl.params import sizes
from siirl.params.agents import rows_per_episode
from siirl.params.dag_args import DagArguments
from siirl.params.model_args import ModelArguments
from siirl.params.printable import printable
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.params.weight_files import learnt_tasks
from siirl.preflight.duration import estimated_minutes
from siirl.preflight.gpu_fit import table_lines
from siirl.preflight.group_placement import GroupPlan
from siirl.preflight.memory import (
    BYTES_PER_PARAMETER,
    counted,
    policy_parameters,
    shortage,
    size_text,
    total,
    training_memory,
)
from siirl.preflight.rank_memory import RankMemory, rank_memory

MOMENTS_BYTES_PER_PARAMETER = 8  # Adam's two moments, in a checkpoint
VIDEO_BYTES = 300e3  # a few seconds of 256x256 mp4
LOG_BYTES = 20e6
# a longer list, for example the 90 tasks of a LIBERO suite, is cut and the rest counted
LISTED_TASKS = 10
COLUMNS = 80
"""Width of the plan: the default width of a terminal."""
SHORTEST_STEP_S = 1.0  # with videos; bounds their number if max_minutes ends the run
UNGRADED_ROWS = (
    "includes rows that the environment cannot grade (no ground truth, or a style that needs a "
    "judge): only your reward rates them, and success rates leave them out "
    "(env.kwargs.ungraded)"
)


@dataclass(frozen=True)
class Plan:
    """A run in numbers."""

    pipeline: str
    nodes: tuple[str, ...]
    """Nodes that run, in order."""
    paths: tuple[str, ...]
    """The graph in lines: one for a chain, else one for each branch and join."""
    trains: bool
    """Whether a node that runs updates a model."""
    skipped: tuple[tuple[str, str], ...]
    """Nodes that do not run, with the reason."""
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
    mini_batches: int
    trajectories_per_mini_batch: int
    micro_batches: int
    micro_batch_size: int
    micro_batch_tokens: int | None
    """Token budget, which replaces `micro_batch_size`."""
    micro_batch_chunks: int | None
    """Chunk budget, which replaces `micro_batch_size`."""
    epochs: int
    groups: tuple[GroupPlan, ...]
    """Resource groups; none if every rank does everything."""
    max_staleness: int
    streams: bool
    """Whether episodes are started all the time."""
    loss: str
    """The resolved policy loss with its bounds, options and aggregation."""
    critic: str | None
    """The critic's update; None without a critic."""
    begins: str | None
    """Checkpoint and step that a resumed run continues from; None for a new run."""
    start: str | None
    """Warning about tasks that the initial weights were not trained on; None if there is none.
    """
    steps: int | None
    max_minutes: float | None
    file_epochs: int | None
    """Passes over the prompt files; None without files."""
    val_episodes: int
    """Episodes of one evaluation, over all tasks."""
    evaluations: int | None
    memory_parts: tuple[tuple[str, float], ...]
    free_memory_bytes: float
    rank_memory: RankMemory | None
    """GPU memory of a rank; None for a model of unknown shape."""
    gpu_bytes: float | None
    """Memory of a GPU; None: there is none, or it is unknown."""
    disk_bytes: float
    ungraded: bool
    """Whether the run includes rows that the environment cannot grade."""
    minutes: float | None
    """Estimated training and evaluation time; None without a comparable measurement."""
    speed: float
    """Speed of this machine, where 1 is that of the benchmarks' machine."""
    agents_of_run: "tuple[tuple[str, Plan], ...]" = ()
    """Names and plans of the agent groups; none if the run has one policy."""

    @property
    def memory_bytes(self) -> float:
        """Sum of all parts."""
        return total(self.memory_parts)

    @property
    def trajectories(self) -> int:
        """Trajectories of a step, over all ranks."""
        return self.prompts * self.group_size * self.agents

    @property
    def optimiser_steps(self) -> int:
        """Optimiser steps of a training step."""
        return self.mini_batches * self.epochs if self.trains else 0


def make_plan(
    config: SiiRLArguments,
    graph: TaskGraph,
    env_spec: EnvSpec,
    *,
    free_memory_bytes: float,
    cores: int,
    loss: str,
    critic: str | None = None,
    begins: str | None = None,
    speed: float = 1.0,
    gpu_bytes: float | None = None,
    groups: Sequence[GroupPlan] = (),
    group: int | None = None,
) -> Plan:
    """Compute the plan of a run, or of an agent group.

    Args:
        config: A configuration that passed the checks.
        graph: The pipeline.
        env_spec: The environment's spec.
        free_memory_bytes: Free memory of this machine.
        cores: CPU cores of this machine.
        loss: The resolved policy loss in words.
        critic: The critic's update in words; None without a critic.
        begins: Checkpoint and step of a resumed run, in words.
        speed: Speed of this machine (`duration.measured_speed`).
        gpu_bytes: Memory of a GPU; None: there is none, or it is unknown.
        groups: Resource groups (`siirl.preflight.group_placement.place`).
        group: The agent group; None: all nodes are of the only one.
    """
    trainer, actor = config.trainer, config.actor_rollout_ref.actor
    models = 2 if critic is not None else 1
    val_episodes = trainer.val_episodes * len(env_spec.tasks)
    evaluations = _evaluations(config.trainer)
    nodes = {
        node_id: graph.get_node(node_id).skip_reason for node_id in graph.get_topological_sort()
    }
    return Plan(
        pipeline=_graph_name(config.dag),
        nodes=tuple(node_id for node_id, reason in nodes.items() if reason is None),
        skipped=tuple((node_id, reason) for node_id, reason in nodes.items() if reason is not None),
        paths=drawn(graph),
        trains=bool(
            trained_models(
                [
                    node
                    for node in graph.get_nodes()
                    if not node.skip_reason and group in (None, node.agent_group)
                ]
            )
        ),
        weights=config.actor_rollout_ref.model.path or "new",
        env=config.env.name,
        tasks=env_spec.tasks,
        roles=tuple(zip(env_spec.agent_names, config.env.played_by, strict=False)),
        task_sampling=config.data.task_sampling,
        ranks=sizes.ranks(config),
        machines=config.trainer.nnodes,
        cluster=config.cluster.address or config.cluster.mode,
        num_servers=sizes.servers(config),
        envs_per_server=config.env.envs_per_server,
        prompts=config.data.train_batch_size,
        group_size=config.actor_rollout_ref.rollout.n,
        agents=rows_per_episode(env_spec),
        mini_batches=sizes.mini_batches(config),
        trajectories_per_mini_batch=sizes.trajectories_per_mini_batch(config)
        * rows_per_episode(env_spec),
        micro_batches=sizes.micro_batches_per_mini_batch(config, agents=rows_per_episode(env_spec)),
        micro_batch_size=actor.micro_batch_size,
        micro_batch_tokens=actor.micro_batch_tokens,
        micro_batch_chunks=actor.micro_batch_chunks,
        epochs=actor.ppo_epochs,
        groups=tuple(groups),
        max_staleness=trainer.max_staleness,
        streams=sizes.streams(config),
        loss=loss,
        critic=critic,
        begins=begins,
        start=_start(config.actor_rollout_ref.model, config.trainer, env_spec),
        steps=trainer.total_steps,
        max_minutes=trainer.max_minutes,
        file_epochs=trainer.total_epochs if config.data.train_files else None,
        val_episodes=val_episodes,
        evaluations=evaluations,
        memory_parts=training_memory(config, env_spec, models=models),
        free_memory_bytes=free_memory_bytes,
        rank_memory=None if gpu_bytes is None else rank_memory(config, env_spec),
        gpu_bytes=gpu_bytes,
        disk_bytes=_disk(config, models=models, val_episodes=val_episodes),
        ungraded=env_spec.leaves_ungraded,
        minutes=estimated_minutes(
            config,
            env_spec,
            cores=cores,
            val_episodes=val_episodes * (evaluations or 0),
            speed=speed,
        ),
        speed=speed,
    )


def render(plan: Plan) -> str:
    """The plan as text for a terminal, one topic a line."""
    lines = [
        ("pipeline", f"{plan.pipeline}: {plan.paths[0]}"),
        *(("join" if " + " in path else "branch", path) for path in plan.paths[1:]),
        *(("skipped", f"{node}: {reason}") for node, reason in plan.skipped),
        ("ranks", _render_ranks(plan)),
        *((f"group {group.name}", _render_group(group)) for group in plan.groups),
        *([("staleness", _render_staleness(plan))] if plan.groups else []),
        *_lines_of_agents(plan),
        *([("begins", plan.begins)] if plan.begins is not None else []),
        ("length", _render_length(plan)),
        ("memory", f"about {size_text(plan.memory_bytes)}, estimated ({_render_memory(plan)})"),
        *(
            table_lines(plan.rank_memory, gpu_bytes=plan.gpu_bytes)
            if plan.rank_memory and plan.gpu_bytes
            else ()
        ),
        ("disk", f"about {size_text(plan.disk_bytes)} for checkpoints, videos and logs, estimated"),
        ("time", _render_time(plan)),
    ]
    lacking = shortage(plan.memory_parts, free_memory_bytes=plan.free_memory_bytes)
    lines += [] if lacking is None else [("WARNING", lacking)]
    width = max(len(name) for name, _ in lines)
    return "\n".join(["Plan", *(_hanging(name, value, column=width + 4) for name, value in lines)])


def together(plans: Mapping[int, Plan], *, shared: Mapping[int, int]) -> Plan:
    """The plan of a run from those of its agent groups.

    Args:
        plans: By agent group.
        shared: For each group that acts with another's weights, which group's.
    """
    if len(plans) == 1:
        return next(iter(plans.values()))
    first = plans[min(plans)]
    of_run = ("workers", "Ray")
    memory = list(first.memory_parts)
    for group, plan in plans.items():
        if plan is not first:
            memory += [
                (f"agent {group}'s {name}", size)
                for name, size in plan.memory_parts
                if name not in of_run and not (group in shared and name.startswith("policy"))
            ]
    minutes = [plan.minutes for plan in plans.values()]
    own = [plan for group, plan in plans.items() if group not in shared]
    return dataclasses.replace(
        first,
        trains=any(plan.trains for plan in plans.values()),
        memory_parts=tuple(memory),
        disk_bytes=sum(plan.disk_bytes for plan in own),
        minutes=None if None in minutes else sum(minute or 0.0 for minute in minutes),
        agents_of_run=tuple(
            (
                f"agent {group}",
                dataclasses.replace(plan, weights=f"those of agent {shared[group]}")
                if group in shared
                else plan,
            )
            for group, plan in sorted(plans.items())
        ),
    )


def _lines_of_agents(plan: Plan) -> list[tuple[str, str]]:
    """Tasks, sizes and updates of the run's policy, or of each agent's."""
    if not plan.agents_of_run:
        return _lines_of_agent(plan)
    return [
        (f"{name} {topic}", text)
        for name, own in plan.agents_of_run
        for topic, text in (("weights", own.weights), *_lines_of_agent(own))
    ]


def _lines_of_agent(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("tasks", f"{plan.env}: {_render_tasks(plan)}"),
        *([("roles", _render_roles(plan))] if plan.roles else []),
        (
            "environments",
            f"{counted(plan.num_servers, 'server')} x {plan.envs_per_server} = "
            f"{plan.num_servers * plan.envs_per_server}",
        ),
        ("a step", _render_step(plan)),
        ("update", _render_update(plan)),
        *([("loss", plan.loss)] if plan.trains else []),
        *([("critic", plan.critic)] if plan.critic is not None else []),
        *([("grades", UNGRADED_ROWS)] if plan.ungraded else []),
        *([("start", plan.start)] if plan.start is not None else []),
    ]


def _hanging(name: str, value: str, *, column: int) -> str:
    """A topic in the left column and its text beside it, wrapped to `COLUMNS`."""
    text = textwrap.wrap(
        printable(value, keep=""), COLUMNS - column, break_on_hyphens=False, break_long_words=False
    )
    return f"  {name:<{column - 2}}" + ("\n" + " " * column).join(text)


def _graph_name(dag: DagArguments) -> str:
    own, pipeline = dag.own_graph, dag.pipeline
    return (
        str(pipeline)
        if own is None
        else own
        if pipeline is None
        else f"{own} (defaults of pipeline={pipeline})"
    )


def _render_tasks(plan: Plan) -> str:
    if plan.file_epochs is not None:
        return "questions of data.train_files"
    return _listed(plan.tasks) + (
        "; more prompts for tasks of medium success" if plan.task_sampling == "learnable" else ""
    )


def _render_roles(plan: Plan) -> str:
    return ", ".join(f"{name} played by agent {group}" for name, group in plan.roles)


def _listed(tasks: Sequence[str]) -> str:
    left_out = len(tasks) - LISTED_TASKS
    listed = ", ".join(tasks[:LISTED_TASKS])
    return listed if left_out <= 0 else f"{listed} and {left_out} more, {len(tasks)} tasks in all"


def _render_ranks(plan: Plan) -> str:
    machines = f" on {plan.machines} machines" if plan.machines > 1 else ""
    local = plan.cluster == "local"
    place = "one process, cluster=local" if local else f"Ray actors, cluster={plan.cluster}"
    return f"{plan.ranks}{machines} ({place})"


def _render_group(group: GroupPlan) -> str:
    ranks, machines = _numbers("rank", group.ranks), _numbers("machine", group.machines)
    return f"{ranks} ({group.why}) on {machines}: {' -> '.join(group.nodes)}"


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    """`rank 0`, `ranks 0-3` or `ranks 0, 2`."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    in_a_row = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]}-{numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))
    return f"{noun}s {listed}"


def _render_staleness(plan: Plan) -> str:
    if plan.max_staleness == 0:
        return "0: a step's rollouts wait for the weights of the step before"
    behind = f"at most {counted(plan.max_staleness, 'step')}"
    if plan.streams:
        return f"{behind}: episodes are started all the time, new weights reach running ones"
    return f"{behind}: step k is rolled out with the weights of step k - {plan.max_staleness + 1}"


def _render_step(plan: Plan) -> str:
    factors = [counted(plan.prompts, "prompt"), counted(plan.group_size, "rollout")]
    factors += [counted(plan.agents, "agent")] if plan.agents > 1 else []
    return f"{' x '.join(factors)} = {plan.trajectories} trajectories"


def _render_update(plan: Plan) -> str:
    if not plan.trains:
        return "none: no node of this graph trains a model, so the weights stay as they are"
    passes = f"{plan.epochs} passes over " if plan.epochs > 1 else ""
    batches = (
        f"{counted(plan.mini_batches, 'mini-batch', 'es')} of "
        f"{plan.trajectories_per_mini_batch} trajectories"
    )
    micro_batches = (
        f"a rank takes {counted(plan.micro_batches, 'micro-batch', 'es')} of at most "
        f"{plan.micro_batch_size} for each"
    )
    for budget, unit in ((plan.micro_batch_tokens, "token"), (plan.micro_batch_chunks, "chunk")):
        if budget is not None:
            micro_batches = (
                f"a rank takes micro-batches of at most {counted(budget, unit)} for each"
            )
    return f"{passes}{batches} = {counted(plan.optimiser_steps, 'optimiser step')}; {micro_batches}"


def _render_length(plan: Plan) -> str:
    bounds = [] if plan.max_minutes is None else [f"{plan.max_minutes:g} minutes of training"]
    bounds += (
        []
        if plan.file_epochs is None
        else [f"{counted(plan.file_epochs, 'pass', 'es')} over the files"]
    )
    if plan.steps is None:
        return f"steps until {' or '.join(bounds)}; evaluations of {plan.val_episodes} episodes"
    bound = f", at most {' or '.join(bounds)}" if bounds else ""
    agents = [own for _, own in plan.agents_of_run] or [plan]
    work = f"{plan.steps * sum(own.trajectories for own in agents)} trajectories"
    if plan.trains:
        updates = plan.steps * sum(own.optimiser_steps for own in agents)
        work += f", {counted(updates, 'optimiser step')}"
    return (
        f"{counted(plan.steps, 'step')}{bound}: {work}; "
        f"{counted(plan.evaluations or 0, 'evaluation')} of {plan.val_episodes} episodes"
    )


def _render_memory(plan: Plan) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in plan.memory_parts if size)


def _render_time(plan: Plan) -> str:
    if plan.minutes is None:
        return (
            f"no estimate: env={plan.env} was not measured with a model of this size; see the "
            "first step"
        )
    measured = f"from benchmarks and this machine's speed ({plan.speed:.1f}x, measured now)"
    return (
        f"about {plan.minutes:.0f} minutes, {measured}"
        if plan.minutes >= 1
        else f"under a minute, {measured}"
    )


def _start(model: ModelArguments, trainer: TrainingArguments, env_spec: EnvSpec) -> str | None:
    path = model.path
    known = () if path is None or trainer.resume is not None else learnt_tasks(path)
    others = [task for task in env_spec.tasks if task not in known]
    if not known or not others:
        return None
    trained_on = f"{path} was trained on {_listed(known)}"
    unseen = (
        "on none of this run's tasks"
        if len(others) == len(env_spec.tasks)
        else f"not on {_listed(others)}"
    )
    return (
        f"WARNING: {trained_on}, {unseen}: expect almost no success there, or train weights "
        "for them with python -m siirl.warm_start"
    )


def _disk(config: SiiRLArguments, *, models: int, val_episodes: int) -> float:
    trainer, parameters = config.trainer, policy_parameters(config.actor_rollout_ref.model)
    steps = _steps_at_most(trainer)
    written = 1 + (steps // trainer.save_freq if trainer.save_freq > 0 else 0)
    # the oldest is deleted after the newest is written
    checkpoints = min(written, KEPT_CHECKPOINTS + 1)
    evaluations = min(
        _evaluations(config.trainer) or 1, steps + 2
    )  # one after each step, one before training, one at the end
    of_a_step = min(
        trainer.record_episodes, sizes.trajectories_per_step(config)
    )  # a large number records all
    videos = steps * of_a_step + evaluations * min(trainer.record_val_episodes, val_episodes)
    trained = models - int(config.actor_rollout_ref.model.lora.rank > 0)
    weights = models * BYTES_PER_PARAMETER + trained * MOMENTS_BYTES_PER_PARAMETER
    return checkpoints * parameters * weights + videos * VIDEO_BYTES + LOG_BYTES


def _steps_at_most(trainer: TrainingArguments) -> int:
    """Upper bound of the run's steps; 0 if only max_minutes bounds it."""
    steps = trainer.total_steps or 0
    return (
        steps
        if trainer.max_minutes is None
        else min(steps, math.ceil(60 * trainer.max_minutes / SHORTEST_STEP_S))
    )


def _evaluations(trainer: TrainingArguments) -> int | None:
    """Number of evaluations; None if the number of steps is open."""
    if trainer.total_steps is None:
        return None
    if trainer.val_episodes == 0:
        return 0
    between = (trainer.total_steps - 1) // trainer.test_freq if trainer.test_freq > 0 else 0
    return int(trainer.val_before_train) + between + 1
