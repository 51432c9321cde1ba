"""Checks that model, engine and reward belong to the environment's domain: text or robots.

An environment whose observations are chat messages is text; all others are robots.
"""

from collections.abc import Iterator

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.dag_args import DagArguments
from siirl.params.domains import (
    ACTION_ENGINE,
    REWARD_MODEL,
    SERVER,
    SRPO,
    TEXT_ENGINES,
    VLLM,
    is_text,
)
from siirl.params.env_args import EnvArguments
from siirl.params.model_args import ActorRolloutRefArguments
from siirl.params.packages import require_vllm
from siirl.params.policies import LANGUAGE_MODEL, POLICIES
from siirl.params.references import check_reference
from siirl.params.reward_args import RewardArguments
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.key_conditions import asks_a_model
from siirl.preflight.server_checks import server_problems
from siirl.preflight.ungraded_rows import grading_problems

MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"


def domain_problems(config: SiiRLArguments, spec: EnvSpec) -> list[SiirlError]:
    """Settings of the domain that the environment does not belong to."""
    return list(
        _of_text(config, spec)
        if is_text(spec)
        else _of_robots(config.actor_rollout_ref, config.env, config.reward)
    )


def _of_text(config: SiiRLArguments, spec: EnvSpec) -> Iterator[SiirlError]:
    env = f"env={config.env.name}"
    model = config.actor_rollout_ref.model
    rollout = config.actor_rollout_ref.rollout
    if config.dag.shipped_graph == SRPO:
        yield ConfigError(
            f"pipeline={SRPO} rewards episode videos, and {env} is text without videos: take "
            "pipeline=grpo, ppo or dapo."
        )
    elif sizes.needs_video(config.reward):
        yield ConfigError(
            f"reward.name={config.reward.name} scores episodes of robots, and {env} is text: take "
            "reward=success or reward=return, or custom_reward_function.name=module:function for "
            "a function of your own."
        )
    if model.policy != LANGUAGE_MODEL:
        yield ConfigError(
            f"{MODEL}.policy={model.policy} acts on images, and {env} is text: take "
            "model=tiny_lm, or model=causal_lm with its path."
        )
    elif model.path is None:
        yield ConfigError(
            f"{MODEL}.path=null names no language model: give a folder or a hub id, or take "
            "model=tiny_lm."
        )
    data, budget = config.data, config.actor_rollout_ref.actor.micro_batch_tokens
    if budget is not None and budget < data.max_prompt_length + data.max_response_length:
        yield ConfigError(
            f"actor_rollout_ref.actor.micro_batch_tokens={budget} is less than "
            f"data.max_prompt_length={data.max_prompt_length} + "
            f"data.max_response_length={data.max_response_length}: the longest row fits no "
            "micro-batch. Raise it, or lower those."
        )
    try:
        if rollout.workflow is not None:
            check_reference(rollout.workflow, place=f"{ROLLOUT}.workflow")
        if rollout.name == VLLM:
            require_vllm()
    except ConfigError as error:
        yield error
    yield from _of_engine(rollout, config.trainer, config.dag)
    if rollout.name == SERVER:
        yield from server_problems(rollout, model, config.data, config.trainer)
    if config.reward_model.path is None and asks_a_model(config):
        yield ConfigError(
            f"reward.name={REWARD_MODEL} needs a classifier, and reward_model.path=null: give "
            "its folder or a hub id."
        )
    yield from grading_problems(
        config.algorithm.filter, config.reward, config.custom_reward_function, spec
    )
    if rollout.name not in TEXT_ENGINES:
        yield ConfigError(
            f"{ROLLOUT}.name={rollout.name} does not generate text: take "
            f"{' or '.join(f'rollout={name}' for name in TEXT_ENGINES)}."
        )


def _of_engine(
    rollout: RolloutArguments, trainer: TrainingArguments, dag: DagArguments
) -> Iterator[SiirlError]:
    """Settings that the text engine does not support."""
    ranks = sizes.ranks(trainer)
    if "" in rollout.stop:
        yield ConfigError(
            f"{ROLLOUT}.stop has an empty string, which every text contains: leave it out."
        )
    if rollout.mode == "async" and rollout.name != VLLM and not sizes.separate(dag):
        yield ConfigError(
            f"{ROLLOUT}.mode=async rolls out during training, but ranks are colocated: set "
            "dag.groups={rollout: 1, train: 1} and trainer.max_staleness=1, or take rollout=vllm, "
            "which generates in a separate process."
        )
    if rollout.name == VLLM and rollout.mode != "async" and ranks > 1:
        yield ConfigError(
            f"{ROLLOUT}.mode=sync runs vLLM in the rank's process, where {ranks} ranks already "
            "have a process group: take mode=async."
        )
    if rollout.mode == "async" and trainer.deterministic:
        yield ConfigError(
            f"{ROLLOUT}.mode=async batches by arrival time, and trainer.deterministic=true: take "
            "mode=sync."
        )


def _of_robots(
    policy: ActorRolloutRefArguments, environment: EnvArguments, reward: RewardArguments
) -> Iterator[SiirlError]:
    env = f"env={environment.name}"
    model, rollout = policy.model, policy.rollout
    if model.policy == LANGUAGE_MODEL:
        yield ConfigError(
            f"{MODEL}.policy={LANGUAGE_MODEL} generates text, and {env} needs actions: take "
            f"{', '.join(f'model={name}' for name in POLICIES)}, or your own policy."
        )
    if rollout.name != ACTION_ENGINE:
        yield ConfigError(
            f"{ROLLOUT}.name={rollout.name} generates text, and {env} needs actions: take "
            f"rollout={ACTION_ENGINE}."
        )
    if reward.name == REWARD_MODEL:
        yield ConfigError(
            f"reward.name={REWARD_MODEL} is a text classifier, and {env} is not a text "
            "environment: take reward=success, return or srpo."
        )
