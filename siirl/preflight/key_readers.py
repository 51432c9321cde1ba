"""Table of keys that are read only under a condition, with the message if it does not hold.

Keys outside the table are read by every job, keys with `fields.option(text_only=...)` by every text
job, and keys of `ROBOTS_ONLY` by every robot job. User code (a graph, an estimator, a loss, a
reward manager) may read any key of its subject. Left out: refusing keys that are set and not read
(`siirl.preflight.unread`).
"""

from collections.abc import Mapping
from dataclasses import fields, replace

from envs.perturbations import INSTRUCTION
from envs.registry import asks_questions
from siirl.params import sizes
from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.key_names import ROLLOUT
from siirl.params.registered_names import estimators_taking
from siirl.params.reward_args import VIDEO_REWARDS
from siirl.preflight.key_conditions import (
    CRITIC,
    EVALUATIONS,
    FILES,
    FUNCTIONS,
    KL_IN_REWARD,
    KL_IN_REWARD_WEIGHS,
    WITHOUT_GROUPS,
    Reader,
    Row,
    any_of,
    asks_a_model,
    by_estimators,
    by_rewards,
    by_rules,
    has_value,
    in_pipelines,
    negated,
)
from siirl.preflight.model_key_readers import MODEL_ROWS

SPREAD = "min_group_spread"  # filters also read it
# Pipelines that drop groups. algorithm.min_group_spread is read by dapo's filter and by
# embodied_srpo's estimator.
FILTERING = ("dapo", "embodied_srpo")
WITHOUT_TAGS = {"console", "jsonl"}  # loggers that show no tags
WITHOUT_PROJECTS = {*WITHOUT_TAGS, "tensorboard"}  # and those without projects
NOT_FILMED = "text jobs have no videos; trainer.save_rollouts keeps their texts"

ROBOTS_ONLY: Mapping[str, str] = {
    "actor_rollout_ref.model.options": "the model folder defines a language model",
    "actor_rollout_ref.actor.micro_batch_chunks": "text jobs set micro_batch_tokens",
    "actor_rollout_ref.actor.ratio_level": "each token of a text is a decision",
    "actor_rollout_ref.embodied.recorder_every": NOT_FILMED,
    "actor_rollout_ref.embodied.recorder_size": NOT_FILMED,
    "actor_rollout_ref.rollout.noise_correlation": "tokens of a text are not a movement over time",
    "trainer.record_episodes": NOT_FILMED,
    "trainer.record_val_episodes": NOT_FILMED,
}
"""Keys that text jobs do not read, with the reason."""


KL = "algorithm.kl_ctrl"

