"""Checks of a configuration against its environment's specification."""

from collections.abc import Iterator

from envs.base import IMAGES, INSTRUCTION, EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.build import as_text
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.domains import is_text, observation_parts
from siirl.params.env_args import EnvArguments
from siirl.params.references import is_reference
from siirl.params.reward_args import RewardArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.critic_checks import overlong_problems
from siirl.preflight.domain_checks import domain_problems
from siirl.preflight.segment_checks import segment_environment_problems


def environment_problems(config: SiiRLArguments, spec: EnvSpec) -> list[SiirlError]:
    """Settings that do not fit the environment's spec."""
    problems: list[SiirlError] = []
    if not is_text(spec):
        problems += _reward_of(config.reward, config.dag, config.env, spec)
        problems += _tasks_of(config.env, spec)
    problems += [
        *_blind(config.env, config.trainer, spec),
        *_deadline_of(config.env, spec),
        *_task_shares(config.data, config.env, spec),
    ]
    return [
        *problems,
        *domain_problems(config, spec),
        *segment_environment_problems(config.actor_rollout_ref.rollout, config.env, spec),
        *overlong_problems(config.algorithm, config.data, config.env, text=is_text(spec)),
    ]


def _reward_of(
    reward: RewardArguments, dag: DagArguments, environment: EnvArguments, spec: EnvSpec
) -> Iterator[SiirlError]:
    srpo, name = dag.shipped_graph == "embodied_srpo", reward.name
    cause = "pipeline=embodied_srpo" if srpo else f"reward.name={name}"
    env = f"env={environment.name}" + (f" env.id={environment.id}" if environment.id else "")
    other_graph = "" if dag.own_graph else "pipeline=grpo "
    remedy = f"take {other_graph}reward={'success' if spec.reports_success else 'return'}"
    if not spec.renders and sizes.needs_video(reward):
        own = ", or reward.encoder=null" if is_reference(name) else ""
        yield ConfigError(f"{cause} compares videos, and {env} cannot be rendered: {remedy}{own}.")
    if not spec.reports_success and (srpo or (name != "return" and not is_reference(name))):
        yield ConfigError(
            f"{cause} needs the environment's own success flag, and {env} has none: {remedy}."
        )


def _blind(env: EnvArguments, trainer: TrainingArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    if trainer.blind and IMAGES not in observation_parts(spec):
        yield ConfigError(
            f"trainer.blind=true blackens images, and env={env.name} has none in its "
            "observations: leave it out."
        )


def _deadline_of(env: EnvArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    if env.deadline_s < spec.slowest_step_s:
        yield ConfigError(
            f"env.deadline_s={env.deadline_s:g} replaces a server as hung, and a step of "
            f"env.name={env.name} may take {spec.slowest_step_s:g} s by its own deadlines (for "
            "tools, max_calls_per_turn times tool_deadline_s): raise env.deadline_s, or lower "
            "those in env.kwargs."
        )


def _tasks_of(env: EnvArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    if len(spec.tasks) > 1 and INSTRUCTION not in observation_parts(spec):
        yield ConfigError(
            f"env.name={env.name} has {len(spec.tasks)} tasks ({', '.join(spec.tasks)}) "
            f"and no {INSTRUCTION!r} in its observations, "
            "so the policy cannot distinguish them: choose one task with env.tasks."
        )


def _task_shares(data: DataArguments, env: EnvArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    weights, tasks = data.task_weights, spec.tasks
    if data.task_sampling == "learnable":
        why_not = None
        if data.train_files:
            why_not = "data.train_files has prompts"
        elif not spec.reports_success:
            why_not = f"env={env.name} reports no success"
        elif len(tasks) == 1:
            why_not = f"env={env.name} has one task"
        if why_not is not None:
            yield ConfigError(
                "data.task_sampling=learnable distributes prompts by task success, and "
                f"{why_not}: leave it out."
            )
    if weights and data.train_files:
        yield ConfigError(
            "data.task_weights is for the tasks of an environment, and data.train_files has "
            "prompts: leave one of them out."
        )
    elif weights and (len(weights) != len(tasks) or min(weights) < 0 or max(weights) == 0):
        yield ConfigError(
            f"data.task_weights={as_text(list(weights))} must have a whole number for each of "
            f"the {len(tasks)} tasks ({', '.join(tasks)}), none below 0 and not all 0."
        )
