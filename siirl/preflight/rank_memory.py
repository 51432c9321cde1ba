"""Memory of a rank's device, by owner: of its GPU, or of the host for a rank on CPUs (`cpu_ranks`).

FSDP2 shards weights, gradients and moments evenly over the ranks, and gathers one block at a time
in the compute dtype. A single rank computes under autocast, which casts a weight for each
product and keeps the copy for the backward pass. A step has three phases: rollout, the passes of an
update, and the optimiser's step; a critic adds an update and an optimiser's step. Each frees its
memory before the next. The table shows each; the largest decides.

Left out: passes of a reward model, and its weights on ranks that only roll out; the other agents of
a job with several policies; fragmentation and the CUDA context (`gpu_fit.USABLE` leaves room for
them); of models of unknown architecture (`siirl.preflight.model_shapes`) everything that needs more
than the number of weights: activations, blocks that are gathered or cast, and keys and values of
siirl's own engine. Their table is a lower bound.
"""

import dataclasses
from math import ceil

from envs.base import EnvSpec
from siirl.files.paths import find
from siirl.files.weight_files import parameters_in, weight_files
from siirl.params import sizes
from siirl.params.agents import rows_per_episode, sends_weights
from siirl.params.critic_sizes import critic_update
from siirl.params.domains import is_text
from siirl.params.model_args import LoraArguments, ModelArguments
from siirl.params.policies import LANGUAGE_MODEL
from siirl.params.references import is_reference
from siirl.params.reward_args import RewardArguments, reward_parts
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.memory import policy_parameters, trained_parameters
from siirl.preflight.model_shapes import ModelShape, read_shape, unknown_shape
from siirl.preflight.policy_memory import PolicyMemory, images_of
from siirl.preflight.rank_table import ROLLOUT_RANK, TRAINING_RANK, RankMemory

HEAD = "lm_head"  # in the name of a language model's head, which a critic does not have


def rank_memory(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    with_critic: bool = False,
    shape: ModelShape | None = None,
    kind: str | None = None,
    assumed: ModelShape | None = None,
    sends: bool | None = None,
) -> RankMemory | None:
    """The table of a rank; None for a model whose number of weights is unknown.

    Args:
        config: Configuration of the job.
        spec: Spec of the environment.
        with_critic: Whether the job trains a critic.
        shape: Shape of the model; None: read it from `actor_rollout_ref.model.path`.
        kind: Kind of the rank, with separate groups; None: the one that needs more.
        assumed: Shape to assume of a model, or of its critic, of which nothing is known.
        sends: The run's `sends_weights`; None: that of `config`.
    """
    sends = sends_weights(config) if sends is None else sends
    shape = model_shape(config.actor_rollout_ref.model) if shape is None else shape
    if shape is None or (shape.is_known and bool(shape.images) == is_text(spec)):
        shape = assumed
    if shape is None:
        return None
    ranks = sizes.training_ranks(config.trainer, config.dag)
    rollout_ranks = sizes.rollout_ranks(config.trainer, config.dag)
    policy = PolicyMemory(
        policy=config.actor_rollout_ref,
        shape=shape,
        data=config.data,
        episode_steps=None if is_text(spec) else spec.max_episode_steps,
        ranks=ranks,
        episodes=ceil(_episodes_at_once(config, tasks=len(spec.tasks)) / rollout_ranks),
        in_group=sizes.trains_sharded(config.trainer, config.dag),
        needs_reference=sizes.needs_reference(config.actor_rollout_ref.actor, config.algorithm),
        rolls_out=not sizes.separate(config.dag),
        overwrites=sends and config.trainer.max_staleness == 0,
        agents=max(rows_per_episode(spec), len(spec.agent_names)),
    )
    encoder = encoder_bytes(config.reward)
    training = policy.table(encoder=encoder if policy.rolls_out else 0.0)
    if with_critic:
        critic = critic_memory(policy, config, assumed=assumed)
        training = (
            dataclasses.replace(training, left_out=("critic",))
            if critic is None
            else training.with_critic(critic.table())
        )
    training = _with_reward_model(training, config, sharing=ranks if policy.in_group else 1)
    if policy.rolls_out:
        return training
    groups = {TRAINING_RANK: training, ROLLOUT_RANK: policy.rollout_table(encoder=encoder)}
    return max(
        (
            dataclasses.replace(table, kind=name)
            for name, table in groups.items()
            if kind in (None, name)
        ),
        key=lambda table: table.peak[1],
    )


