"""Checks keys against each other: sizes that do not divide, choices that contradict.

Each check yields errors with value, place and remedy; the caller reports them together. Left out:
the machine (`siirl.preflight.machine`), files (`siirl.preflight.needed_files`), and keys that
nothing reads (`siirl.preflight.unread`).
"""

from collections.abc import Collection, Iterator

from envs.base import EnvSpec
from envs.seeds import FIRST_DEMONSTRATION_SEED
from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.execution.dag.load import check_name
from siirl.params import sizes
from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.build import as_text
from siirl.params.cluster_args import ClusterArguments
from siirl.params.critic_args import CriticArguments
from siirl.params.dag_args import DagArguments
from siirl.params.env_args import EnvArguments
from siirl.params.key_names import ACTOR, ROLLOUT
from siirl.params.model_args import (
    FLAT_SCHEDULES,
    ActorArguments,
    ModelArguments,
)
from siirl.params.plug_ins import plug_in_problems
from siirl.params.policies import LANGUAGE_MODEL, POLICIES
from siirl.params.profiler_args import ProfilerArguments
from siirl.params.references import check_reference, is_reference
from siirl.params.registered_names import ESTIMATORS, GROUP_ESTIMATORS
from siirl.params.reward_args import REWARDS, VIDEO_REWARDS, RewardArguments
from siirl.params.rollout_args import RolloutArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.critic_checks import (
    WITH_CRITIC,
    critic_problems,
    estimator_problems,
    mini_batches_of,
    undivided,
)
from siirl.preflight.group_checks import group_problems
from siirl.preflight.segment_checks import needs_whole_episodes, segment_problems
from vjepa.reward_settings import FEWEST_SUCCESSES

KL_WITHOUT_GRADIENT = "k1"  # as a loss, its gradient has mean zero; the alias kl is k1 here


def config_problems(config: SiiRLArguments, *, trains: bool = True) -> list[SiirlError]:
    """Errors that follow from the configuration alone.

    Without `trains` it is an evaluation, which has no mini-batches and cuts no episode.
    """
    policy = config.actor_rollout_ref
    excluded = trains and needs_whole_episodes(config)  # segment_problems has all remedies
    return [
        # the sizes of separate groups may be open: siirl.preflight.group_placement checks them
        *([] if sizes.separate(config.dag) else _ranks(config)),
        *(_samples(config) if trains else []),
        *_evaluation(config.trainer),
        *_algorithm(config.algorithm, config.dag, policy.rollout),
        *(
            []
            if excluded
            else estimator_problems(config.algorithm, config.dag, built_in=ESTIMATORS)
        ),
        *_reward(config.reward),
        *_length(config),
        *_names(config.reward, policy.model),
        *_pipeline(config.dag),
        *plug_in_problems(config),
        *_environment(config.env),
        *_processes(config.cluster, config.trainer),
        *group_problems(config),
        *(segment_problems(config) if trains else []),
    ]


