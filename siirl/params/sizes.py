"""Sizes derived from the configuration: ranks, trajectories, mini-batches, needed forward passes.

Plan and workers share these rules.
"""

from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.env_args import EnvArguments
from siirl.params.model_args import ActorArguments, ActorRolloutRefArguments, ModelArguments
from siirl.params.policies import PADDED
from siirl.params.references import is_reference
from siirl.params.reward_args import VIDEO_REWARDS, RewardArguments
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import TrainingArguments

GIB = 1 << 30
# of weights that training ranks send; a broadcast is as fast with 16 MiB as with more
WEIGHT_BUCKET_BYTES = 64 << 20
USUAL_CHUNK = 8  # actions: the shipped policy's, and OpenVLA-OFT's (arXiv 2502.19645, section V)


def ranks(trainer: TrainingArguments) -> int:
    """Processes that train together."""
    return trainer.nnodes * trainer.n_gpus_per_node


def gpus_of_rollout_rank(rollout: RolloutArguments) -> int:
    """GPUs of a rank that rolls out, on a machine with GPUs; vLLM may spread its copy of the
    weights over several.
    """
    return rollout.tensor_model_parallel_size if rollout.name == "vllm" else 1


def gpus_of_training_rank(rollout: RolloutArguments, dag: DagArguments) -> int:
    """GPUs of a rank that trains, on a machine with GPUs; it computes on the first."""
    return 1 if separate(dag) else gpus_of_rollout_rank(rollout)


def gpus_of_job(trainer: TrainingArguments, dag: DagArguments, rollout: RolloutArguments) -> int:
    """GPUs of all ranks, on machines with GPUs."""
    if not separate(dag):
        return ranks(trainer) * gpus_of_rollout_rank(rollout)
    rolling = rollout_ranks(trainer, dag) * gpus_of_rollout_rank(rollout)
    return training_ranks(trainer, dag) + rolling


def separate(dag: DagArguments) -> bool:
    """Whether rollouts have separate ranks."""
    return "rollout" in dag.groups


def training_ranks(trainer: TrainingArguments, dag: DagArguments) -> int:
    """Ranks that train; `siirl.preflight.group_placement` has filled in the numbers of
    `dag.groups`.
    """
    return _ranks_of_group(dag, "train") if separate(dag) else ranks(trainer)


def trains_sharded(trainer: TrainingArguments, dag: DagArguments) -> bool:
    """Whether training is sharded, also by a group of one rank, or may be because the number of
    training ranks is open.
    """
    is_open = separate(dag) and dag.groups.get("train") is None
    return is_open or training_ranks(trainer, dag) > 1 or trainer.force_process_group


def rollout_ranks(trainer: TrainingArguments, dag: DagArguments) -> int:
    """Ranks that roll out; see `training_ranks`."""
    return _ranks_of_group(dag, "rollout") if separate(dag) else ranks(trainer)


def _ranks_of_group(dag: DagArguments, name: str) -> int:
    """One while the number is open or invalid (`siirl.preflight.group_checks` refuses it)."""
    number = dag.groups.get(name)
    return number if isinstance(number, int) and number > 0 else 1


def streams(trainer: TrainingArguments, dag: DagArguments, rollout: RolloutArguments) -> bool:
    """Whether episodes are started continuously, instead of step by step."""
    behind = trainer.max_staleness > 0 and rollout.mode != "sync"
    return separate(dag) and behind and not trainer.deterministic


def vllm_apart(trainer: TrainingArguments, dag: DagArguments, rollout: RolloutArguments) -> bool:
    """Whether vLLM runs in a separate process, where it may use several GPUs."""
    return rollout.mode == "async" or streams(trainer, dag, rollout)