def _episodes_at_once(config: SiiRLArguments, *, tasks: int) -> int:
    """Concurrent episodes over all ranks: as many as there are environments, and no more than a
    step or an evaluation has; continuous rollouts may begin those of the next
    `trainer.max_staleness` steps (`siirl.engine.rollout.admission`).
    """
    trainer, dag, rollout = config.trainer, config.dag, config.actor_rollout_ref.rollout
    slots = sizes.slots(config.env, ranks=sizes.rollout_ranks(trainer, dag))
    of_step = sizes.trajectories_per_step(config.data, rollout)
    if sizes.streams(trainer, dag, rollout):
        of_step *= 1 + trainer.max_staleness
    return min(slots, max(of_step, trainer.val_episodes * trainer.val_samples * tasks))


def model_shape(
    model: ModelArguments, *, path: str | None = None, critic: bool = False
) -> ModelShape | None:
    """The shape of the model in `path`, by default `actor_rollout_ref.model.path`, or of a critic
    on it; None if not even the number of its weights is known.
    """
    path = path or model.path
    if path is None:
        return None
    shape = read_shape(find(path), images=images_of(model), critic=critic)
    return shape or _counted_weights(model, path=path, critic=critic)


def _counted_weights(model: ModelArguments, *, path: str, critic: bool) -> ModelShape | None:
    """The weights in the files in `path`. A user's policy decides itself what it reads and trains,
    and the critic of a robot policy what it keeps.
    """
    if is_reference(model.policy) or (critic and model.policy != LANGUAGE_MODEL):
        return None
    if critic:
        parameters = parameters_in(path, counted=lambda name: HEAD not in name)
        return unknown_shape(parameters) if parameters else None
    own = dataclasses.replace(model, path=path)
    parameters = policy_parameters(own)
    frozen = parameters - trained_parameters(own)
    return unknown_shape(parameters, frozen=frozen) if parameters else None


def critic_memory(
    policy: PolicyMemory, config: SiiRLArguments, *, assumed: ModelShape | None = None
) -> PolicyMemory | None:
    """Memory of the critic beside `policy`, without adapters and not compiled; None if its number
    of weights is unknown and none is `assumed` (`siirl.dag_worker.critic_components`).
    """
    settings = config.actor_rollout_ref
    shape = model_shape(settings.model, path=config.critic.path, critic=True) or assumed
    if shape is None:
        return None
    model = dataclasses.replace(settings.model, lora=LoraArguments())
    actor = dataclasses.replace(
        settings.actor,
        micro_batch_size=critic_update(config.critic, settings.actor).micro_batch_size,
        use_torch_compile=False,
    )
    return dataclasses.replace(
        policy,
        policy=dataclasses.replace(settings, model=model, actor=actor),
        shape=shape,
        needs_reference=False,
        rolls_out=False,
    )


def _with_reward_model(table: RankMemory, config: SiiRLArguments, *, sharing: int) -> RankMemory:
    """`table` with the weights of a learnt reward model, which `sharing` ranks divide."""
    path = config.reward_model.path
    if path is None:
        return table
    parts = reward_parts(config.reward, config.custom_reward_function)
    if all(part.name != "model" for part in parts):
        return table
    stored = sum(file.stat().st_size for file in weight_files(find(path)))
    if not stored:
        return dataclasses.replace(table, left_out=(*table.left_out, "reward model"))
    return dataclasses.replace(table, held=(*table.held, ("reward model", stored / sharing)))


def encoder_bytes(reward: RewardArguments) -> float:
    """Weights of the video encoder, by default in bfloat16; they are in host memory while idle."""
    if not sizes.needs_video(reward) or reward.encoder_device == "cpu" or reward.encoder is None:
        return 0.0
    return _stored_bytes(reward.encoder) / (1 if reward.encoder_dtype == "float32" else 2)


def _stored_bytes(encoder: str) -> float:
    """Bytes of the encoder's float32 files; 0 if they are not on this machine."""
    path = find(encoder)
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return float(sum(file.stat().st_size for file in files if file.is_file()))
