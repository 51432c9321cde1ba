"""Checks a configuration against its environment's specification.

Model, engine and reward belong to the environment's domain. An environment whose observations are
chat messages is text; all others are robots.
"""

from collections.abc import Iterator

from envs.base import IMAGES, INSTRUCTION, EnvSpec
from envs.names import listed_tasks
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.build import as_text
from siirl.params.config_groups import policy_choice
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.domains import (
    ACTION_ENGINE,
    REWARD_MODEL,
    SERVER,
    SRPO,
    TEXT_ENGINES,
    VLLM,
    is_text,
    observation_parts,
)
from siirl.params.env_args import EnvArguments
from siirl.params.key_names import MODEL, ROLLOUT
from siirl.params.model_args import ActorRolloutRefArguments
from siirl.params.packages import require_vllm
from siirl.params.picture_models import check_engine_shows_pictures
from siirl.params.policies import LANGUAGE_MODEL, POLICIES
from siirl.params.references import check_reference, is_reference
from siirl.params.reward_args import RewardArguments
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.critic_checks import overlong_problems
from siirl.preflight.key_conditions import asks_a_model
from siirl.preflight.segment_checks import segment_environment_problems
from siirl.preflight.server_checks import server_problems
from siirl.preflight.tool_checks import missing_programs, tool_server_problems
from siirl.preflight.ungraded_rows import grading_problems

SLOWEST_STEP = {
    "tools": "for tools, max_calls_per_turn times tool_deadline_s",
    "openenv": "env.kwargs.deadline_s, env.kwargs.connect_deadline_s and a second for a farewell",
}
"""How the deadlines of an environment add up."""


def environment_problems(
    config: SiiRLArguments, spec: EnvSpec, *, trains: bool = True
) -> list[SiirlError]:
    """Settings that do not fit the environment's spec; without `trains` for an evaluation."""
    text = is_text(spec)
    problems: list[SiirlError] = []
    if not text:
        problems += _reward_of(config, spec)
        problems += _tasks_of(config.env, spec)
    return [
        *problems,
        *_blind(config.env, config.trainer, spec),
        *_deadline_of(config.env, spec),
        *_task_shares(config.data, config.env, spec),
        *(
            _of_text(config, spec)
            if text
            else _of_robots(config.actor_rollout_ref, config.env, config.reward)
        ),
        *(
            segment_environment_problems(config.actor_rollout_ref.rollout, config.env, spec)
            if trains
            else []
        ),
        *overlong_problems(config.algorithm, config.data, config.env, text=text),
    ]


