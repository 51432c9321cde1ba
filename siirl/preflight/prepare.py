"""Turns a configuration that passed `siirl.preflight.early_checks` into a job that can start.

It loads the graph and registered names, checks policy, reward and machine, and computes the plan.
"""

import importlib.util
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envs.base import EnvSpec
from envs.names import listed_tasks
from siirl.algos.advantages import ADVANTAGES
from siirl.algos.policy_losses import LOSS_TRAITS
from siirl.dag_worker.critic_components import needs_critic
from siirl.dag_worker.manifest import EVALUATION_DUE, read_manifest, resolve_checkpoint
from siirl.dag_worker.registries import load_plug_ins
from siirl.dag_worker.stages import generate, greedy_baseline, single_decisions
from siirl.engine.actor.actor_loss import ActorLoss
from siirl.engine.reward_manager import check_own_manager
from siirl.errors import ConfigError, refuse
from siirl.execution.dag import NodeRole, TaskGraph, order_for_kl_in_reward
from siirl.execution.dag.buffers import check_buffers
from siirl.execution.dag.job_graph import check_one_policy, skip_unused, sync_at_the_end
from siirl.execution.dag.load import load_pipeline
from siirl.execution.dag.resource_groups import check_group_names
from siirl.execution.dag.task_loader import update_nodes
from siirl.models.adapters import check_resumed_adapters
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import check_groups, config_of_group, group_configs, owners
from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.build import as_text
from siirl.params.critic_sizes import describe_critic
from siirl.params.domains import is_text
from siirl.params.env_args import EnvArguments
from siirl.params.env_spec import describe_env
from siirl.params.key_names import MODEL_OPTIONS, MODEL_POLICY
from siirl.params.model_args import ActorArguments
from siirl.params.training_args import TrainingArguments
from siirl.params.user_settings import value_at
from siirl.preflight.check_embodied import (
    check_demonstrations,
    check_encoder,
    check_policy,
)
from siirl.preflight.check_text import check_text
from siirl.preflight.config_checks import warnings_of
from siirl.preflight.duration import measured_speed
from siirl.preflight.gpu_fit import gpu_problems
from siirl.preflight.group_placement import GroupPlan, place
from siirl.preflight.machine import (
    free_memory_bytes,
    gpu_bytes,
    machine_problems,
    total_memory_bytes,
)
from siirl.preflight.make_plan import make_plan, together
from siirl.preflight.memory import episodes_of_training, simulation_problems
from siirl.preflight.needed_files import find_resume
from siirl.preflight.plan import Machine, Plan, ResumePoint
from siirl.preflight.prompt_columns import prompt_column_problems
from siirl.reporting.config_difference import is_damaged, read_config
from siirl.reporting.metric_writers import check_loggers
from siirl.reporting.run_folder import CONFIG_FILE

CONTINUED = ("env.id", "env.max_episode_steps", "data.train_batch_size")
"""Keys on which the running episodes of a run with `rollout.n_steps` depend."""
WHOLE_EPISODES = "rows are whole episodes (actor_rollout_ref.rollout.n_steps)"


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
    begins = check_resume(config)
    plans: dict[int, Plan] = {}
    warnings = list(_unread_config(config.trainer.resume))
    for group in graph.agent_groups():
        own = config_of_group(config, group)
        own_spec = spec if own is config else describe_env(own)
        check_models(
            own,
            own_spec,
            with_critic=needs_critic(graph, group=group),
            resumed=_resumed_policy(
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
        )
    plan = together(plans, shared=owners(config.agents))
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
        changed=() if resumed is None else _changed_options(config, resumed),
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
) -> Plan:
    """The plan of a job, or of an agent group, that fits this machine; see `make_plan`."""
    machine = Machine(
        free_memory_bytes=free_memory_bytes(),
        cores=len(os.sched_getaffinity(0)),
        speed=measured_speed(),
        gpu_bytes=gpu_bytes(config.cluster, config.trainer),
    )
    # the horizon is known once the policy is built
    loss = ActorLoss(config.actor_rollout_ref.actor, horizon=1)
    plan = make_plan(
        config,
        graph,
        spec,
        machine=machine,
        loss=loss.describe(),
        critic=describe_critic(config, nodes=len(update_nodes(graph, ("critic", group))))
        if needs_critic(graph, group=group)
        else None,
        begins=begins,
        groups=groups,
        group=group,
        episodes_of=player,
    )
    refuse(gpu_problems(config, spec, gpu_bytes=machine.gpu_bytes))
    refuse(
        simulation_problems(
            config, spec, episodes_of_training(config), total_memory_bytes=total_memory_bytes()
        )
    )
    return plan


