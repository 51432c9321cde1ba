"""From a configuration that has passed `siirl.params.first_look` to a job that can start: graph, names, machine, plan."""

import os
from dataclasses import dataclass

import numpy as np

from envs.base import EnvSpec
from siirl.algos import ADVANTAGES, POLICY_LOSSES
from siirl.dag_worker.build_critic import needs_critic
from siirl.dag_worker.check_text import check_text
from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint
from siirl.dag_worker.metric_writers import check_loggers
from siirl.engine.actor.actor_loss import ActorLoss
from siirl.engine.critic.value_model import PolicyFeatures
from siirl.errors import ConfigError, SiirlError
from siirl.execution.dag import TaskGraph, check_kl_in_reward_order
from siirl.execution.dag.load import load_pipeline
from siirl.execution.dag.unused import skip_unused
from siirl.models import ActionTokenizer
from siirl.models.loader import build_policy
from siirl.params import SiiRLArguments, sizes
from siirl.params.build import as_text
from siirl.params.checks import name_problems, warnings_of
from siirl.params.critic_sizes import describe_critic
from siirl.params.domain_checks import is_text
from siirl.params.files import find_resume, parameters_in
from siirl.params.machine import free_memory_bytes, machine_problems
from siirl.params.paths import find
from siirl.params.plan import Plan, make_plan
from siirl.params.problems import refuse
from siirl.params.references import MISTAKES, check_call, is_reference, load_reference, tell

POLICY = "actor_rollout_ref.model.policy"
BUILT_TWICE = 100_000_000  # parameters: up to here a policy of the user's own is built before the start as well, for a second at most


@dataclass(frozen=True)
class Job:
    """A checked job."""

    graph: TaskGraph
    plan: Plan
    warnings: tuple[str, ...]


def prepare(config: SiiRLArguments, spec: EnvSpec) -> Job:
    """Build the graph, check what is left, and work out the plan.

    `trainer.resume` becomes the folder to go on from, or None; nothing is recorded of an environment that cannot be rendered.

    Raises:
        ConfigError: What cannot work.
        MissingAssetError: No OpenGL, or no folder to go on from.
        CheckpointError: Weights of another model, or a checkpoint that is not whole.
    """
    graph = load_graph(config)
    refuse([*name_problems(config, advantages=ADVANTAGES, losses=POLICY_LOSSES), *machine_problems(config)])
    check_loggers(config.trainer.logger)
    if is_text(spec):
        check_text(config)
    else:
        check_policy(config, spec, with_critic=needs_critic(graph))
        check_reward(config)
    resume = find_resume(config)
    if resume is not None:
        read_manifest(resolve_checkpoint(resume))
    config.trainer.resume = None if resume is None else str(resume)
    warnings = [
        *([spec.notice] if spec.notice else []),
        *warnings_of(config, spec),
        *([] if is_text(spec) else _without_videos(config, spec)),
    ]
    loss = ActorLoss(config.actor_rollout_ref.actor, horizon=1).describe()  # the horizon is known when the policy is
    critic = describe_critic(config) if needs_critic(graph) else None
    cores = len(os.sched_getaffinity(0))
    plan = make_plan(config, graph, spec, free_memory_bytes=free_memory_bytes(), cores=cores, loss=loss, critic=critic)
    return Job(graph=graph, plan=plan, warnings=tuple(warnings))


def load_graph(config: SiiRLArguments) -> TaskGraph:
    """The job's graph, checked, with the nodes skipped whose results nobody would use."""
    dag = config.dag
    graph = load_pipeline(pipeline=dag.pipeline, custom_pipeline_fn=dag.custom_pipeline_fn, workflow_file=dag.workflow_file)
    check_kl_in_reward_order(graph, use_kl_in_reward=config.algorithm.use_kl_in_reward)
    skip_unused(graph, needs_reference=sizes.needs_reference(config), needs_old_log_probs=sizes.needs_old_log_probs(config))
    return graph


def check_policy(config: SiiRLArguments, spec: EnvSpec, *, with_critic: bool = False) -> None:
    """Build the policy once, here, so that what cannot be built, or fits neither weights nor environment, starts no process.

    One of the user's own whose weights are large is not built twice: its reference is imported and its signature compared.

    Raises:
        ConfigError: A policy that does not fit the environment, options that it does not take, or code of the user's that raises.
        CheckpointError: Weights of another model.
    """
    model = config.actor_rollout_ref.model
    own, path = is_reference(model.policy), None if model.path is None else str(find(model.path))
    place = f"{POLICY}={model.policy}"
    if own:
        make = load_reference(model.policy, place=POLICY)
        check_call(make, (spec, path), model.options, place=place, call="(spec, path, **options)")
        if path is not None and parameters_in(path) > BUILT_TWICE:
            return
    place += f" actor_rollout_ref.model.options={as_text(model.options)}"
    try:
        policy = build_policy(model.policy, path=path, spec=spec, seed=config.trainer.seed, options=model.options)
        check_actions(policy.action_tokenizer, spec, place=place)
        if with_critic:
            PolicyFeatures(policy)  # refuses one without features
    except SiirlError:
        raise
    except MISTAKES as error:
        if own:
            raise ConfigError(f"{place}: building it for env={config.env.name} raised {tell(error)}.") from error
        if not isinstance(error, TypeError | ValueError):
            raise
        raise ConfigError(f"{place} does not fit env={config.env.name}: {error}") from error


def check_actions(tokenizer: ActionTokenizer, spec: EnvSpec, *, place: str) -> None:
    """The lowest and the highest action that a policy can say must be ones of the environment.

    Raises:
        ConfigError: One is not.
    """
    for token in (0, tokenizer.bins - 1):
        action = tokenizer.decode(np.full(tokenizer.dimensions, token, np.int64))[0]
        if not spec.action_space.contains(action):
            raise ConfigError(
                f"{place} can act with {action}, which is outside of the action space {spec.action_space} of environment {spec.name!r}: "
                "give its action_tokenizer the environment's bounds (siirl.models.ActionTokenizer.for_space)."
            )


def check_reward(config: SiiRLArguments) -> None:
    """Import a reward of the user's own, and compare its signature.

    Raises:
        ConfigError: There is none of that name, importing it raises, or it cannot be called with the reward's arguments.
    """
    name = config.reward.name
    if is_reference(name):
        make = load_reference(name, place="reward.name")
        check_call(make, (config.reward,), {}, place=f"reward.name={name}", call="(config.reward)")


def _without_videos(config: SiiRLArguments, spec: EnvSpec) -> list[str]:
    """Record nothing of an environment that cannot be rendered, and say so."""
    trainer = config.trainer
    if spec.renders or not (trainer.record_episodes or trainer.record_val_episodes):
        return []
    trainer.record_episodes = trainer.record_val_episodes = 0
    return [
        f"env={config.env.name} cannot be rendered here, so no videos are recorded (trainer.record_episodes, trainer.record_val_episodes)."
    ]