ROWS: tuple[Row, ...] = (
    *(
        ("algorithm", (setting.name,), by_estimators(*estimators_taking(setting.name)))
        for setting in fields(AlgorithmArguments)
        if estimators_taking(setting.name) and setting.name != SPREAD
    ),
    (
        "algorithm",
        (SPREAD,),
        Reader(
            any_of(
                in_pipelines(*FILTERING),
                negated(has_value("algorithm.adv_estimator", *WITHOUT_GROUPS)),
            ),
            "by estimators that compare the rollouts of a group, not by "
            "{algorithm.adv_estimator}: leave it out.",
        ),
    ),
    ("algorithm", ("kl_penalty",), KL_IN_REWARD),
    (KL, ("type", "kl_coef", "target_kl", "horizon"), KL_IN_REWARD),
    ("algorithm", ("kl_penalty",), KL_IN_REWARD_WEIGHS),
    (KL, ("type", "target_kl", "horizon"), KL_IN_REWARD_WEIGHS),
    (
        KL,
        ("target_kl", "horizon"),
        Reader(
            has_value(f"{KL}.type", "adaptive"),
            f"with {KL}.type=adaptive: set it, or leave this out.",
        ),
    ),
    (
        "algorithm.filter",
        ("name", "success_low", "success_high", "drop_truncated"),
        Reader(
            in_pipelines(*FILTERING),
            "by pipeline=dapo and embodied_srpo, which drop groups, not by {dag.pipeline}: "
            "leave it out.",
        ),
    ),
    (
        "algorithm.filter",
        ("metric", "max_refills"),
        Reader(
            in_pipelines("dapo"),
            "by DAPO's dynamic sampling, but pipeline={dag.pipeline} has none: use "
            "pipeline=dapo, or leave it out.",
        ),
    ),
    ("algorithm.filter", ("success_low", "success_high"), by_rules("success_band")),
    ("algorithm.filter", ("metric",), by_rules("zero_variance")),
    ("algorithm.filter", ("drop_truncated",), by_rules()),
    (
        "env",
        ("tasks",),
        Reader(
            lambda config: not config.data.train_files or not asks_questions(config.env.name),
            "by environments that generate or choose questions, but here data.train_files has "
            "them: leave one of the two out.",
        ),
    ),
    (
        "env",
        ("perturb_strength",),
        Reader(
            negated(has_value("env.perturb", (INSTRUCTION,))),
            "by factors with a range, but env.perturb=[instruction] has none: name another factor, "
            "or leave it out.",
        ),
    ),
    ("data", ("val_files", "heldout_share", "num_loader_workers"), FILES),
    (
        "data",
        ("heldout_share",),
        Reader(
            has_value("data.val_files", ()),
            "without data.val_files, which are the held-out prompts: leave one of the two out.",
        ),
    ),
    ("trainer", ("total_epochs",), FILES),
    (
        "trainer",
        ("tags",),
        Reader(
            lambda config: not {*config.trainer.logger} <= WITHOUT_TAGS,
            "by dashboards, but trainer.logger names none: add tensorboard, wandb, mlflow or "
            "trackio, or leave it out.",
        ),
    ),
    (
        "trainer",
        ("project_name",),
        Reader(
            lambda config: not {*config.trainer.logger} <= WITHOUT_PROJECTS,
            "by dashboards with projects, but trainer.logger names none: add wandb, mlflow or "
            "trackio, or leave it out.",
        ),
    ),
    (
        "trainer",
        ("record_episodes",),
        Reader(
            any_of(has_value(f"{ROLLOUT}.n_steps", None), has_value("trainer.record_episodes", 0)),
            f"by training on whole episodes, but {ROLLOUT}.n_steps={{{ROLLOUT}.n_steps}} cuts "
            "them: set trainer.record_val_episodes, or leave it out.",
        ),
    ),
    ("trainer", ("critic_warmup",), CRITIC),
    (
        "reward_model",
        ("path", "micro_batch_size", "trust_remote_code"),
        Reader(
            asks_a_model,
            "with reward.name=model, but it is {reward.name}: set it to model, or leave this key "
            "out.",
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
        by_rewards("srpo", "video_value", "oracle"),
    ),
    ("reward", ("dbscan_min_samples", "dbscan_eps_scale"), by_rewards("srpo", "oracle")),
    ("reward", ("encoder",), by_rewards(*VIDEO_REWARDS)),
    (
        "reward",
        ("encoder_device", "encoder_dtype", "encoder_batch_size"),
        Reader(
            negated(has_value("reward.encoder", "pixels")),
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
            "by rewards that compare videos, but reward.name={reward.name} uses none: leave it "
            "out.",
        ),
    ),
    ("reward", ("demonstrations",), by_rewards("srpo", "video_value")),
    ("reward", ("manager", "num_workers", "timeout_s"), FUNCTIONS),
    (
        "reward",
        ("num_workers",),
        Reader(
            negated(has_value("reward.manager", "naive")),
            "by reward.manager=parallel and dapo: use one of these, or leave it out.",
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
        replace(
            EVALUATIONS, applies=any_of(EVALUATIONS.applies, has_value("trainer.test_freq", -1))
        ),
    ),
    (
        "trainer",
        ("val_before_train",),
        replace(
            EVALUATIONS,
            applies=any_of(EVALUATIONS.applies, has_value("trainer.val_before_train", False)),
        ),
    ),
    (
        "trainer",
        ("record_val_episodes",),
        replace(
            EVALUATIONS,
            applies=any_of(EVALUATIONS.applies, has_value("trainer.record_val_episodes", 0)),
        ),
    ),
    (
        "dag",
        ("apportion",),
        Reader(
            lambda config: None in config.dag.groups.values(),
            "for groups without a number of ranks: set one of dag.groups to null, or leave it out.",
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
        "trainer",
        ("force_process_group",),
        Reader(
            lambda config: sizes.training_ranks(config.trainer, config.dag) == 1,
            "by jobs with one training rank; several form a process group anyway: leave it out.",
        ),
    ),
    (
        "profiler",
        ("steps",),
        Reader(
            has_value("profiler.enable", True),
            "with profiler.enable=true: set it, or leave this out.",
        ),
    ),
    *MODEL_ROWS,
)
"""Group, keys in it, and their condition; a key in several rows needs all conditions."""

READERS: dict[str, list[Reader]] = {}
"""Conditions by key."""
for _group, _names, _reader in ROWS:
    for _name in _names:
        READERS.setdefault(f"{_group}.{_name}", []).append(_reader)