def check_resume(config: SiiRLArguments) -> ResumePoint | None:
    """Check the checkpoint that `trainer.resume` names, and replace the key by its folder or None.

    Returns:
        The start of the run; None without `trainer.resume`.

    Raises:
        ConfigError: The folder holds no checkpoint, or one of a finished run or of another model.
        MissingAssetError: The folder of `trainer.resume` does not exist.
        CheckpointError: The checkpoint is incomplete.
    """
    trainer = config.trainer
    wanted = trainer.resume
    folder = find_resume(trainer)
    total = trainer.total_steps
    trainer.resume = None if folder is None else str(folder)
    if folder is None:
        return (
            None
            if wanted is None
            else ResumePoint(
                f"new run: trainer.resume={wanted} found no checkpoint of {trainer.experiment_name}"
            )
        )
    checkpoint = resolve_checkpoint(folder)
    run = checkpoint.parent.parent
    _require_its_model(config, run, place=f"trainer.resume={wanted}")
    if config.actor_rollout_ref.rollout.n_steps is not None:
        _require_its_episodes(config, run, place=f"trainer.resume={wanted}")
    manifest = read_manifest(checkpoint)
    step = int(manifest["step"])
    if total is not None and step >= total and not manifest.get(EVALUATION_DUE, False):
        raise ConfigError(
            f"trainer.resume={wanted}: {folder} has finished step {step} of "
            f"trainer.total_steps={total}: raise "
            "trainer.total_steps, or evaluate the policy: siirl evaluate "
            f"checkpoint={folder}"
        )
    return ResumePoint(f"after step {step} of {folder}", step)


def _require_its_model(config: SiiRLArguments, run: Path, *, place: str) -> None:
    """Refuse to resume `run` with another kind of model; its weights would not load."""
    file, own = run / CONFIG_FILE, config.actor_rollout_ref.model.policy
    its = value_at(read_config(file), MODEL_POLICY)
    if its not in (None, own):
        raise ConfigError(
            f"{place}: that run has {MODEL_POLICY}={its}, but this job has {own}. Repeat the words "
            f"of its command, or add --config {file}."
        )


def _require_its_episodes(config: SiiRLArguments, run: Path, *, place: str) -> None:
    """Refuse to continue the running episodes of `run` with settings that change them."""
    file = run / CONFIG_FILE
    config_of_run = read_config(file)
    for name in CONTINUED:
        group, key = name.split(".")
        own = getattr(getattr(config, group), key)
        its = (value_at(config_of_run, group) or {}).get(key, own)
        if its != own:
            raise ConfigError(
                f"{place}: that run has {name}={as_text(its)}, but this job has {as_text(own)}, "
                "and its running episodes are continued (actor_rollout_ref.rollout.n_steps). "
                f"Repeat the words of its command, or add --config {file}."
            )


def _resumed_policy(resume: str | None, *, first: bool, group: int) -> Path | None:
    """The folder of a group's policy in the checkpoint that the job continues."""
    if resume is None:
        return None
    return resolve_checkpoint(Path(resume)) / ("actor" if first else f"actor_{group}")


def _changed_options(config: SiiRLArguments, resumed: Path) -> list[str]:
    """Options of the policy that differ from those in the resumed run's configuration; empty if it
    cannot be read, or for a job of several agents.
    """
    its = value_at(read_config(resumed.parents[2] / CONFIG_FILE), MODEL_OPTIONS)
    if not isinstance(its, dict) or config.agents:
        return []
    own = config.actor_rollout_ref.model.options
    names = its.keys() | own.keys()
    return sorted(n for n in names if (n in its, its.get(n)) != (n in own, own.get(n)))


def _unread_config(resume: str | None) -> Iterator[str]:
    """A warning if the configuration of the resumed run could not be compared with this one's."""
    if resume is not None:
        file = resolve_checkpoint(Path(resume)).parent.parent / CONFIG_FILE
        if is_damaged(file):
            yield (
                f"{file} is damaged, so whether this job's configuration fits the run that it "
                "resumes was not checked."
            )


def load_graph(config: SiiRLArguments) -> TaskGraph:
    """The job's checked graph as it runs; registers the names that the job and its modules give.

    Nodes whose results are unused are marked as skipped, log-probs precede a reward that subtracts
    their KL, and trained policies without a sync node get one.
    """
    dag = config.dag
    graph = load_pipeline(
        pipeline=dag.pipeline,
        custom_pipeline_fn=dag.custom_pipeline_fn,
        workflow_file=dag.workflow_file,
    )
    if config.agent_configs:
        check_groups(config.agent_configs, graph.agent_groups())
    else:
        check_one_policy(graph)
    for own in group_configs(config).values():
        load_plug_ins(own, graph)
    for group in graph.agent_groups():
        own = config_of_group(config, group)
        order_for_kl_in_reward(graph, use_kl_in_reward=own.algorithm.use_kl_in_reward, group=group)
        skip_unused(
            graph,
            needs_reference=sizes.needs_reference(own.actor_rollout_ref.actor, own.algorithm),
            needs_old_log_probs=needs_old_log_probs(own.actor_rollout_ref.actor, own.algorithm),
            group=group,
        )
        if own.actor_rollout_ref.rollout.n_steps is None:
            skip_single_decisions(graph, group=group)
        else:
            check_no_baseline(graph, own.actor_rollout_ref.rollout.n_steps, group=group)
        check_one_rollout(graph, group=group)
    sync_at_the_end(graph)
    check_buffers(graph)
    check_group_names(graph)
    return graph


