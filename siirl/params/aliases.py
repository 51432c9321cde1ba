"""Deprecated config names and their replacements; each use prints one notice.

`algorithm.workflow_type` is an alias of `pipeline=`. `actor_rollout_ref.model.model_type` has no
effect: it follows from the policy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siirl.errors import UnknownNameError
from siirl.params.build import as_text
from siirl.params.env_args import POOL_KEYS
from siirl.params.registered_names import LOSSES_WITH_OWN_BOUNDS

WORKFLOW_TYPE = "algorithm.workflow_type"
MODEL_TYPE = "actor_rollout_ref.model.model_type"
WORKFLOW_TYPES = {"grpo": "DEFAULT", "ppo": "DEFAULT", "dapo": "DAPO", "embodied_srpo": "EMBODIED"}
"""Pipeline to workflow_type, for code that reads the old key."""

EMBODIED, TEXT = "embodied", "text"
"""Values of model_type: for policies that act, and for language models."""

ENV_KWARGS = "env.kwargs"


@dataclass(frozen=True)
class Assignment:
    """`key=value` and its source."""

    key: str
    value: Any
    source: str


OLD_KL_NAMES = {
    "kl": "k1",
    "kl+": "k1+",
    "mse": "k2",
    "mse+": "k2+",
    "low_var_kl": "k3",
    "low_var_kl+": "k3+",
}
"""Maps siiRL's names of KL estimators to ours; `+`: with the straight-through gradient."""
ALIASES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    (WORKFLOW_TYPE, "DEFAULT"): (("pipeline", "grpo"),),
    (WORKFLOW_TYPE, "DAPO"): (("pipeline", "dapo"),),
    (WORKFLOW_TYPE, "EMBODIED"): (("pipeline", "embodied_srpo"),),
    (MODEL_TYPE, EMBODIED): (),
    (MODEL_TYPE, TEXT): (),
    ("algorithm.adv_estimator", "gspo"): (
        ("algorithm.adv_estimator", "grpo"),
        ("actor_rollout_ref.actor.loss", "gspo"),
    ),
    ("algorithm.adv_estimator", "cpgd"): (
        ("algorithm.adv_estimator", "cpgd"),
        ("actor_rollout_ref.actor.loss", "cpgd"),
    ),
    **{
        (key, old): ((key, new),)
        for key in ("algorithm.kl_penalty", "actor_rollout_ref.actor.kl_loss_type")
        for old, new in OLD_KL_NAMES.items()
    },
    ("actor_rollout_ref.actor.loss", "geo_mean"): (("actor_rollout_ref.actor.loss", "gmpo"),),
    ("env", "mujoco"): (("env", "metaworld"),),
    ("env.name", "mujoco"): (("env.name", "metaworld"),),
}
"""Maps (key, value) of siiRL's documentation or earlier versions to equivalent assignments."""

RENAMED_KEYS = {
    "reward.bank_size": "reward.success_bank_size",
    "reward.window": "reward.failure_window",
    "reward.min_window": "reward.min_failure_window",
    "reward.min_samples": "reward.dbscan_min_samples",
    "reward.eps_scale": "reward.dbscan_eps_scale",
}
"""Maps keys of earlier versions to their present names; values are unchanged."""

LOSS = "actor_rollout_ref.actor.loss"
CLIP_RATIO = "actor_rollout_ref.actor.clip_ratio"
BOUNDS = ("actor_rollout_ref.actor.clip_ratio_low", "actor_rollout_ref.actor.clip_ratio_high")

SUITE, TASKS = "env.suite", "env.tasks"
"""Setting a suite without tasks selects all its tasks, not the tasks configured for another suite.
"""

EXPLANATIONS = {MODEL_TYPE: "nothing: the policy determines the kind of job"}


def translate(assignments: Iterable[Assignment]) -> tuple[list[Assignment], list[str]]:
    """Replace old names.

    Returns:
        The assignments in order, each preceded by the assignments that it implies, and a sentence
        for each alias used.

    Raises:
        UnknownNameError: An unknown value of one of the two alias keys.
    """
    translated: list[Assignment] = []
    notices: list[str] = []
    for given in assignments:
        assignment = given
        if given.key in RENAMED_KEYS:
            assignment = replace(given, key=RENAMED_KEYS[given.key])
            notices.append(f"{given.key} ({given.source}) is read as {assignment.key}.")
        value = str(assignment.value)
        replacement = ALIASES.get((assignment.key, value))
        if replacement is None:
            if assignment.key in (WORKFLOW_TYPE, MODEL_TYPE):
                known = [old for key, old in ALIASES if key == assignment.key]
                raise UnknownNameError.of(
                    kind=f"value of {assignment.key} ({assignment.source})", name=value, known=known
                )
            translated.append(assignment)
            continue
        translated += [Assignment(key, new, assignment.source) for key, new in replacement]
        meaning = (
            " ".join(f"{key}={new}" for key, new in replacement) or EXPLANATIONS[assignment.key]
        )
        notices.append(f"{assignment.key}={value} ({assignment.source}) is read as {meaning}.")
    own_bounds = [
        assignment
        for assignment in translated
        if assignment.key == LOSS and assignment.value in LOSSES_WITH_OWN_BOUNDS
    ]
    implied: list[Assignment] = []
    for assignment in own_bounds:
        implied += [Assignment(key, None, assignment.source) for key in BOUNDS]
    implied += [
        Assignment(TASKS, None, assignment.source)
        for assignment in translated
        if assignment.key == SUITE
    ]
    return [*implied, *translated], list(dict.fromkeys(notices))


def environment_arguments_once(leaves: Sequence[Assignment]) -> tuple[list[Assignment], list[str]]:
    """Move arguments of `env.kwargs` that are keys of `env` there; returns the keys of the file,
    and a notice for each move.

    A configuration with both is refused (`EnvArguments.constructor_kwargs`). Earlier versions
    accepted it, and the environment got the value in `env.kwargs`; the config.yaml of such a run
    keeps that meaning.
    """
    own = next(
        (leaf for leaf in leaves if leaf.key == ENV_KWARGS and isinstance(leaf.value, Mapping)),
        None,
    )
    if own is None:
        return list(leaves), []
    given = {
        leaf.key.removeprefix("env.")
        for leaf in leaves
        if leaf.key.startswith("env.") and leaf.value is not None
    }
    twice = {name: value for name, value in own.value.items() if name in given - set(POOL_KEYS)}
    rest = {name: value for name, value in own.value.items() if name not in twice}
    values = {ENV_KWARGS: rest, **{f"env.{name}": value for name, value in twice.items()}}
    notices = [
        f"env.kwargs.{name}={as_text(value)} ({own.source}) is read as env.{name}, which the file "
        "also has: the environment got this value before."
        for name, value in twice.items()
    ]
    return [
        Assignment(leaf.key, values.get(leaf.key, leaf.value), leaf.source) for leaf in leaves
    ], notices