def _samples(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Mini-batches that do not divide the samples of a step."""
    policy = config.actor_rollout_ref
    yield from undivided(
        config.data,
        policy.rollout,
        policy.actor.ppo_mini_batch_size,
        place=f"{ACTOR}.ppo_mini_batch_size",
    )
    yield from critic_problems(config.critic, config.data, policy.rollout)


def _ranks(config: SiiRLArguments) -> Iterator[SiirlError]:
    """Sizes that colocated ranks cannot divide."""
    policy, ranks = config.actor_rollout_ref, sizes.ranks(config.trainer)
    ranks_text = f"ranks = trainer.nnodes x trainer.n_gpus_per_node = {ranks}"
    batch = config.data.train_batch_size
    if batch % ranks:
        nearest = max(1, round(batch / ranks)) * ranks
        yield ConfigError(
            f"data.train_batch_size={batch} is not divisible by {ranks_text}; each rank rolls out "
            f"an equal share: make it {nearest}."
        )
    for key, mini_batch in mini_batches_of(config).items():
        trajectories = mini_batch * policy.rollout.n
        if trajectories % ranks:
            yield ConfigError(
                f"{key}={mini_batch} x {ROLLOUT}.n={policy.rollout.n} = {trajectories} "
                f"trajectories are not divisible by {ranks_text}: change one of them."
            )
    size = policy.actor.fsdp_size
    if size is not None and ranks % size:
        yield ConfigError(
            f"{ACTOR}.fsdp_size={size} must divide the {ranks} ranks that train: each group of "
            "that size holds one copy of the weights."
        )


def _evaluation(trainer: TrainingArguments) -> Iterator[SiirlError]:
    first, episodes = trainer.val_seed_offset, trainer.val_episodes
    if episodes > FIRST_DEMONSTRATION_SEED:
        yield ConfigError(
            f"trainer.val_episodes={episodes}: a task has {FIRST_DEMONSTRATION_SEED} held-out "
            "seeds; set at most that many."
        )
    elif first + episodes > FIRST_DEMONSTRATION_SEED:
        yield ConfigError(
            f"trainer.val_seed_offset={first} with trainer.val_episodes={episodes} takes seeds "
            f"up to {first + episodes - 1}, but those "
            f"from {FIRST_DEMONSTRATION_SEED} on belong to demonstrations and training: make "
            f"val_seed_offset at most {FIRST_DEMONSTRATION_SEED - episodes}."
        )


def _algorithm(
    algorithm: AlgorithmArguments, dag: DagArguments, rollout: RolloutArguments
) -> Iterator[SiirlError]:
    group_size = rollout.n
    compares = algorithm.adv_estimator in GROUP_ESTIMATORS
    if compares and group_size < 2 and rollout.n_steps is None:  # otherwise segment_problems
        yield ConfigError(
            f"{ROLLOUT}.n={group_size}: algorithm.adv_estimator={algorithm.adv_estimator} "
            "compares the rollouts of a prompt "
            "with each other and needs at least 2."
        )
    band = algorithm.filter
    if band.success_low > band.success_high:
        yield ConfigError(
            f"algorithm.filter.success_low={band.success_low} lies above "
            f"success_high={band.success_high}: no group could pass. Swap them."
        )
    if algorithm.pass_k is not None and algorithm.pass_k > group_size:
        yield ConfigError(
            f"algorithm.pass_k={algorithm.pass_k} is more than {ROLLOUT}.n={group_size}: use at "
            "most the group size."
        )
    if dag.shipped_graph == "embodied_srpo" and band.name == "zero_variance":
        yield ConfigError(
            "algorithm.filter.name=zero_variance compares the rewards of a group, but "
            "pipeline=embodied_srpo filters before it computes rewards: use success_band or "
            "truncation, or leave it out, since its own rule drops groups with identical rewards."
        )


def _length(config: SiiRLArguments) -> Iterator[SiirlError]:
    trainer = config.trainer
    if trainer.total_steps is None and trainer.max_minutes is None and not config.data.train_files:
        yield ConfigError("The run has no end: set trainer.total_steps or trainer.max_minutes.")
    if trainer.total_steps is None:
        yield from _schedules_without_end(config.actor_rollout_ref.actor, config.critic, config.dag)
    else:
        yield from _beyond_the_end(config.trainer, config.dag, config.profiler, trainer.total_steps)
    for name, value in (("save_freq", trainer.save_freq), ("test_freq", trainer.test_freq)):
        if value == 0:
            yield ConfigError(
                f"trainer.{name}=0: give a number of steps, or -1 for only at the end."
            )
    if not trainer.output_dir.strip():
        yield ConfigError(
            "trainer.output_dir is empty: name a folder, or leave it out for outputs/."
        )  # $FOLDER that is not set
    name = trainer.experiment_name
    if not name.strip(".") or not all(letter.isalnum() or letter in "-_." for letter in name):
        yield ConfigError(
            f"trainer.experiment_name={name!r} is a folder below trainer.output_dir: use "
            "letters, digits, '-', '_' and '.'."
        )


def _beyond_the_end(
    trainer: TrainingArguments, dag: DagArguments, profiler: ProfilerArguments, last: int
) -> Iterator[SiirlError]:
    """Start steps beyond the end of the run."""
    warmup = trainer.critic_warmup
    if profiler.enable and min(profiler.steps) > last:
        yield ConfigError(
            f"profiler.steps={as_text(list(profiler.steps))} lie beyond "
            f"trainer.total_steps={last}: nothing would be profiled; name one of "
            "the run's steps."
        )
    if dag.shipped_graph == WITH_CRITIC and warmup >= last:
        yield ConfigError(
            f"trainer.critic_warmup={warmup} with trainer.total_steps={last} leaves no step that "
            f"trains the actor: set it to at most {last - 1}, or raise trainer.total_steps."
        )


def _schedules_without_end(
    actor: ActorArguments, critic: CriticArguments, dag: DagArguments
) -> Iterator[SiirlError]:
    optimisers = [(f"{ACTOR}.optim", actor.optim)]
    if dag.pipeline == WITH_CRITIC:
        optimisers.append(("critic.optim", critic.optim))
    for place, optim in optimisers:
        if optim.scheduler not in FLAT_SCHEDULES:
            yield ConfigError(
                f"{place}.scheduler={optim.scheduler} decays until the run's last step, which is "
                "unknown with trainer.total_steps=null: set trainer.total_steps, or "
                f"{place}.scheduler=constant_with_warmup."
            )
        elif (
            optim.scheduler == "constant_with_warmup"
            and optim.warmup_steps is None
            and optim.warmup_ratio > 0
        ):
            yield ConfigError(
                f"{place}.warmup_ratio={optim.warmup_ratio} is a share of the run's steps, whose "
                "number is unknown with trainer.total_steps=null: set trainer.total_steps, or "
                f"{place}.warmup_steps."
            )


def _names(reward: RewardArguments, model: ModelArguments) -> Iterator[SiirlError]:
    named = (
        ("reward.name", reward.name, REWARDS),
        ("actor_rollout_ref.model.policy", model.policy, (*POLICIES, LANGUAGE_MODEL)),
    )
    for place, name, known in named:
        if name not in known:
            yield from _reference(name, place=place, known=known)


def _pipeline(dag: DagArguments) -> Iterator[SiirlError]:
    if dag.own_graph:
        return
    try:
        check_name(dag.pipeline)
    except ConfigError as error:
        yield error


def _environment(env: EnvArguments) -> Iterator[SiirlError]:
    if not env.name:
        yield ConfigError(
            "env=custom needs your class: env.name=my_module:MyEnv, a subclass of "
            "envs.base.Environment."
        )
    if env.name == "gymnasium" and not env.id:
        yield ConfigError(
            "env=gymnasium needs env.id, for example env.id=CartPole-v1, or any other that "
            "Gymnasium has registered."
        )
    if env.name == "verifiers" and not env.id:
        yield ConfigError(
            "env=verifiers needs env.id, the name of an installed environment of the package "
            "verifiers, as `prime env install` or pip installed it."
        )


def _reference(name: str, *, place: str, known: Collection[str]) -> Iterator[SiirlError]:
    """Check a name outside `known`: it must be a `module:name` that exists."""
    if not is_reference(name):
        yield UnknownNameError.of(kind=place, name=name, known=[*known, "module:name"])
        return
    try:
        check_reference(name, place=place)
    except ConfigError as error:
        yield error


def _processes(cluster: ClusterArguments, trainer: TrainingArguments) -> Iterator[SiirlError]:
    if cluster.mode == "local" and sizes.ranks(trainer) > 1:
        yield ConfigError(
            "cluster=local runs in one process, which is one rank, not trainer.nnodes x "
            f"trainer.n_gpus_per_node = {sizes.ranks(trainer)}: "
            "use cluster=ray, or one rank."
        )
    if cluster.mode == "local" and cluster.address is not None:
        yield ConfigError(
            f"cluster.address={cluster.address} names a Ray cluster, which cluster=local does "
            "not use: leave one of them out."
        )
    if cluster.mode == "ray" and trainer.nnodes > 1 and cluster.address is None:
        yield ConfigError(
            f"trainer.nnodes={trainer.nnodes} needs a Ray cluster that spans the machines: give "
            "cluster.address=HOST:PORT."
        )


def _reward(reward: RewardArguments) -> Iterator[SiirlError]:
    if reward.name in VIDEO_REWARDS and reward.encoder is None:
        yield ConfigError(
            f"reward.encoder=null, but reward.name={reward.name} compares videos: use "
            f"reward.encoder={'pixels' if reward.name == 'video_value' else 'tiny'}."
        )
    fewest = max(FEWEST_SUCCESSES, reward.min_failure_window)
    if reward.name == "video_value" and reward.success_bank_size < fewest:
        yield ConfigError(
            f"reward.success_bank_size={reward.success_bank_size} keeps too few episodes: "
            f"reward.name=video_value learns from {FEWEST_SUCCESSES} successes and "
            f"reward.min_failure_window={reward.min_failure_window} failures of a task. Use "
            f"{fewest} or more, or reward=success."
        )


def warnings_of(config: SiiRLArguments, spec: EnvSpec) -> Iterator[str]:
    """Warnings about settings that work but are probably not intended."""
    actor = config.actor_rollout_ref.actor
    rollout = config.actor_rollout_ref.rollout
    band = config.algorithm.filter
    if rollout.top_p < 1.0:
        yield (
            f"{ROLLOUT}.top_p={rollout.top_p} biases the ratio: tokens outside the nucleus "
            "are never sampled, but count in the loss."
        )
    if rollout.top_k is not None:
        yield (
            f"{ROLLOUT}.top_k={rollout.top_k} biases the ratio: less likely tokens are never "
            "sampled, but count in the loss."
        )
    if actor.use_kl_loss and actor.kl_loss_type == KL_WITHOUT_GRADIENT:
        yield (
            f"{ACTOR}.kl_loss_type={actor.kl_loss_type} has a gradient of mean zero as a loss "
            "and only adds noise: use k3 or k1+."
        )
    algorithm = config.algorithm
    if (
        config.dag.shipped_graph == "embodied_srpo"
        and algorithm.adv_estimator in ESTIMATORS.keys() - set(GROUP_ESTIMATORS)
    ):
        yield (
            f"algorithm.min_group_spread={algorithm.min_group_spread} is not read: "
            f"{algorithm.adv_estimator} compares no groups."
        )
    if config.env.num_servers < sizes.rollout_ranks(config.trainer, config.dag):
        yield (
            f"env.num_servers={config.env.num_servers} is less than the "
            f"{sizes.rollout_ranks(config.trainer, config.dag)} "
            "ranks: each rank gets one server."
        )
    if band.success_low > 0 and sizes.needs_video(config.reward):
        yield (
            f"algorithm.filter.success_low={band.success_low} drops groups without success; "
            f"{config.reward.name} learns from them."
        )
