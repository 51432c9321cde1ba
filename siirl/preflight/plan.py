"""The plan: what a run will do, in numbers, told before any process starts. Memory
(`siirl.preflight.memory`) and time are estimates.

Left out: checking (`siirl.preflight.config_checks`); a plan is made of a configuration that has
passed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from envs.base import EnvSpec
from siirl.dag_worker.manifest import KEPT_CHECKPOINTS
from siirl.params import sizes
from siirl.params.printable import printable
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.params.weight_files import learnt_tasks
from siirl.preflight.duration import estimated_minutes
from siirl.preflight.memory import (
    BYTES_PER_PARAMETER,
    counted,
    policy_parameters,
    shortage,
    size_text,
    total,
    training_memory,
)

MOMENTS_BYTES_PER_PARAMETER = 8  # Adam's, in a checkpoint beside the weight
VIDEO_BYTES = 300e3  # some seconds of 256x256 mp4
LOG_BYTES = 20e6
# of more, for example the 90 of a suite of LIBERO, the plan names these and counts the others
LISTED_TASKS = 10
SHORTEST_STEP_S = (
    1.0  # of a job that records videos; bounds their number where max_minutes ends the run
)
UNGRADED_ROWS = (
    "rows that the environment cannot grade (no ground truth, or a style that wants a judge) are asked too: your reward alone decides, and "
    "successes count the others (env.kwargs.ungraded)"
)


class Graph(Protocol):
    """What the plan reads of a `siirl.execution.dag.TaskGraph`."""

    def get_topological_sort(self) -> list[str]:
        """Node ids in an order in which they can run."""

    def get_node(self, node_id: str) -> "GraphNode":
        """A node."""


class GraphNode(Protocol):
    """What the plan reads of a node."""

    skip_reason: str | None


@dataclass(frozen=True)
class Plan:
    """A run in numbers."""

    pipeline: str
    nodes: tuple[str, ...]
    """Those that run, in their order."""
    skipped: tuple[tuple[str, str], ...]
    """Nodes that do not run, with the reason."""
    env: str
    tasks: tuple[str, ...]
    task_sampling: str
    ranks: int
    machines: int
    cluster: str
    num_servers: int
    envs_per_server: int
    prompts: int
    group_size: int
    agents: int
    """Of an episode; each makes a trajectory."""
    mini_batches: int
    trajectories_per_mini_batch: int
    micro_batches: int
    micro_batch_size: int
    micro_batch_tokens: int | None
    """A budget of tokens in place of a number of trajectories."""
    epochs: int
    loss: str
    """The policy loss with its bounds, options and aggregation, as they come out."""
    critic: str | None
    """The critic's update; None where the graph has no critic."""
    begins: str | None
    """Where a resumed run goes on, in words; None for a new one."""
    start: str | None
    """What the first weights know, in words, where their folder says so and tasks of the run are
    not among it.
    """
    steps: int | None
    max_minutes: float | None
    file_epochs: int | None
    """Passes over the files of prompts; None where there are no files."""
    val_episodes: int
    """Of one evaluation, all tasks together."""
    evaluations: int | None
    memory_parts: tuple[tuple[str, float], ...]
    free_memory_bytes: float
    disk_bytes: float
    ungraded: bool
    """Whether rows are asked that the environment cannot grade."""
    minutes: float | None
    """Estimated training and evaluation time; None where nothing was measured that is like it."""

    @property
    def memory_bytes(self) -> float:
        """All parts together."""
        return total(self.memory_parts)

    @property
    def trajectories(self) -> int:
        """Of a step, over all ranks."""
        return self.prompts * self.group_size * self.agents

    @property
    def optimiser_steps(self) -> int:
        """Of a training step."""
        return self.mini_batches * self.epochs


