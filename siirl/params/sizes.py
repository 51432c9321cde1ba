"""Sizes derived from the configuration: ranks, trajectories, mini-batches, needed forward passes.

Plan and workers share these rules.
"""

from siirl.params.model_args import RolloutArguments
from siirl.params.references import is_reference
from siirl.params.reward_args import VIDEO_REWARDS, RewardArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments


def ranks(config: SiiRLArguments) -> int:
    """Processes that train together."""
    return config.trainer.nnodes * config.trainer.n_gpus_per_node


def gpus_of_rank(rollout: RolloutArguments) -> int:
    """GPUs of a rank on a machine with GPUs: vLLM spreads its copy of the weights over several."""
    return rollout.tensor_model_parallel_size if rollout.name == "vllm" else 1


def separate(config: SiiRLArguments) -> bool:
    """Whether rollouts have ranks of their own."""
    return "rollout" in config.dag.groups


def training_ranks(config: SiiRLArguments) -> int:
    """Ranks that train; the numbers of `dag.groups` are filled in before
    (`siirl.preflight.group_placement`).
    """
    return config.dag.groups["train"] or 1 if separate(config) else ranks(config)


def rollout_ranks(config: SiiRLArguments) -> int:
    """Ranks that roll out; see `training_ranks`."""
    return config.dag.groups["rollout"] or 1 if separate(config) else ranks(config)


def streams(config: SiiRLArguments) -> bool:
    """Whether episodes are started all the time, instead of step by step."""
    mode = config.actor_rollout_ref.rollout.mode
    behind = config.trainer.max_staleness > 0
    wanted = mode == "async" or (mode is None and behind)
    return separate(config) and wanted and not config.trainer.deterministic


def threads_of_rank(trainer: TrainingArguments, *, cores: int) -> int:
    """Threads of a rank's computations on the CPU, of whose `cores` cores each rank of the machine
    gets as many.
    """
    if trainer.threads_per_rank is not None:
        return trainer.threads_per_rank
    return max(1, cores // trainer.n_gpus_per_node)


def hang_limit_s(trainer: TrainingArguments) -> float | None:
    """`trainer.hang_minutes` in seconds."""
    return None if trainer.hang_minutes is None else 60 * trainer.hang_minutes


def servers_of_rank(config: SiiRLArguments, rank: int) -> int:
    """Simulator processes of one rank: its share, and at least one."""
    share, rest = divmod(config.env.num_servers, rollout_ranks(config))
    return max(1, share + (rank < rest))


def servers(config: SiiRLArguments) -> int:
    """Simulator processes of all ranks."""
    return sum(servers_of_rank(config, rank) for rank in range(rollout_ranks(config)))


def slots(config: SiiRLArguments) -> int:
    """Environments that can run at the same time, over all ranks."""
    return servers(config) * config.env.envs_per_server


def trajectories_per_step(config: SiiRLArguments) -> int:
    """Rollouts of a step over all ranks, before anything is filtered."""
    return config.data.train_batch_size * config.actor_rollout_ref.rollout.n


def samples_per_step(config: SiiRLArguments) -> int:
    """What `ppo_mini_batch_size` counts in a step: prompts, or with `rollout.n_steps` decisions."""
    return config.data.train_batch_size * (config.actor_rollout_ref.rollout.n_steps or 1)


def trajectories_per_mini_batch(config: SiiRLArguments) -> int:
    """Trajectories of one optimiser step over all ranks."""
    return config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n


def mini_batches(config: SiiRLArguments) -> int:
    """Optimiser steps of one pass over the samples of a step."""
    return samples_per_step(config) // config.actor_rollout_ref.actor.ppo_mini_batch_size


def optimiser_steps_per_step(config: SiiRLArguments) -> int:
    """Optimiser steps of a training step."""
    return mini_batches(config) * config.actor_rollout_ref.actor.ppo_epochs


def micro_batches_per_mini_batch(config: SiiRLArguments, *, agents: int) -> int:
    """Forward and backward passes of a rank for one optimiser step; each of an episode's `agents`
    makes a trajectory.
    """
    on_a_rank = -(-trajectories_per_mini_batch(config) * agents // training_ranks(config))
    return -(-on_a_rank // config.actor_rollout_ref.actor.micro_batch_size)


def needs_reference(config: SiiRLArguments) -> bool:
    """Whether a KL to the reference policy has any weight, in the loss or in the reward."""
    actor = config.actor_rollout_ref.actor
    in_loss = actor.use_kl_loss and actor.kl_loss_coef > 0
    in_reward = config.algorithm.use_kl_in_reward and config.algorithm.kl_ctrl.kl_coef > 0
    return in_loss or in_reward


def needs_old_log_probs(config: SiiRLArguments) -> bool:
    """Whether old log-probs are needed beside those of acting: rollouts are on-policy, so these
    serve for every mini-batch of the step.

    That acting and training agree is checked on the first mini-batch (`rollout/log_prob_gap`). KL
    in the reward wants its own column, and importance weights are the ratio of the two.
    """
    actor = config.actor_rollout_ref.actor
    return (
        config.algorithm.use_kl_in_reward
        or actor.importance.level is not None
        or actor.loss == "decoupled"
    )


def needs_video(reward: RewardArguments) -> bool:
    """Whether the reward reads embeddings of videos: srpo does, one of the user's own where it has
    an encoder.
    """
    own = is_reference(reward.name) and reward.encoder is not None
    return reward.name in VIDEO_REWARDS or own
