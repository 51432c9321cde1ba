"""Table of the keys of actor, rollout, reference and critic that are read only under a condition
(`siirl.preflight.key_readers`).
"""

from siirl.params import sizes
from siirl.params.critic_args import CriticArguments
from siirl.params.key_names import ACTOR, ROLLOUT
from siirl.params.policies import PADDED
from siirl.params.schema import keys_of
from siirl.params.server_args import ServerArguments
from siirl.preflight.key_conditions import (
    CRITIC,
    KL_LOSS,
    KL_LOSS_WEIGHS,
    USED_REFERENCE,
    Reader,
    Row,
    any_of,
    has_value,
    negated,
    warmup_rows,
)

LORA, EMBODIED = "actor_rollout_ref.model.lora", "actor_rollout_ref.embodied"
VLLM = Reader(
    has_value(f"{ROLLOUT}.name", "vllm"),
    f"by rollout=vllm, not by {ROLLOUT}.name={{{ROLLOUT}.name}}: use rollout=vllm, or leave it "
    "out.",
)
OTHER_WEIGHTS = Reader(
    has_value(f"{ROLLOUT}.name", "vllm", "server"),
    f"by rollout=vllm and rollout=server, not by {ROLLOUT}.name={{{ROLLOUT}.name}}: use one of "
    "them, or leave it out.",
)
SERVERS = Reader(
    has_value(f"{ROLLOUT}.name", "server"),
    f"by rollout=server, not by {ROLLOUT}.name={{{ROLLOUT}.name}}: use rollout=server, or leave "
    "it out.",
)


def without(budget: str) -> Reader:
    """Read if this budget of the actor, which replaces a number of rows, is not set."""
    return Reader(
        has_value(f"{ACTOR}.{budget}", None),
        f"only if {ACTOR}.{budget} is null, but it is {{{ACTOR}.{budget}}}: set only that key, or "
        "make it null.",
    )


MODEL_ROWS: tuple[Row, ...] = (
    (
        LORA,
        ("alpha", "target_modules"),
        Reader(
            negated(has_value(f"{LORA}.rank", 0)),
            f"with {LORA}.rank above 0: set it, or leave this key out.",
        ),
    ),
    (
        ACTOR,
        ("clip_ratio",),
        Reader(
            any_of(
                has_value(f"{ACTOR}.clip_ratio_low", None),
                has_value(f"{ACTOR}.clip_ratio_high", None),
            ),
            f"only if {ACTOR}.clip_ratio_low or clip_ratio_high is null, but they are "
            f"{{{ACTOR}.clip_ratio_low}} and "
            f"{{{ACTOR}.clip_ratio_high}}: set these two instead.",
        ),
    ),
    (
        f"{ACTOR}.importance",
        ("bound", "high", "low"),
        Reader(
            negated(has_value(f"{ACTOR}.importance.level", None)),
            f"with {ACTOR}.importance.level: set it, or leave this key out.",
        ),
    ),
    *(
        (group, ("micro_batch_size",), without(budget))
        for group in (ACTOR, "critic")  # the critic has the actor's budget
        for budget in ("micro_batch_tokens", "micro_batch_chunks")
    ),
    (
        ACTOR,
        ("target_kl",),
        Reader(
            lambda config: (
                sizes.samples_per_step(config.data, config.actor_rollout_ref.rollout)
                * config.actor_rollout_ref.actor.ppo_epochs
                > config.actor_rollout_ref.actor.ppo_mini_batch_size
            ),
            "if an update has several optimiser steps: the KL is measured before each step and is "
            f"0 before the first. Raise {ACTOR}.ppo_epochs, or leave it out.",
        ),
    ),
    (ACTOR, ("kl_loss_coef", "kl_loss_type"), KL_LOSS),
    (ACTOR, ("kl_loss_type",), KL_LOSS_WEIGHS),
    *warmup_rows(f"{ACTOR}.optim"),
    (
        ROLLOUT,
        (
            "tensor_model_parallel_size",
            "kv_cache_gib",
            "sleep",
        ),
        VLLM,
    ),
    (
        ROLLOUT,
        ("sleep",),
        Reader(
            negated(lambda config: sizes.separate(config.dag)),
            "by ranks that also train, and dag.groups has separate rollout ranks: leave it out.",
        ),
    ),
    (ROLLOUT, ("update_weights_bucket_megabytes",), OTHER_WEIGHTS),
    (f"{ROLLOUT}.server", tuple(key.place for key in keys_of(ServerArguments)), SERVERS),
    (
        f"{ROLLOUT}.server",
        ("weights_folder",),
        Reader(
            has_value(f"{ROLLOUT}.server.weights", "folder"),
            f"with {ROLLOUT}.server.weights=folder: use that, or leave it out.",
        ),
    ),
    *(("actor_rollout_ref.ref", ("path", "offload"), reader) for reader in USED_REFERENCE),
    (
        "actor_rollout_ref.ref",
        ("offload",),
        Reader(
            any_of(
                has_value(f"{LORA}.rank", 0),
                negated(has_value("actor_rollout_ref.ref.path", None)),
            ),
            f"by a reference policy with weights of its own, but with {LORA}.rank={{{LORA}.rank}} "
            "and no actor_rollout_ref.ref.path it is the policy without its adapters: leave it "
            "out.",
        ),
    ),
    (
        EMBODIED,
        ("recorder_every", "recorder_size"),
        Reader(
            any_of(
                negated(has_value("trainer.record_episodes", 0)),
                negated(has_value("trainer.record_val_episodes", 0)),
            ),
            "only if videos are recorded, but trainer.record_episodes=0 and "
            "trainer.record_val_episodes=0: leave it out.",
        ),
    ),
    ("critic", tuple(key.place for key in keys_of(CriticArguments)), CRITIC),
    (
        ROLLOUT,
        ("noise_correlation",),
        Reader(
            negated(has_value("actor_rollout_ref.model.policy", *PADDED)),
            "by policies that draw numbers only for executed actions; "
            "model={actor_rollout_ref.model.policy} also draws numbers for padding, in another "
            "order: leave it out.",
        ),
    ),
    *warmup_rows("critic.optim"),
    (
        ROLLOUT,
        ("mode",),
        Reader(
            any_of(lambda config: sizes.separate(config.dag), has_value(f"{ROLLOUT}.name", "vllm")),
            "by separate rollout ranks and by rollout=vllm: set dag.groups, or leave it out.",
        ),
    ),
    (
        ACTOR,
        ("reshard_after_forward", "reduce_once", "fsdp_size"),
        Reader(
            lambda config: sizes.trains_sharded(config.trainer, config.dag),
            "by sharded training, and this job trains on one rank: leave it out.",
        ),
    ),
)
"""Group, keys in it, and their condition."""