def make_plan(
    config: SiiRLArguments,
    graph: Graph,
    env_spec: EnvSpec,
    *,
    free_memory_bytes: float,
    cores: int,
    loss: str,
    critic: str | None = None,
    begins: str | None = None,
) -> Plan:
    """Work out what a run will do.

    Args:
        config: A configuration that has passed the checks.
        graph: The pipeline.
        env_spec: Of the environment.
        free_memory_bytes: Of this machine.
        cores: Processors of this machine.
        loss: The resolved policy loss in words.
        critic: The critic's update in words; None where the graph has no critic.
        begins: Where a resumed run goes on, in words.
    """
    trainer, actor = config.trainer, config.actor_rollout_ref.actor
    models = 2 if critic is not None else 1
    val_episodes = trainer.val_episodes * len(env_spec.tasks)
    evaluations = _evaluations(config)
    nodes = {
        node_id: graph.get_node(node_id).skip_reason for node_id in graph.get_topological_sort()
    }
    return Plan(
        pipeline=_graph_name(config),
        nodes=tuple(node_id for node_id, reason in nodes.items() if reason is None),
        skipped=tuple((node_id, reason) for node_id, reason in nodes.items() if reason is not None),
        env=config.env.name,
        tasks=env_spec.tasks,
        task_sampling=config.data.task_sampling,
        ranks=sizes.ranks(config),
        machines=config.trainer.nnodes,
        cluster=config.cluster.address or config.cluster.mode,
        num_servers=sizes.servers(config),
        envs_per_server=config.env.envs_per_server,
        prompts=config.data.train_batch_size,
        group_size=config.actor_rollout_ref.rollout.n,
        agents=env_spec.num_agents,
        mini_batches=sizes.mini_batches(config),
        trajectories_per_mini_batch=sizes.trajectories_per_mini_batch(config) * env_spec.num_agents,
        micro_batches=sizes.micro_batches_per_mini_batch(config, agents=env_spec.num_agents),
        micro_batch_size=actor.micro_batch_size,
        micro_batch_tokens=actor.micro_batch_tokens,
        epochs=actor.ppo_epochs,
        loss=loss,
        critic=critic,
        begins=begins,
        start=_start(config, env_spec),
        steps=trainer.total_steps,
        max_minutes=trainer.max_minutes,
        file_epochs=trainer.total_epochs if config.data.train_files else None,
        val_episodes=val_episodes,
        evaluations=evaluations,
        memory_parts=training_memory(config, env_spec, models=models),
        free_memory_bytes=free_memory_bytes,
        disk_bytes=_disk(config, models=models, val_episodes=val_episodes),
        ungraded=env_spec.leaves_ungraded,
        minutes=estimated_minutes(
            config, env_spec, cores=cores, val_episodes=val_episodes * (evaluations or 0)
        ),
    )


def render(plan: Plan) -> str:
    """The plan as text for a terminal, one subject a line."""
    lines = [
        ("pipeline", f"{plan.pipeline}: {' -> '.join(plan.nodes)}"),
        *(("skipped", f"{node}: {reason}") for node, reason in plan.skipped),
        ("ranks", _render_ranks(plan)),
        ("tasks", f"{plan.env}: {_render_tasks(plan)}"),
        (
            "environments",
            f"{counted(plan.num_servers, 'server')} x {plan.envs_per_server} = {plan.num_servers * plan.envs_per_server}",
        ),
        ("a step", _render_step(plan)),
        ("update", _render_update(plan)),
        ("loss", plan.loss),
        *([("critic", plan.critic)] if plan.critic is not None else []),
        *([("grades", UNGRADED_ROWS)] if plan.ungraded else []),
        *([("begins", plan.begins)] if plan.begins is not None else []),
        *([("start", plan.start)] if plan.start is not None else []),
        ("length", _render_length(plan)),
        ("memory", f"about {size_text(plan.memory_bytes)}, estimated ({_render_memory(plan)})"),
        ("disk", f"about {size_text(plan.disk_bytes)} for checkpoints, videos and logs, estimated"),
        ("time", _render_time(plan)),
    ]
    width = max(len(name) for name, _ in lines)
    text = "\n".join(f"  {name:<{width}}  {printable(value, keep='')}" for name, value in lines)
    lacking = shortage(plan.memory_parts, free_memory_bytes=plan.free_memory_bytes)
    return f"Plan\n{text}" if lacking is None else f"Plan\n{text}\n  WARNING: {lacking}"


def _graph_name(config: SiiRLArguments) -> str:
    own, pipeline = config.dag.own_graph, config.dag.pipeline
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
        "; more prompts where most is to be learnt" if plan.task_sampling == "learnable" else ""
    )


def _listed(tasks: Sequence[str]) -> str:
    left_out = len(tasks) - LISTED_TASKS
    listed = ", ".join(tasks[:LISTED_TASKS])
    return listed if left_out <= 0 else f"{listed} and {left_out} more, {len(tasks)} tasks in all"


