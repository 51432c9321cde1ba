"""Table of keys that are read only under a condition, with the message if it does not hold.

Every job reads a key outside the table, every text job one with `fields.option(text_only=...)`,
every robot job one of `ROBOTS_ONLY`. User code (a graph, an estimator, a loss, a reward manager)
may read any key of its subject. Left out: refusing keys that are set and not read
(`siirl.preflight.unread`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from siirl.params import sizes
from siirl.params.algorithm_args import FILTERS, AlgorithmArguments
from siirl.params.critic_args import CriticArguments
from siirl.params.estimator_names import ESTIMATORS, GROUP_ESTIMATORS, that_take
from siirl.params.references import is_reference
from siirl.params.reward_args import TEXT_REWARDS, VIDEO_REWARDS
from siirl.params.schema import keys_of, value_of
from siirl.params.server_args import ServerArguments
from siirl.params.training_args import SiiRLArguments

Condition = Callable[[SiiRLArguments], bool]

WITHOUT_GROUPS = sorted(ESTIMATORS.keys() - set(GROUP_ESTIMATORS))
SPREAD = "min_group_spread"  # filters read it as well
FILTERING = ("dapo", "embodied_srpo")  # pipelines that drop groups
SPREADS = (
    "embodied_srpo",
    "dapo",
)  # embodied_srpo sets algorithm.min_group_spread for its estimator, dapo's filter reads it
WITHOUT_TAGS = {"console", "jsonl"}  # loggers that show no tags
WITHOUT_PROJECTS = {*WITHOUT_TAGS, "tensorboard"}  # and those that sort runs by nothing
ASKING = ("math", "tools", "sandbox", "reasoning_gym")  # environments with questions as tasks
NOT_FILMED = "text jobs have no videos; trainer.save_rollouts keeps their texts"

ROBOTS_ONLY: Mapping[str, str] = {
    "actor_rollout_ref.model.options": "the model folder defines a language model",
    "actor_rollout_ref.actor.micro_batch_chunks": "text jobs set micro_batch_tokens",
    "actor_rollout_ref.embodied.recorder_every": NOT_FILMED,
    "actor_rollout_ref.embodied.recorder_size": NOT_FILMED,
    "actor_rollout_ref.rollout.noise_correlation": "tokens of a text are not a movement over time",
    "actor_rollout_ref.rollout.n_steps": "a text is one episode, which ends before the update",
    "trainer.record_episodes": NOT_FILMED,
    "trainer.record_val_episodes": NOT_FILMED,
}
"""Keys that text jobs do not read, with the reason."""


@dataclass(frozen=True)
class Reader:
    """Condition under which a key is read."""

    applies: Condition
    """Whether this job reads the key."""
    clause: str
    """Text after `KEY=VALUE is read`: the reader, the actual setting, and the remedy.

    `{dag.pipeline}` is replaced by that key's value.
    """


Row = tuple[str, Sequence[str], Reader]


def _in_pipelines(*names: str) -> Condition:
    return lambda config: config.dag.own_graph is not None or config.dag.pipeline in names


def _by_estimators(*names: str) -> Reader:
    return Reader(
        lambda config: (
            config.algorithm.adv_estimator in names
            or config.algorithm.adv_estimator not in ESTIMATORS
        ),
        f"by {' and '.join(names)}, not by {{algorithm.adv_estimator}}: leave it out.",
    )


def _by_rewards(*names: str) -> Reader:
    listed = " and ".join((", ".join(names[:-1]), names[-1]))
    return Reader(
        lambda config: config.reward.name in names or is_reference(config.reward.name),
        f"by reward.name={listed}, not by {{reward.name}}: leave it out.",
    )


def _by_rules(*names: str) -> Reader:
    """A pipeline's own filter (name null) reads all keys; a user's rule may."""
    listed = " or ".join(("null", *names))
    return Reader(
        lambda config: (
            config.algorithm.filter.name in (None, *names)
            or config.algorithm.filter.name not in FILTERS
        ),
        f"with algorithm.filter.name={listed}, not with {{algorithm.filter.name}}: leave one of "
        "the two out.",
    )


def _part_is(fits: Callable[[str], bool]) -> Condition:
    """Condition that a part of the text reward has a fitting name; errors in parts are reported
    elsewhere.
    """

    def applies(config: SiiRLArguments) -> bool:
        names = [str(part.get("name")) for part in config.reward.functions]
        names += (
            [config.custom_reward_function.name]
            if config.custom_reward_function.name is not None
            else []
        )
        return any(fits(name) for name in names or [config.reward.name])

    return applies


def _is(place: str, *values: object) -> Condition:
    return lambda config: value_of(config, place) in values


def _not(condition: Condition) -> Condition:
    return lambda config: not condition(config)


def _any(*conditions: Condition) -> Condition:
    return lambda config: any(condition(config) for condition in conditions)


def _needs_reference(config: SiiRLArguments) -> bool:
    return sizes.needs_reference(config.actor_rollout_ref.actor, config.algorithm)


ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
KL = "algorithm.kl_ctrl"
LORA, EMBODIED = "actor_rollout_ref.model.lora", "actor_rollout_ref.embodied"
_files = _not(_is("data.train_files", ()))
asks_a_model = _part_is(lambda name: name == "model")
"""Whether a part of the text reward is a classifier."""
_functions = _part_is(lambda name: name not in TEXT_REWARDS)

CRITIC = Reader(
    _in_pipelines("ppo"),
    "only with a critic, and pipeline={dag.pipeline} has none: take pipeline=ppo, or leave it out.",
)
KL_IN_REWARD = Reader(
    _is("algorithm.use_kl_in_reward", True),
    "with algorithm.use_kl_in_reward=true, and it is false: set it, or leave this out.",
)
KL_LOSS = Reader(
    _is(f"{ACTOR}.use_kl_loss", True),
    f"with {ACTOR}.use_kl_loss=true, and it is false: set it, or leave this out.",
)
FILES = Reader(
    _files, "with prompts from files, and data.train_files is empty: give files, or leave it out."
)
VLLM = Reader(
    _is(f"{ROLLOUT}.name", "vllm"),
    f"by rollout=vllm, not by {ROLLOUT}.name={{{ROLLOUT}.name}}: take rollout=vllm, or leave it "
    "out.",
)
OTHER_WEIGHTS = Reader(
    _is(f"{ROLLOUT}.name", "vllm", "server"),
    f"by rollout=vllm and rollout=server, not by {ROLLOUT}.name={{{ROLLOUT}.name}}: take one of "
    "them, or leave it out.",
)
SERVERS = Reader(
    _is(f"{ROLLOUT}.name", "server"),
    f"by rollout=server, not by {ROLLOUT}.name={{{ROLLOUT}.name}}: take rollout=server, or leave "
    "it out.",
)
EVALUATIONS = Reader(
    _not(_is("trainer.val_episodes", 0)),
    "by evaluations, which trainer.val_episodes=0 turns off: leave it out.",
)
FUNCTIONS = Reader(
    _functions,
    "by reward functions, and none are configured: give custom_reward_function or "
    "reward.functions, or leave it out.",
)


def _warmup(optim: str) -> tuple[Row, ...]:
    """Rows for the warm-up keys of an optimiser."""
    flat = (
        f"by schedules with a warm-up, not by {optim}.scheduler=constant: take "
        "constant_with_warmup, or leave it out."
    )
    steps = (
        f"only if {optim}.warmup_steps is null, and it is {{{optim}.warmup_steps}}: set "
        f"{optim}.warmup_steps=null, or leave it out."
    )
    return (
        (
            optim,
            ("warmup_ratio", "warmup_steps"),
            Reader(_not(_is(f"{optim}.scheduler", "constant")), flat),
        ),
        (optim, ("warmup_ratio",), Reader(_is(f"{optim}.warmup_steps", None), steps)),
    )


ROWS: tuple[Row, ...] = (
    *(
        ("algorithm", (setting.name,), _by_estimators(*that_take(setting.name)))
        for setting in fields(AlgorithmArguments)
        if that_take(setting.name) and setting.name != SPREAD
    ),
    (
        "algorithm",
        (SPREAD,),
        Reader(
            _any(_in_pipelines(*SPREADS), _not(_is("algorithm.adv_estimator", *WITHOUT_GROUPS))),
            "by estimators that compare the rollouts of a group, not by "
            "{algorithm.adv_estimator}: leave it out.",
        ),
    ),
    ("algorithm", ("kl_penalty",), KL_IN_REWARD),
    (KL, ("type", "kl_coef", "target_kl", "horizon"), KL_IN_REWARD),
    (
        KL,
        ("target_kl", "horizon"),
        Reader(
            _is(f"{KL}.type", "adaptive"), f"with {KL}.type=adaptive: set it, or leave this out."
        ),
    ),
    (
        "algorithm.filter",
        ("name", "success_low", "success_high", "drop_truncated"),
        Reader(
            _in_pipelines(*FILTERING),
            "by pipeline=dapo and embodied_srpo, which drop groups, not by {dag.pipeline}: "
            "leave it out.",
        ),
    ),
    (
        "algorithm.filter",
        ("metric", "max_refills"),
        Reader(
            _in_pipelines("dapo"),
            "by DAPO's dynamic sampling, and pipeline={dag.pipeline} has none: take "
            "pipeline=dapo, or leave it out.",
        ),
    ),
    ("algorithm.filter", ("success_low", "success_high"), _by_rules("success_band")),
    ("algorithm.filter", ("metric",), _by_rules("zero_variance")),
    ("algorithm.filter", ("drop_truncated",), _by_rules()),
    (
        "env",
        ("perturb_strength",),
        Reader(
            _not(_is("env.perturb", None)),
            "with env.perturb, and it is null: name factors such as env.perturb=[camera], or leave "
            "it out.",
        ),
    ),
    (
        "env",
        ("tasks",),
        Reader(
            lambda config: not config.data.train_files or config.env.name not in ASKING,
            "by environments that generate or choose questions, and here data.train_files has "
            "them: leave one of the two out.",
        ),
    ),
    ("data", ("val_files", "heldout_share", "num_loader_workers"), FILES),
    (
        "data",
        ("heldout_share",),
        Reader(
            _is("data.val_files", ()),
            "without data.val_files, which are the held-out prompts: leave one of the two out.",
        ),
    ),
    ("trainer", ("total_epochs",), FILES),
    (
        LORA,
        ("alpha", "target_modules"),
        Reader(
            _not(_is(f"{LORA}.rank", 0)), f"with {LORA}.rank above 0: set it, or leave this out."
        ),
    ),
    (
        ACTOR,
        ("clip_ratio",),
        Reader(
            _any(_is(f"{ACTOR}.clip_ratio_low", None), _is(f"{ACTOR}.clip_ratio_high", None)),
            f"only if {ACTOR}.clip_ratio_low or clip_ratio_high is null, and they are "
            f"{{{ACTOR}.clip_ratio_low}} and "
            f"{{{ACTOR}.clip_ratio_high}}: set these two instead.",
        ),
    ),
    (
        f"{ACTOR}.importance",
        ("bound", "high", "low"),
        Reader(
            _not(_is(f"{ACTOR}.importance.level", None)),
            f"with {ACTOR}.importance.level: set it, or leave this out.",
        ),
    ),
    (
        ACTOR,
        ("micro_batch_size",),
        Reader(
            _is(f"{ACTOR}.micro_batch_tokens", None),
            f"only if {ACTOR}.micro_batch_tokens is null, and it is "
            f"{{{ACTOR}.micro_batch_tokens}}: set that one, or make it null.",
        ),
    ),
    (
        ACTOR,
        ("micro_batch_size",),
        Reader(
            _is(f"{ACTOR}.micro_batch_chunks", None),
            f"only if {ACTOR}.micro_batch_chunks is null, and it is "
            f"{{{ACTOR}.micro_batch_chunks}}: set that one, or make it null.",
        ),
    ),
    (
        "critic",
        ("micro_batch_size",),
        Reader(
            _is(f"{ACTOR}.micro_batch_chunks", None),
            f"only if {ACTOR}.micro_batch_chunks is null, and it is "
            f"{{{ACTOR}.micro_batch_chunks}}: set that one, or make it null.",
        ),
    ),
    (
        ACTOR,
        ("target_kl",),
        Reader(
            lambda config: (
                sizes.optimiser_steps_per_step(config.data, config.actor_rollout_ref) > 1
            ),
            "if an update has several optimiser steps: the KL is measured before each, and is 0 "
            f"before the first. Raise {ACTOR}.ppo_epochs, or leave it out.",
        ),
    ),
    (
        ACTOR,
        ("target_kl",),
        Reader(
            _not(_is(f"{ACTOR}.loss", "gpg")),
            f"by losses with a ratio, which measure the KL, not by {ACTOR}.loss=gpg: leave it out.",
        ),
    ),
    (ACTOR, ("kl_loss_coef", "kl_loss_type"), KL_LOSS),
    *_warmup(f"{ACTOR}.optim"),
    (
        ROLLOUT,
        (
            "tensor_model_parallel_size",
            "kv_cache_gib",
            "sleep",
        ),
        VLLM,
    ),
    (ROLLOUT, ("update_weights_bucket_megabytes",), OTHER_WEIGHTS),
    (f"{ROLLOUT}.server", tuple(key.place for key in keys_of(ServerArguments)), SERVERS),
    (
        f"{ROLLOUT}.server",
        ("weights_folder",),
        Reader(
            _is(f"{ROLLOUT}.server.weights", "folder"),
            f"with {ROLLOUT}.server.weights=folder: take that, or leave it out.",
        ),
    ),
    (
        "actor_rollout_ref.ref",
        ("path",),
        Reader(
            _needs_reference,
            f"only if a KL term is used: set {ACTOR}.use_kl_loss or algorithm.use_kl_in_reward, "
            "or leave it out.",
        ),
    ),
    (
        "trainer",
        ("tags",),
        Reader(
            lambda config: not {*config.trainer.logger} <= WITHOUT_TAGS,
            "by dashboards, and trainer.logger names none: add tensorboard, wandb, mlflow or "
            "trackio, or leave it out.",
        ),
    ),
    (
        "trainer",
        ("project_name",),
        Reader(
            lambda config: not {*config.trainer.logger} <= WITHOUT_PROJECTS,
            "by dashboards with projects, and trainer.logger names none: add wandb, mlflow or "
            "trackio, or leave it out.",
        ),
    ),
    (
        EMBODIED,
        ("recorder_every", "recorder_size"),
        Reader(
            _any(
                _not(_is("trainer.record_episodes", 0)), _not(_is("trainer.record_val_episodes", 0))
            ),
            "only if videos are recorded, and trainer.record_episodes=0 and "
            "trainer.record_val_episodes=0: leave it out.",
        ),
    ),
    ("critic", tuple(key.place for key in keys_of(CriticArguments)), CRITIC),
    (ROLLOUT, ("n_steps",), CRITIC),
    (
        ROLLOUT,
        ("noise_correlation",),
        Reader(
            _not(_is("actor_rollout_ref.model.policy", "smolvla")),
            "by policies that draw numbers for executed actions only; model=smolvla also draws "
            "some for padding, in another order: leave it out.",
        ),
    ),
    (
        "trainer",
        ("record_episodes",),
        Reader(
            _any(_is(f"{ROLLOUT}.n_steps", None), _is("trainer.record_episodes", 0)),
            f"by training on whole episodes, and {ROLLOUT}.n_steps={{{ROLLOUT}.n_steps}} cuts "
            "them: set trainer.record_val_episodes, or leave it out.",
        ),
    ),
    *_warmup("critic.optim"),
    ("trainer", ("critic_warmup",), CRITIC),
    (
        "reward_model",
        ("path", "micro_batch_size", "trust_remote_code"),
        Reader(
            asks_a_model,
            "with reward.name=model, and it is {reward.name}: take that, or leave this out.",
        ),
    ),
    (
        "reward",
        ("name",),
        Reader(
            lambda config: (
                not config.reward.functions and config.custom_reward_function.name is None
            ),
            "without reward.functions and custom_reward_function, which replace it: leave it out.",
        ),
    ),
    (
        "reward",
        (
            "alpha",
            "success_bank_size",
            "failure_window",
            "min_failure_window",
        ),
        _by_rewards("srpo", "video_value", "oracle"),
    ),
    ("reward", ("dbscan_min_samples", "dbscan_eps_scale"), _by_rewards("srpo", "oracle")),
    ("reward", ("encoder",), _by_rewards(*VIDEO_REWARDS)),
    (
        "reward",
        ("encoder_device", "encoder_dtype", "encoder_batch_size"),
        Reader(
            _not(_is("reward.encoder", "pixels")),
            "by encoders with weights, not by reward.encoder=pixels: leave it out.",
        ),
    ),
    (
        "reward",
        (
            "encoder_device",
            "encoder_dtype",
            "encoder_batch_size",
            "frame_every",
            "demonstrations",
        ),
        Reader(
            lambda config: sizes.needs_video(config.reward),
            "by rewards that compare videos, and reward.name={reward.name} uses none: leave it "
            "out.",
        ),
    ),
    ("reward", ("demonstrations",), _by_rewards("srpo", "video_value")),
    ("reward", ("manager", "num_workers", "timeout_s"), FUNCTIONS),
    (
        "reward",
        ("num_workers",),
        Reader(
            _not(_is("reward.manager", "naive")),
            "by reward.manager=parallel and dapo: take one of these, or leave it out.",
        ),
    ),
    (
        "trainer",
        ("val_seed_offset", "val_samples"),
        EVALUATIONS,
    ),
    (
        "trainer",
        ("test_freq",),
        replace(EVALUATIONS, applies=_any(EVALUATIONS.applies, _is("trainer.test_freq", -1))),
    ),
    (
        "trainer",
        ("val_before_train",),
        replace(
            EVALUATIONS, applies=_any(EVALUATIONS.applies, _is("trainer.val_before_train", False))
        ),
    ),
    (
        "trainer",
        ("record_val_episodes",),
        replace(
            EVALUATIONS, applies=_any(EVALUATIONS.applies, _is("trainer.record_val_episodes", 0))
        ),
    ),
    (
        "dag",
        ("apportion",),
        Reader(
            lambda config: None in config.dag.groups.values(),
            "for groups without a number of ranks, and dag.groups={dag.groups}: set one to null, "
            "or leave it out.",
        ),
    ),
    (
        ROLLOUT,
        ("mode",),
        Reader(
            _any(lambda config: sizes.separate(config.dag), _is(f"{ROLLOUT}.name", "vllm")),
            "by separate rollout ranks and by rollout=vllm: set dag.groups, or leave it out.",
        ),
    ),
    (
        "dag",
        ("backend_threshold",),
        Reader(
            lambda config: sizes.ranks(config.trainer) > 1,
            "by jobs of several ranks, and this job has one: leave it out.",
        ),
    ),
    (
        ACTOR,
        ("reshard_after_forward", "reduce_once", "fsdp_size"),
        Reader(
            lambda config: (
                sizes.training_ranks(config.trainer, config.dag) > 1
                or config.trainer.force_process_group
            ),
            "by sharded training, and this job trains on one rank: leave it out.",
        ),
    ),
    (
        "actor_rollout_ref.ref",
        ("offload",),
        Reader(
            _needs_reference,
            f"only if a KL term is used: set {ACTOR}.use_kl_loss or algorithm.use_kl_in_reward, "
            "or leave it out.",
        ),
    ),
    (
        "trainer",
        ("force_process_group",),
        Reader(
            lambda config: sizes.ranks(config.trainer) == 1,
            "by jobs of one rank, and several form a process group anyway: leave it out.",
        ),
    ),
    (
        "profiler",
        ("steps",),
        Reader(
            _is("profiler.enable", True), "with profiler.enable=true: set it, or leave this out."
        ),
    ),
)
"""Group, keys in it, and their condition; a key in several rows needs all conditions."""

READERS: dict[str, list[Reader]] = {}
"""Conditions by key."""
for _group, _names, _reader in ROWS:
    for _name in _names:
        READERS.setdefault(f"{_group}.{_name}", []).append(_reader)
