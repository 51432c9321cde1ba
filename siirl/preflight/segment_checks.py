"""Checks of rollouts that cut episodes (`actor_rollout_ref.rollout.n_steps`) against other keys.

`siirl.preflight.config_checks` reports these errors with its own.
"""

from collections.abc import Iterator

from envs.base import EnvSpec
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.training_args import SiiRLArguments

N_STEPS = "actor_rollout_ref.rollout.n_steps"
OF_PARTS = ("return", "success")
"""Rewards that a part of an episode has as well."""


def segment_problems(config: SiiRLArguments) -> list[SiirlError]:
    """Keys that do not fit the cut."""
    decisions = config.actor_rollout_ref.rollout.n_steps
    return [] if decisions is None else list(_problems(config, f"{N_STEPS}={decisions}"))


def segment_environment_problems(config: SiiRLArguments, spec: EnvSpec) -> list[SiirlError]:
    """Environments whose episodes cannot be cut."""
    decisions = config.actor_rollout_ref.rollout.n_steps
    return [] if decisions is None else list(_of_spec(config, spec, f"{N_STEPS}={decisions}"))


def _problems(config: SiiRLArguments, place: str) -> Iterator[SiirlError]:
    n = config.actor_rollout_ref.rollout.n
    if n != 1:
        yield ConfigError(
            f"{place} continues one episode in each environment, and actor_rollout_ref.rollout."
            f"n={n} asks for {n} of each start state: set n=1, and data.train_batch_size to the "
            "number of environments."
        )
    if sizes.separate(config) or config.trainer.max_staleness > 0:
        yield ConfigError(
            f"{place} rolls out on the ranks that train, between two updates: leave dag.groups and "
            "trainer.max_staleness out."
        )
    if config.reward.name not in OF_PARTS:
        yield ConfigError(
            f"{place} rewards parts of episodes, and reward.name={config.reward.name} scores whole "
            "ones: take reward=return or reward=success."
        )
    if config.data.task_sampling == "learnable":
        yield ConfigError(
            f"{place} has parts of episodes, and data.task_sampling=learnable counts successes of "
            "whole ones: leave it out."
        )
    environments, slots = _of_rank(config)
    if environments > slots:
        yield ConfigError(
            f"{place} keeps an episode running in each of data.train_batch_size="
            f"{config.data.train_batch_size} environments, {environments} on a rank, which has "
            f"{slots}: raise env.envs_per_server={config.env.envs_per_server} or "
            f"env.num_servers={config.env.num_servers}."
        )


def _of_spec(config: SiiRLArguments, spec: EnvSpec, place: str) -> Iterator[SiirlError]:
    if not spec.replayable:
        yield ConfigError(
            f"{place} replays a running episode after an evaluation or from a checkpoint, and "
            f"env={config.env.name} cannot be replayed (EnvSpec.replayable): leave it out."
        )
    if spec.num_agents > 1:
        yield ConfigError(
            f"{place} follows one policy, and env={config.env.name} has {spec.num_agents} agents: "
            "leave it out."
        )


def _of_rank(config: SiiRLArguments) -> tuple[int, int]:
    """Environments that run on a rank, and those that the smallest rank has."""
    ranks = sizes.ranks(config)
    fewest = min(sizes.servers_of_rank(config, rank) for rank in range(ranks))
    return -(-config.data.train_batch_size // ranks), fewest * config.env.envs_per_server