def _render_ranks(plan: Plan) -> str:
    machines = f" on {plan.machines} machines" if plan.machines > 1 else ""
    return f"{plan.ranks}{machines} ({'one process, cluster=local' if plan.cluster == 'local' else f'Ray actors, cluster={plan.cluster}'})"


def _render_step(plan: Plan) -> str:
    factors = [counted(plan.prompts, "prompt"), counted(plan.group_size, "rollout")]
    factors += [counted(plan.agents, "agent")] if plan.agents > 1 else []
    return f"{' x '.join(factors)} = {plan.trajectories} trajectories"


def _render_update(plan: Plan) -> str:
    passes = f"{plan.epochs} passes over " if plan.epochs > 1 else ""
    batches = f"{counted(plan.mini_batches, 'mini-batch', 'es')} of {plan.trajectories_per_mini_batch} trajectories"
    micro_batches = f"a rank takes {counted(plan.micro_batches, 'micro-batch', 'es')} of at most {plan.micro_batch_size} for each"
    if plan.micro_batch_tokens is not None:
        micro_batches = f"a rank takes micro-batches of at most {counted(plan.micro_batch_tokens, 'token')} for each"
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
    work = f"{plan.steps * plan.trajectories} trajectories, {counted(plan.steps * plan.optimiser_steps, 'optimiser step')}"
    return f"{counted(plan.steps, 'step')}{bound}: {work}; {counted(plan.evaluations or 0, 'evaluation')} of {plan.val_episodes} episodes"


def _render_memory(plan: Plan) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in plan.memory_parts if size)


def _render_time(plan: Plan) -> str:
    if plan.minutes is None:
        return f"no estimate: nothing was measured of env={plan.env} with a model like this; the first step will tell"
    return (
        f"about {plan.minutes:.0f} minutes, estimated from measurements on one machine"
        if plan.minutes >= 1
        else "under a minute, estimated"
    )


def _start(config: SiiRLArguments, env_spec: EnvSpec) -> str | None:
    path = config.actor_rollout_ref.model.path
    known = () if path is None or config.trainer.resume is not None else learnt_tasks(path)
    others = [task for task in env_spec.tasks if task not in known]
    if not known or not others:
        return None
    said = f"{path} has learnt {_listed(known)}"
    unseen = (
        "none of this run's tasks"
        if len(others) == len(env_spec.tasks)
        else f"not of {_listed(others)}"
    )
    return f"WARNING: {said}, {unseen}: expect hardly any success there, or make weights for them with python -m siirl.warm_start"


def _disk(config: SiiRLArguments, *, models: int, val_episodes: int) -> float:
    trainer, parameters = config.trainer, policy_parameters(config)
    steps = _steps_at_most(trainer)
    written = 1 + (steps // trainer.save_freq if trainer.save_freq > 0 else 0)
    checkpoints = min(written, KEPT_CHECKPOINTS + 1)  # the oldest goes when the newest is whole
    evaluations = min(
        _evaluations(config) or 1, steps + 2
    )  # each after a step, but for the one before and the one at the end
    of_a_step = min(
        trainer.record_episodes, sizes.trajectories_per_step(config)
    )  # a large number means all of them
    videos = steps * of_a_step + evaluations * min(trainer.record_val_episodes, val_episodes)
    trained = models - int(config.actor_rollout_ref.model.lora.rank > 0)
    weights = models * BYTES_PER_PARAMETER + trained * MOMENTS_BYTES_PER_PARAMETER
    return checkpoints * parameters * weights + videos * VIDEO_BYTES + LOG_BYTES


def _steps_at_most(trainer: TrainingArguments) -> int:
    """Steps that fit into the run; 0 where only minutes bound it, and so nothing is known of them."""
    steps = trainer.total_steps or 0
    return (
        steps
        if trainer.max_minutes is None
        else min(steps, math.ceil(60 * trainer.max_minutes / SHORTEST_STEP_S))
    )


def _evaluations(config: SiiRLArguments) -> int | None:
    """How many there will be; None where the number of steps is open."""
    trainer = config.trainer
    if trainer.total_steps is None:
        return None
    if trainer.val_episodes == 0:
        return 0
    between = (trainer.total_steps - 1) // trainer.test_freq if trainer.test_freq > 0 else 0
    return int(trainer.val_before_train) + between + 1