def threads_of_rank(trainer: TrainingArguments, *, cores: int) -> int:
    """CPU threads of a rank; by default the ranks of a machine share its `cores` equally."""
    if trainer.threads_per_rank is not None:
        return trainer.threads_per_rank
    return max(1, cores // trainer.n_gpus_per_node)


def hang_limit_s(trainer: TrainingArguments) -> float | None:
    """`trainer.hang_minutes` in seconds."""
    return None if trainer.hang_minutes is None else 60 * trainer.hang_minutes


def servers_of_rank(env: EnvArguments, rank: int, *, ranks: int) -> int:
    """Simulator processes of one of the `ranks` that roll out: its share, at least one."""
    share, rest = divmod(env.num_servers, ranks)
    return max(1, share + (rank < rest))


def servers(env: EnvArguments, *, ranks: int) -> int:
    """Simulator processes of all `ranks` that roll out."""
    return sum(servers_of_rank(env, rank, ranks=ranks) for rank in range(ranks))


def slots(env: EnvArguments, *, ranks: int) -> int:
    """Environments that can run at the same time, over all `ranks` that roll out."""
    return servers(env, ranks=ranks) * env.envs_per_server


def trajectories_per_step(data: DataArguments, rollout: RolloutArguments) -> int:
    """Rollouts of a step over all ranks, before anything is filtered."""
    return data.train_batch_size * rollout.n


def samples_per_step(data: DataArguments, rollout: RolloutArguments) -> int:
    """Samples of a step, the unit of `ppo_mini_batch_size`: prompts, or `n_steps` times as many."""
    return data.train_batch_size * (rollout.n_steps or 1)


def trajectories_per_mini_batch(policy: ActorRolloutRefArguments) -> int:
    """Trajectories of one optimiser step over all ranks."""
    return policy.actor.ppo_mini_batch_size * policy.rollout.n


def mini_batches(policy: ActorRolloutRefArguments, *, rows: int) -> int:
    """Optimiser steps of one pass over `rows` rows (`siirl.params.agents.rows_of_step`)."""
    return -(-rows // trajectories_per_mini_batch(policy))


def optimiser_steps(policy: ActorRolloutRefArguments, *, rows: int) -> int:
    """Optimiser steps of an update on `rows` rows."""
    return mini_batches(policy, rows=rows) * policy.actor.ppo_epochs


def micro_batches_per_mini_batch(
    policy: ActorRolloutRefArguments, *, ranks: int, agents: int
) -> int:
    """Forward and backward passes of each of the training `ranks` for one optimiser step; each of
    an episode's `agents` yields a trajectory.
    """
    on_a_rank = -(-trajectories_per_mini_batch(policy) * agents // ranks)
    return -(-on_a_rank // policy.actor.micro_batch_size)


def has_kl_loss(actor: ActorArguments) -> bool:
    """Whether a KL to the reference policy has a weight in the loss."""
    return actor.use_kl_loss and actor.kl_loss_coef > 0


def needs_reference(actor: ActorArguments, algorithm: AlgorithmArguments) -> bool:
    """Whether a KL to the reference policy has any weight, in the loss or in the reward."""
    in_reward = algorithm.use_kl_in_reward and algorithm.kl_ctrl.kl_coef > 0
    return has_kl_loss(actor) or in_reward


def needs_video(reward: RewardArguments) -> bool:
    """Whether the reward reads video embeddings: srpo does, and a user's reward with an encoder."""
    own = is_reference(reward.name) and reward.encoder is not None
    return reward.name in VIDEO_REWARDS or own


def actions_of_a_pass(model: ModelArguments) -> int:
    """Number of actions that a policy decodes from one observation, if its configuration states
    it.
    """
    usual = 1 if model.policy == "openvla" else USUAL_CHUNK
    return int(model.options.get("chunk_length", usual))


def noise_correlation(actor_rollout_ref: ActorRolloutRefArguments) -> float:
    """`rollout.noise_correlation`; 0 for a policy whose random numbers have another order."""
    if actor_rollout_ref.model.policy in PADDED:
        return 0.0
    return actor_rollout_ref.rollout.noise_correlation
