"""Critic sizes derived from the configuration; a null key has the actor's value."""

from dataclasses import dataclass

from siirl.params import sizes
from siirl.params.critic_args import CriticArguments
from siirl.params.model_args import ActorArguments
from siirl.params.training_args import SiiRLArguments


@dataclass(frozen=True)
class CriticUpdate:
    """The update of the critic, with all values resolved."""

    epochs: int
    prompts_per_mini_batch: int
    micro_batch_size: int


def critic_update(critic: CriticArguments, actor: ActorArguments) -> CriticUpdate:
    """The critic's values; where it has none, the actor's."""
    return CriticUpdate(
        epochs=critic.ppo_epochs or actor.ppo_epochs,
        prompts_per_mini_batch=critic.ppo_mini_batch_size or actor.ppo_mini_batch_size,
        micro_batch_size=critic.micro_batch_size or actor.micro_batch_size,
    )


def critic_steps(config: SiiRLArguments, *, rows: int) -> int:
    """Optimiser steps of the critic in an update on `rows` rows
    (`siirl.params.agents.rows_of_step`).
    """
    update = critic_update(config.critic, config.actor_rollout_ref.actor)
    rows_per_mini_batch = update.prompts_per_mini_batch * config.actor_rollout_ref.rollout.n
    return -(-rows // rows_per_mini_batch) * update.epochs


def describe_critic(config: SiiRLArguments, *, nodes: int = 1) -> str:
    """Text for the plan: the critic's update by `nodes` nodes, its learning rate and warm-up."""
    update = critic_update(config.critic, config.actor_rollout_ref.actor)
    warmup = config.trainer.critic_warmup
    trajectories = update.prompts_per_mini_batch * config.actor_rollout_ref.rollout.n
    unit = "trajectories" if config.actor_rollout_ref.rollout.n_steps is None else "decisions"
    samples = sizes.samples_per_step(config.data, config.actor_rollout_ref.rollout)
    steps = (
        f"{update.epochs} x {samples // update.prompts_per_mini_batch} "
        f"mini-batches of {trajectories} {unit}"
    )
    alone = f"; the first {warmup} steps train it alone (trainer.critic_warmup)" if warmup else ""
    steps = f"{nodes} nodes x {steps}" if nodes > 1 else steps
    rate = f"rate {config.critic.optim.lr:g}, {config.critic.optim.scheduler}"
    return f"{steps}, {rate}, cliprange_value {config.critic.cliprange_value or 'none'}{alone}"
