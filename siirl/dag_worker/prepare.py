"""From a configuration that has passed `siirl.params.first_look` to a job that can start: graph, names, machine, plan."""

import os
from dataclasses import dataclass

from envs.base import EnvSpec
from siirl.algos import ADVANTAGES, POLICY_LOSSES
from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint
from siirl.errors import ConfigError, SiirlError
from siirl.execution.dag import TaskGraph, check_kl_in_reward_order
from siirl.execution.dag.load import load_pipeline
from siirl.execution.dag.unused import skip_unused
from siirl.models.loader import build_policy
from siirl.params import SiiRLArguments, sizes
from siirl.params.build import as_text
from siirl.params.checks import name_problems, warnings_of
from siirl.params.files import find_resume
from siirl.params.machine import free_memory_bytes, machine_problems
from siirl.params.paths import find
from siirl.params.plan import Plan, make_plan
from siirl.params.problems import refuse
from siirl.params.references import is_reference


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
    check_policy(config, spec)
    resume = find_resume(config)
    if resume is not None:
        read_manifest(resolve_checkpoint(resume))
    config.trainer.resume = None if resume is None else str(resume)
    warnings = [*warnings_of(config), *_without_videos(config, spec)]
    plan = make_plan(config, graph, spec, free_memory_bytes=free_memory_bytes(), cores=len(os.sched_getaffinity(0)))
    return Job(graph=graph, plan=plan, warnings=tuple(warnings))


def load_graph(config: SiiRLArguments) -> TaskGraph:
    """The job's graph, checked, with the nodes skipped whose results nobody would use."""
    dag = config.dag
    graph = load_pipeline(pipeline=dag.pipeline, custom_pipeline_fn=dag.custom_pipeline_fn, workflow_file=dag.workflow_file)
    check_kl_in_reward_order(graph, use_kl_in_reward=config.algorithm.use_kl_in_reward)
    skip_unused(graph, needs_reference=sizes.needs_reference(config), needs_old_log_probs=sizes.needs_old_log_probs(config))
    return graph


def check_policy(config: SiiRLArguments, spec: EnvSpec) -> None:
    """Build the policy once, here, so that weights of another model or for another environment are refused before a process starts.

    A policy of the user's own is left alone: it may be large, or want its device.

    Raises:
        ConfigError: A policy that does not fit the environment, or options that it does not take.
        CheckpointError: Weights of another model.
    """
    model = config.actor_rollout_ref.model
    if is_reference(model.policy):
        return
    path = None if model.path is None else str(find(model.path))
    try:
        build_policy(model.policy, path=path, spec=spec, seed=config.trainer.seed, options=model.options)
    except SiirlError:
        raise
    except (TypeError, ValueError) as error:
        place = f"actor_rollout_ref.model.policy={model.policy} actor_rollout_ref.model.options={as_text(model.options)}"
        raise ConfigError(f"{place} does not fit env={config.env.name}: {error}") from error


def _without_videos(config: SiiRLArguments, spec: EnvSpec) -> list[str]:
    """Record nothing of an environment that cannot be rendered, and say so."""
    trainer = config.trainer
    if spec.renders or not (trainer.record_episodes or trainer.record_val_episodes):
        return []
    trainer.record_episodes = trainer.record_val_episodes = 0
    return [
        f"env={config.env.name} cannot be rendered here, so no videos are recorded (trainer.record_episodes, trainer.record_val_episodes)."
    ]