def _reward_of(config: SiiRLArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    reward, environment, rollout = config.reward, config.env, config.actor_rollout_ref.rollout
    srpo, name = config.dag.shipped_graph == SRPO, reward.name
    cause = f"pipeline={SRPO}" if srpo else f"reward.name={name}"
    env = f"env={environment.name}" + (f" env.id={environment.id}" if environment.id else "")
    other_graph = ""
    if srpo:  # GRPO compares the whole episodes of a group
        alone = rollout.n == 1 or rollout.n_steps is not None
        other_graph = f"pipeline={'ppo' if alone else 'grpo'} "
    remedy = f"use {other_graph}reward={'success' if spec.reports_success else 'return'}"
    unmeasured = _without_distance(spec) if name == "oracle" else []
    if unmeasured:
        if spec.renders and spec.reports_success:
            remedy = "use reward=srpo"
        if len(unmeasured) < len(spec.tasks):
            remedy = f"leave them out of env.tasks, or {remedy}"
        which = f" for {listed_tasks(unmeasured)}" if len(spec.tasks) > 1 else ""
        yield ConfigError(
            f"reward.name={name} is the true distance to success, which {env} does not report"
            f"{which}: {remedy}."
        )
        return
    if not spec.renders and sizes.needs_video(reward):
        own = ", or reward.encoder=null" if is_reference(name) else ""
        yield ConfigError(f"{cause} compares videos, but {env} cannot be rendered: {remedy}{own}.")
    if not spec.reports_success and (srpo or (name != "return" and not is_reference(name))):
        lack = f"{env} has none: {remedy}"
        if environment.name == "gymnasium":
            lack = (
                f"the info of the first step of {env} has neither is_success nor success: "
                f"{remedy}, or env.kwargs.reports_success=true if a later info has one of them"
            )
        yield ConfigError(f"{cause} needs the environment's own success flag, but {lack}.")


def _without_distance(spec: EnvSpec) -> list[str]:
    """Tasks known to have no true distance to success."""
    known = spec.tasks if spec.tasks_with_distance is None else spec.tasks_with_distance
    return [task for task in spec.tasks if task not in known]


def _blind(env: EnvArguments, trainer: TrainingArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    if trainer.blind and IMAGES not in observation_parts(spec):
        yield ConfigError(
            f"trainer.blind=true blackens images, but env={env.name} has none in its observations: "
            "leave it out."
        )


def _deadline_of(env: EnvArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    if env.deadline_s < spec.slowest_step_s:
        yield ConfigError(
            f"env.deadline_s={env.deadline_s:g} replaces a server as hung, but a step of "
            f"env.name={env.name} may take {spec.slowest_step_s:g} s by its own deadlines "
            f"({SLOWEST_STEP.get(env.name, SLOWEST_STEP['tools'])}): raise env.deadline_s, or "
            "lower those in env.kwargs."
        )


def _tasks_of(env: EnvArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    if len(spec.tasks) > 1 and INSTRUCTION not in observation_parts(spec):
        yield ConfigError(
            f"env.name={env.name} has {len(spec.tasks)} tasks ({listed_tasks(spec.tasks)}) but no "
            f"{INSTRUCTION!r} in its observations, so the policy cannot distinguish them: choose "
            "one task with env.tasks."
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
                f"data.task_sampling=learnable distributes prompts by task success, but {why_not}: "
                "leave it out."
            )
    if weights and data.train_files:
        yield ConfigError(
            "data.task_weights is for the tasks of an environment, but data.train_files has "
            "prompts: leave one of them out."
        )
    elif weights and len(tasks) == 1:
        yield ConfigError(
            f"data.task_weights={as_text(list(weights))} divides prompts between tasks, but "
            f"env={env.name} has one task: leave it out."
        )
    elif weights and (len(weights) != len(tasks) or min(weights) < 0 or max(weights) == 0):
        yield ConfigError(
            f"data.task_weights={as_text(list(weights))} must have a whole number for each of "
            f"the {len(tasks)} tasks ({listed_tasks(tasks)}), none below 0 and not all 0."
        )


def _of_text(config: SiiRLArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    env = f"env={config.env.name}"
    model = config.actor_rollout_ref.model
    rollout = config.actor_rollout_ref.rollout
    if config.dag.shipped_graph == SRPO:
        yield ConfigError(
            f"pipeline={SRPO} rewards episode videos, but {env} is text without videos: use "
            "pipeline=grpo, ppo or dapo."
        )
    elif sizes.needs_video(config.reward):
        yield ConfigError(
            f"reward.name={config.reward.name} scores episodes of robots, but {env} is text: use "
            "reward=success or reward=return, or custom_reward_function.name=module:function for "
            "your own function."
        )
    if model.policy != LANGUAGE_MODEL:
        yield ConfigError(
            f"{MODEL}.policy={model.policy} acts on images, but {env} is text: use "
            "model=tiny_lm, or model=causal_lm with its path."
        )
    elif model.path is None:
        yield ConfigError(
            f"{MODEL}.path=null names no language model: give a folder or a hub id, or use "
            "model=tiny_lm."
        )
    data, budget = config.data, config.actor_rollout_ref.actor.micro_batch_tokens
    if budget is not None and budget < data.max_prompt_length + data.max_response_length:
        yield ConfigError(
            f"actor_rollout_ref.actor.micro_batch_tokens={budget} is less than "
            f"data.max_prompt_length={data.max_prompt_length} + "
            f"data.max_response_length={data.max_response_length}: the longest row does not fit "
            "into a micro-batch. Raise the budget, or lower the two lengths."
        )
    try:
        if rollout.workflow is not None:
            check_reference(rollout.workflow, place=f"{ROLLOUT}.workflow")
    except ConfigError as error:
        yield error
    yield from _of_engine(config)
    here = config.cluster.address is None
    yield from tool_server_problems(config.env, here=here)
    if here:
        yield from missing_programs(config.env)
    if config.reward_model.path is None and asks_a_model(config):
        yield ConfigError(
            f"reward.name={REWARD_MODEL} needs a classifier, but reward_model.path=null: give its "
            "folder or a hub id."
        )
    yield from grading_problems(
        config.algorithm.filter, config.reward, config.custom_reward_function, spec
    )
    if rollout.name not in TEXT_ENGINES:
        yield ConfigError(
            f"{ROLLOUT}.name={rollout.name} does not generate text: use "
            f"{' or '.join(f'rollout={name}' for name in TEXT_ENGINES)}."
        )


def _of_engine(config: SiiRLArguments) -> Iterator[SiirlError]:
    """What the text engine does not support; only then its package, and the servers that it
    needs.
    """
    policy = config.actor_rollout_ref
    yield from engine_problems(policy.rollout, config.trainer, config.dag)
    try:
        if policy.model.policy == LANGUAGE_MODEL:
            check_engine_shows_pictures(policy)
        if policy.rollout.name == VLLM:
            require_vllm()
    except ConfigError as error:
        yield error
        return
    if policy.rollout.name == SERVER:
        yield from server_problems(policy.rollout, policy.model, config.data, config.trainer)


def engine_problems(
    rollout: RolloutArguments, trainer: TrainingArguments, dag: DagArguments
) -> Iterator[SiirlError]:
    """Settings of a text engine that do not fit each other."""
    colocated = not sizes.separate(dag)
    if "" in rollout.stop:
        yield ConfigError(
            f"{ROLLOUT}.stop has an empty string, which every text contains: leave it out."
        )
    if rollout.mode == "async" and rollout.name != VLLM and colocated:
        yield ConfigError(
            f"{ROLLOUT}.mode=async rolls out during training, but ranks are colocated: set "
            "dag.groups={rollout: 1, train: 1} and trainer.max_staleness=1, or use rollout=vllm, "
            "which generates in a separate process."
        )
    in_process = colocated and rollout.name == VLLM and rollout.mode != "async"
    if in_process and sizes.trains_sharded(trainer, dag):
        remedy = (
            "with trainer.deterministic=true use rollout=hf, or separate rollout ranks (dag.groups)"
            if trainer.deterministic
            else "set that"
        )
        yield ConfigError(
            f"vLLM runs in the rank's process unless {ROLLOUT}.mode=async, but training has a "
            f"process group there: {remedy}."
        )
    if rollout.mode == "async" and trainer.deterministic:
        yield ConfigError(
            f"{ROLLOUT}.mode=async batches by arrival time, but trainer.deterministic=true: leave "
            "out mode, or set trainer.deterministic=false."
        )


def _of_robots(
    policy: ActorRolloutRefArguments, environment: EnvArguments, reward: RewardArguments
) -> Iterator[SiirlError]:
    env = f"env={environment.name}"
    model, rollout = policy.model, policy.rollout
    if model.policy == LANGUAGE_MODEL:
        yield ConfigError(
            f"{MODEL}.policy={LANGUAGE_MODEL} generates text, but {env} needs actions: use "
            f"{', '.join(map(policy_choice, POLICIES))}, or your own policy."
        )
    if rollout.name != ACTION_ENGINE:
        yield ConfigError(
            f"{ROLLOUT}.name={rollout.name} generates text, but {env} needs actions: use "
            f"rollout={ACTION_ENGINE}."
        )
    if reward.name == REWARD_MODEL:
        yield ConfigError(
            f"reward.name={REWARD_MODEL} is a text classifier, but {env} is not a text "
            "environment: use reward=success, return or srpo."
        )
