"""Turns a configuration that passed `siirl.preflight.early_checks` into a job that can start.

It loads the graph and registered names, checks policy, reward and machine, and computes the plan.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from envs.base import EnvSpec
from envs.gymnasium_drawing import lacks_pygame
from envs.gymnasium_ids import registration
from envs.names import listed_tasks
from siirl.dag_worker.critic_components import needs_critic
from siirl.engine.actor.actor_loss import ActorLoss
from siirl.engine.reward_manager import check_own_manager
from siirl.errors import refuse
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.task_loader import update_nodes
from siirl.models.adapters import check_resumed_adapters
from siirl.params import SiiRLArguments
from siirl.params.agents import config_of_group, owners, sends_weights
from siirl.params.critic_sizes import describe_critic
from siirl.params.domains import is_text
from siirl.params.env_args import EnvArguments
from siirl.params.env_spec import describe_env
from siirl.params.training_args import TrainingArguments
from siirl.preflight.check_embodied import check_demonstrations, check_encoder, check_policy
from siirl.preflight.check_text import check_text
from siirl.preflight.config_checks import warnings_of
from siirl.preflight.configured_graph import load_graph, require_configured_columns
from siirl.preflight.duration import measured_speed
from siirl.preflight.early_checks import key_problems
from siirl.preflight.gpu_fit import gpu_problems
from siirl.preflight.group_placement import GroupPlan, place
from siirl.preflight.host_fit import host_problems
from siirl.preflight.machine import (
    device_slots,
    free_memory_bytes,
    machine_problems,
    planned_gpu,
    shared_memory_bytes,
    total_memory_bytes,
)
from siirl.preflight.make_plan import make_plan, plan_of_groups
from siirl.preflight.memory import episodes_of_training, simulation_problems
from siirl.preflight.object_store import store_problems
from siirl.preflight.plan import Machine, Plan, ResumePoint
from siirl.preflight.resume_checks import (
    changed_options,
    check_resume,
    check_stream,
    resumed_policy,
    unread_config,
    with_changes,
)
from siirl.reporting.metric_writers import check_loggers


@dataclass(frozen=True)
class PreparedJob:
    """A job that passed all checks: its graph, plan and warnings."""

    graph: TaskGraph
    """The whole graph; `siirl.preflight.group_placement.scheduled` returns the graph of each
    rank."""
    plan: Plan
    warnings: tuple[str, ...]


def prepare(config: SiiRLArguments, spec: EnvSpec) -> PreparedJob:
    """Build the graph, run the remaining checks, and compute the plan.

    Replaces `trainer.resume` by the folder to resume from, or None; turns off videos of an
    environment that cannot be rendered.

    Raises:
        ConfigError: A configuration that cannot work.
        MissingAssetError: No OpenGL, or no folder to resume from.
        CheckpointError: Weights of another model, or an incomplete checkpoint.
    """
    graph = load_graph(config)
    require_configured_columns(config, graph)
    groups = place(config, graph)
    refuse(machine_problems(config.cluster, spec))
    check_loggers(config.trainer.logger)
    begins = check_resume(config, graph)
    plans: dict[int, Plan] = {}
    warnings = list(unread_config(config.trainer.resume))
    for group in graph.agent_groups():
        own = config_of_group(config, group)
        own_spec = spec if own is config else describe_env(own)
        check_stream(own, own_spec, resume=config.trainer.resume, group=group)
        check_models(
            own,
            own_spec,
            with_critic=needs_critic(graph, group=group),
            resumed=resumed_policy(
                config.trainer.resume, first=group == min(graph.agent_groups()), group=group
            ),
        )
        warnings += [
            *([own_spec.notice] if own_spec.notice else []),
            *warnings_of(own, own_spec),
            *([] if is_text(own_spec) else _without_videos(own.env, own.trainer, own_spec)),
        ]
        player = graph.playing_group(group)
        plans[group] = _plan(
            own,
            own_spec,
            graph,
            group=group,
            begins=begins,
            groups=groups,
            player=None if player == group else (player, config_of_group(config, player)),
            sends=sends_weights(config),
        )
    plan = plan_of_groups(plans, shared=owners(config.agents))
    refuse(store_problems(config, plan.needs.memory_parts, shared_memory_bytes=shared_memory_bytes))
    if begins is not None:  # the checks above may change keys
        plan = replace(plan, begins=with_changes(begins, config))
    return PreparedJob(graph=graph, plan=plan, warnings=tuple(dict.fromkeys(warnings)))


def check_models(
    config: SiiRLArguments, spec: EnvSpec, *, with_critic: bool, resumed: Path | None
) -> None:
    """Check policy and reward of a job, or of an agent group.

    Args:
        config: The configuration of the job or group.
        spec: Its environment.
        with_critic: Whether the job trains a critic.
        resumed: The policy's folder in the checkpoint that the job continues; None for a new run.

    Raises:
        ConfigError: A part that does not fit the environment.
        CheckpointError: Weights of another model.
    """
    if resumed is not None:
        check_resumed_adapters(resumed, config.actor_rollout_ref.model.lora)
    if is_text(spec):
        check_text(config, spec)
        return
    check_policy(
        config,
        spec,
        with_critic=with_critic,
        with_adapters=config.actor_rollout_ref.model.lora.rank > 0,
        resumed=resumed,
        changed=() if resumed is None else changed_options(config, resumed),
    )
    check_own_manager(config.reward)
    check_encoder(config.reward)
    check_demonstrations(config.reward, spec)


def _plan(
    config: SiiRLArguments,
    spec: EnvSpec,
    graph: TaskGraph,
    *,
    group: int,
    begins: ResumePoint | None,
    groups: tuple[GroupPlan, ...],
    player: tuple[int, SiiRLArguments] | None,
    sends: bool,
) -> Plan:
    """The plan of a job, or of an agent group, that fits this machine; see `make_plan`."""
    machine = Machine(
        free_memory_bytes=free_memory_bytes(),
        cores=len(os.sched_getaffinity(0)),
        speed=measured_speed(),
        gpu=planned_gpu(config.cluster, config.trainer, slots=device_slots),
    )
    with_critic = needs_critic(graph, group=group)
    # the horizon is known once the policy is built
    loss = ActorLoss(config.actor_rollout_ref.actor, horizon=1)
    plan = make_plan(
        config,
        graph,
        spec,
        machine=machine,
        loss=loss.describe(),
        critic=describe_critic(config, nodes=len(update_nodes(graph, ("critic", group))))
        if with_critic
        else None,
        begins=begins,
        groups=groups,
        group=group,
        episodes_of=player,
        sends=sends,
    )
    refuse(
        gpu_problems(
            config,
            spec,
            gpu=machine.gpu,
            with_critic=with_critic,
            problems=lambda changed, named: key_problems(changed, spec, named=named),
            sends=sends,
        )
    )
    refuse(
        simulation_problems(
            config, spec, episodes_of_training(config), total_memory_bytes=total_memory_bytes()
        )
    )
    refuse(
        host_problems(
            config,
            spec,
            total_memory_bytes=total_memory_bytes(),
            on_gpu=machine.gpu is not None,
            with_critic=with_critic,
            problems=lambda changed, named: [
                *key_problems(changed, spec, named=named),
                *gpu_problems(changed, spec, gpu=machine.gpu, with_critic=with_critic, sends=sends),
            ],
            sends=sends,
        )
    )
    return plan


def _without_videos(env: EnvArguments, trainer: TrainingArguments, spec: EnvSpec) -> list[str]:
    """Turn off videos if the environment cannot be rendered; returns a warning."""
    if spec.renders or not (trainer.record_episodes or trainer.record_val_episodes):
        return []
    trainer.record_episodes = trainer.record_val_episodes = 0
    remedy = ""
    if env.name == "gymnasium" and env.id and lacks_pygame(registration(env.id)):
        remedy = " Gymnasium draws its small environments with pygame: pip install pygame."
    keys = "trainer.record_episodes, trainer.record_val_episodes"
    return [
        f"{listed_tasks(spec.tasks)} cannot be rendered here, so no videos are recorded "
        f"({keys}).{remedy}"
    ]
