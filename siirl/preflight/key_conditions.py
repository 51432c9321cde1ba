"""Conditions under which a job reads a key, for the table in `siirl.preflight.key_readers`.

A condition is a function of the configuration. A Reader adds the text of the error message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from siirl.params import sizes
from siirl.params.algorithm_args import FILTERS
from siirl.params.key_names import ACTOR
from siirl.params.references import is_reference
from siirl.params.registered_names import ESTIMATORS, GROUP_ESTIMATORS
from siirl.params.reward_args import TEXT_REWARDS
from siirl.params.schema import value_of
from siirl.params.training_args import SiiRLArguments

Condition = Callable[[SiiRLArguments], bool]
WITHOUT_GROUPS = sorted(ESTIMATORS.keys() - set(GROUP_ESTIMATORS))


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


def in_pipelines(*names: str) -> Condition:
    """The job has one of these pipelines, or a graph of the user."""
    return lambda config: config.dag.own_graph is not None or config.dag.pipeline in names


def by_estimators(*names: str) -> Reader:
    """Read by these estimators, and perhaps by one of the user."""
    return Reader(
        lambda config: (
            config.algorithm.adv_estimator in names
            or config.algorithm.adv_estimator not in ESTIMATORS
        ),
        f"by {' and '.join(names)}, not by {{algorithm.adv_estimator}}: leave it out.",
    )


def by_rewards(*names: str) -> Reader:
    """Read by these rewards, and perhaps by a manager of the user."""
    listed = " and ".join((", ".join(names[:-1]), names[-1]))
    return Reader(
        lambda config: config.reward.name in names or is_reference(config.reward.name),
        f"by reward.name={listed}, not by {{reward.name}}: leave it out.",
    )


def by_rules(*names: str) -> Reader:
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


def part_is(fits: Callable[[str], bool]) -> Condition:
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


def has_value(place: str, *values: object) -> Condition:
    """The key has one of these values."""
    return lambda config: value_of(config, place) in values


def negated(condition: Condition) -> Condition:
    """The condition does not hold."""
    return lambda config: not condition(config)


def any_of(*conditions: Condition) -> Condition:
    """One of the conditions holds."""
    return lambda config: any(condition(config) for condition in conditions)


def needs_reference(config: SiiRLArguments) -> bool:
    """A KL to the reference policy has a weight."""
    return sizes.needs_reference(config.actor_rollout_ref.actor, config.algorithm)


has_files = negated(has_value("data.train_files", ()))


asks_a_model = part_is(lambda name: name == "model")
"""Whether a part of the text reward is a classifier."""


has_functions = part_is(lambda name: name not in TEXT_REWARDS)


CRITIC = Reader(
    in_pipelines("ppo"),
    "only with a critic, but pipeline={dag.pipeline} has none: use pipeline=ppo, or leave it out.",
)


KL_IN_REWARD = Reader(
    has_value("algorithm.use_kl_in_reward", True),
    "with algorithm.use_kl_in_reward=true, but that is false: set it, or leave this key out.",
)


KL_LOSS = Reader(
    has_value(f"{ACTOR}.use_kl_loss", True),
    f"with {ACTOR}.use_kl_loss=true, but that is false: set it, or leave this key out.",
)


KL_IN_REWARD_WEIGHS = Reader(
    negated(has_value("algorithm.kl_ctrl.kl_coef", 0)),
    "only if the KL in the reward has a weight, but algorithm.kl_ctrl.kl_coef=0: raise it, or "
    "leave this key out.",
)


KL_LOSS_WEIGHS = Reader(
    negated(has_value(f"{ACTOR}.kl_loss_coef", 0)),
    f"only if the KL in the loss has a weight, but {ACTOR}.kl_loss_coef=0: raise it, or leave this "
    "key out.",
)


USED_REFERENCE = (
    Reader(
        any_of(KL_IN_REWARD.applies, KL_LOSS.applies),
        f"only if a KL term is used: set {ACTOR}.use_kl_loss or algorithm.use_kl_in_reward, or "
        "leave it out.",
    ),
    replace(
        KL_IN_REWARD_WEIGHS,
        applies=any_of(needs_reference, negated(KL_IN_REWARD.applies), KL_IN_REWARD_WEIGHS.applies),
    ),
    replace(KL_LOSS_WEIGHS, applies=needs_reference),
)
"""A KL to the reference policy is computed: a term is on, and its weight is not 0."""


FILES = Reader(
    has_files,
    "with prompts from files, but data.train_files is empty: give files, or leave it out.",
)


EVALUATIONS = Reader(
    negated(has_value("trainer.val_episodes", 0)),
    "by evaluations, but trainer.val_episodes=0 turns them off: leave it out.",
)


FUNCTIONS = Reader(
    has_functions,
    "by reward functions, but none are configured: give custom_reward_function or "
    "reward.functions, or leave it out.",
)


def warmup_rows(optim: str) -> tuple[Row, ...]:
    """Rows for the warm-up keys of an optimiser."""
    flat = (
        f"by schedules with a warm-up, not by {optim}.scheduler=constant: use "
        "constant_with_warmup, or leave it out."
    )
    steps = (
        f"only if {optim}.warmup_steps is null, but it is {{{optim}.warmup_steps}}: set "
        f"{optim}.warmup_steps=null, or leave it out."
    )
    return (
        (
            optim,
            ("warmup_ratio", "warmup_steps"),
            Reader(negated(has_value(f"{optim}.scheduler", "constant")), flat),
        ),
        (optim, ("warmup_ratio",), Reader(has_value(f"{optim}.warmup_steps", None), steps)),
    )
