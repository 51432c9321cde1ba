"""From a configuration that has passed `siirl.params.first_look` to a job that can start: graph, names, machine, plan."""

import os
from dataclasses import dataclass

from envs.base import EnvSpec
from siirl.algos import ADVANTAGES, POLICY_LOSSES
from siirl.execution.dag import TaskGraph, check_kl_in_reward_order
from siirl.execution.dag.load import load_pipeline
from siirl.execution.dag.unused import skip_unused
from siirl.params import SiiRLArguments, sizes
from siirl.params.checks import name_problems, warnings_of
from siirl.params.files import find_resume
from siirl.params.machine import free_memory_bytes, machine_problems
from siirl.params.plan import Plan, make_plan
from siirl.params.problems import refuse


@dataclass(frozen=True)
class Job:
    """A checked job."""

    graph: TaskGraph
    plan: Plan
    warnings: tuple[str, ...]


def prepare(config: SiiRLArguments, spec: EnvSpec) -> Job:
    """Build the graph, check what is left, and work out the plan; `trainer.resume` becomes the folder to go on from, or None.

    Raises:
        ConfigError: What cannot work.
        MissingAssetError: No OpenGL, or no folder to go on from.
    """
    graph = load_graph(config)
    refuse([*name_problems(config, advantages=ADVANTAGES, losses=POLICY_LOSSES), *machine_problems(config)])
    resume = find_resume(config)
    config.trainer.resume = None if resume is None else str(resume)
    plan = make_plan(config, graph, spec, free_memory_bytes=free_memory_bytes(), cores=len(os.sched_getaffinity(0)))
    return Job(graph=graph, plan=plan, warnings=tuple(warnings_of(config)))


def load_graph(config: SiiRLArguments) -> TaskGraph:
    """The job's graph, checked, with the nodes skipped whose results nobody would use."""
    dag = config.dag
    graph = load_pipeline(pipeline=dag.pipeline, custom_pipeline_fn=dag.custom_pipeline_fn, workflow_file=dag.workflow_file)
    check_kl_in_reward_order(graph, use_kl_in_reward=config.algorithm.use_kl_in_reward)
    skip_unused(graph, needs_reference=sizes.needs_reference(config), needs_old_log_probs=sizes.needs_old_log_probs(config))
    return graph
