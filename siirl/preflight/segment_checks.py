"""Checks of rollouts that cut episodes (`actor_rollout_ref.rollout.n_steps`) against other keys.

`siirl.preflight.config_checks` reports these errors along with its own.
"""

from collections.abc import Iterator

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.data_args import DataArguments
from siirl.params.domains import is_text
from siirl.params.env_args import EnvArguments
from siirl.params.key_names import ROLLOUT
from siirl.params.registered_names import GROUP_ESTIMATORS, estimators_taking
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.critic_checks import (
    ACTOR_MINI_BATCH,
    WITH_BASELINES,
    WITH_CRITIC,
    nearest_divisor,
)

N_STEPS = "actor_rollout_ref.rollout.n_steps"
OF_PARTS = ("return", "success")
"""Rewards that are also defined for a part of an episode."""


def segment_environment_problems(
    rollout: RolloutArguments, env: EnvArguments, spec: EnvSpec
) -> Iterator[SiirlError]:
    """Environments whose episodes cannot be cut."""
    if rollout.n_steps is None:
        return
    place = f"{N_STEPS}={rollout.n_steps}"
    if is_text(spec):
        yield ConfigError(
            f"{place} cuts the episodes of robots, but env={env.name} is text: take a trainer "
            "preset for text, such as trainer=laptop_text, or set it to null."
        )
        return
    if not spec.replayable:
        yield ConfigError(
            f"{place} replays a running episode after an evaluation or from a checkpoint, but "
            f"env={env.name} cannot be replayed (EnvSpec.replayable): leave it out."
        )
    if spec.num_agents > 1:
        yield ConfigError(
            f"{place} follows one policy, but env={env.name} has {spec.num_agents} agents: "
            "leave it out."
        )


def segment_problems(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Errors for keys that do not fit cut episodes."""
    n, decisions = config.actor_rollout_ref.rollout.n, config.actor_rollout_ref.rollout.n_steps
    if decisions is None:
        return
    place = f"{N_STEPS}={decisions}"
    if needs_whole_episodes(config):
        yield _without_whole_episodes(config, place=place)
    elif n != 1:
        yield ConfigError(
            f"{place} continues one episode in each environment, but actor_rollout_ref.rollout."
            f"n={n} asks for {n} of each start state: set n=1, and data.train_batch_size to the "
            "number of environments."
        )
    if sizes.separate(config.dag) or config.trainer.max_staleness > 0:
        yield ConfigError(
            f"{place} rolls out on the training ranks, between two updates: leave dag.groups and "
            "trainer.max_staleness out."
        )
    if config.reward.name not in OF_PARTS:
        yield ConfigError(
            f"{place} rewards parts of episodes, but reward.name={config.reward.name} scores whole "
            "ones: use reward=return or reward=success."
        )
    if config.data.task_sampling == "learnable":
        yield ConfigError(
            f"{place} has parts of episodes, but data.task_sampling=learnable counts successes of "
            "whole ones: leave it out."
        )
    ranks = sizes.ranks(config.trainer)
    environments, slots = _of_rank(config.data, config.env, ranks=ranks)
    if environments > slots:
        yield ConfigError(
            f"{place} keeps an episode running in each of data.train_batch_size="
            f"{config.data.train_batch_size} environments: {environments} on a rank, but a rank "
            f"has {slots}: {_more_slots(config.env, environments, ranks=ranks)}."
        )


def needs_whole_episodes(config: SiiRLArguments) -> bool:
    """Whether the advantage of a training with cut episodes would need whole ones, which
    `segment_problems` refuses: it compares them with other rollouts of a start state or a greedy
    one, or no critic estimates the rewards behind a cut.
    """
    return config.actor_rollout_ref.rollout.n_steps is not None and (
        config.algorithm.adv_estimator in GROUP_ESTIMATORS
        or _has_greedy_baseline(config)
        or config.dag.shipped_graph not in (None, WITH_CRITIC)
    )


def _has_greedy_baseline(config: SiiRLArguments) -> bool:
    """Whether the estimator reads the baselines of a shipped pipeline; a user's graph may have
    others.
    """
    with_baselines = estimators_taking("reward_baselines")
    return config.dag.own_graph is None and config.algorithm.adv_estimator in with_baselines


def _without_whole_episodes(config: SiiRLArguments, *, place: str) -> ConfigError:
    """Refuse an advantage of whole episodes; names both ways out, with the other keys that each of
    them needs.
    """
    n, batch = config.actor_rollout_ref.rollout.n, config.data.train_batch_size
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size
    estimator, pipeline = config.algorithm.adv_estimator, config.dag.pipeline
    whole, shipped = [f"{N_STEPS}=null"], config.dag.own_graph is None
    with_critic = [f"algorithm.adv_estimator={estimators_taking('values')[0]}"]
    if shipped and pipeline != WITH_CRITIC:
        with_critic.insert(0, f"pipeline={WITH_CRITIC}")
    if n != 1:
        with_critic.append(f"{ROLLOUT}.n=1")
    if _has_greedy_baseline(config):
        compared = "whole episodes with a greedy one"
        if pipeline != WITH_BASELINES:
            whole.insert(0, f"pipeline={WITH_BASELINES}")
    elif estimator in GROUP_ESTIMATORS:
        compared = "at least 2 rollouts of a start state"
        whole.append(f"{ROLLOUT}.n={max(n, 2)}")
        if shipped and pipeline in (WITH_CRITIC, WITH_BASELINES):
            whole.insert(0, "pipeline=grpo")
    else:
        compared = ""
    if batch % mini_batch:
        whole.append(f"{ACTOR_MINI_BATCH}={nearest_divisor(batch, mini_batch)}")
    reason = (
        f"continues one episode in each environment, but algorithm.adv_estimator={estimator} "
        f"compares {compared}, and the two exclude each other"
        if compared
        else "cuts episodes, and only a critic estimates the rewards behind a cut, but "
        f"pipeline={pipeline} has none"
    )
    return ConfigError(
        f"{place} {reason}: use {' '.join(with_critic)}, or {' '.join(whole)} for whole episodes."
    )


def _of_rank(data: DataArguments, env: EnvArguments, *, ranks: int) -> tuple[int, int]:
    """Number of environments that must run on a rank, and the number that the smallest rank has."""
    return -(-data.train_batch_size // ranks), _fewest_servers(env, ranks) * env.envs_per_server


def _fewest_servers(env: EnvArguments, ranks: int) -> int:
    return min(sizes.servers_of_rank(env, rank, ranks=ranks) for rank in range(ranks))


def _more_slots(env: EnvArguments, environments: int, *, ranks: int) -> str:
    """The two keys that give every rank `environments`, each with the least value that does."""
    per_server = -(-environments // _fewest_servers(env, ranks))
    num_servers = -(-environments // env.envs_per_server) * ranks
    return (
        f"raise env.envs_per_server from {env.envs_per_server} to {per_server}, or "
        f"env.num_servers from {env.num_servers} to {num_servers}"
    )