def needs_old_log_probs(actor: ActorArguments, algorithm: AlgorithmArguments) -> bool:
    """Whether old log-probs are needed in addition to those of rollout, which are on-policy and
    serve every mini-batch of the step.

    That acting and training agree is checked on the first mini-batch (`rollout/log_prob_gap`). KL
    in the reward needs its own column, and importance weights are the ratio of the two.
    """
    return algorithm.use_kl_in_reward or weighs_tokens(actor)


def weighs_tokens(actor: ActorArguments) -> bool:
    """Whether the loss has importance weights: old log-probs over those of rollout."""
    return actor.importance.level is not None or LOSS_TRAITS[actor.loss].own_weights


def check_one_rollout(graph: TaskGraph, *, group: int) -> None:
    """Refuse several nodes that play the prompts of one agent group.

    Raises:
        ConfigError: Names two of them and the remedy.
    """
    found = [
        node.node_id
        for node in graph.get_nodes()
        if node.executable is generate and node.agent_group == group
    ]
    if len(found) > 1:
        raise ConfigError(
            f"Nodes {found[0]!r} and {found[1]!r} of graph {graph.graph_id!r} both roll out for "
            f"agent group {group}: a step draws the group's prompts once, so both would play the "
            "same ones under the same uids. Let both branches depend on one rollout, or give the "
            "other branch an agent group with the same weights: agent_group=1 on its nodes, and "
            "agents={0: {}, 1: {shares: 0, data.seed: 1}}."
        )


def check_no_baseline(graph: TaskGraph, decisions: int, *, group: int) -> None:
    """Refuse cut episodes for a graph that plays greedy episodes as baselines.

    Raises:
        ConfigError: Names the node and the remedy.
    """
    for node in graph.get_nodes():
        if node.executable is greedy_baseline and node.agent_group == group:
            raise ConfigError(
                f"Node {node.node_id!r} of graph {graph.graph_id!r} plays whole greedy episodes as "
                f"baselines, but actor_rollout_ref.rollout.n_steps={decisions} cuts episodes: set "
                "it to null, or use pipeline=ppo."
            )


def skip_single_decisions(graph: TaskGraph, *, group: int) -> None:
    """Skip the nodes that cut rows into decisions: mini-batches are drawn from whole episodes."""
    for node in graph.get_nodes():
        if node.executable is single_decisions and node.agent_group == group:
            graph.skip_node(node.node_id, reason=WHOLE_EPISODES)


def require_configured_columns(config: SiiRLArguments, graph: TaskGraph) -> None:
    """Add the columns that the configured estimator and loss read to their nodes, and check.

    Raises:
        ConfigError: No earlier node provides a column: GAE lacks a critic's values, a KL loss the
            reference's log-probs, importance weights the old log-probs, or the first node a column
            that the prompts do not have.
    """
    for node in graph.get_nodes():
        own = config_of_group(config, node.agent_group)
        if node.node_role is NodeRole.ADVANTAGE:
            node.require(_columns_of_estimator(own.algorithm))
        elif node.node_role is NodeRole.ACTOR and not node.only_forward_compute:
            node.require(_columns_of_loss(own.actor_rollout_ref.actor))
    graph.check_columns()
    refuse(list(prompt_column_problems(config, graph)))


def _columns_of_estimator(algorithm: AlgorithmArguments) -> list[str]:
    parameters = inspect.signature(ADVANTAGES[algorithm.adv_estimator]).parameters
    return [name for name, parameter in parameters.items() if parameter.default is parameter.empty]


def _columns_of_loss(actor: ActorArguments) -> list[str]:
    read = {"ref_log_prob": actor.use_kl_loss, "old_log_probs": weighs_tokens(actor)}
    return [name for name, reads in read.items() if reads]


def _without_videos(env: EnvArguments, trainer: TrainingArguments, spec: EnvSpec) -> list[str]:
    """Turn off videos if the environment cannot be rendered; returns a warning."""
    if spec.renders or not (trainer.record_episodes or trainer.record_val_episodes):
        return []
    trainer.record_episodes = trainer.record_val_episodes = 0
    without_pygame = env.name == "gymnasium" and importlib.util.find_spec("pygame") is None
    remedy = (
        " Gymnasium draws its small environments with pygame: pip install pygame."
        if without_pygame
        else ""
    )
    keys = "trainer.record_episodes, trainer.record_val_episodes"
    return [
        f"{listed_tasks(spec.tasks)} cannot be rendered here, so no videos are recorded "
        f"({keys}).{remedy}"
    ]
