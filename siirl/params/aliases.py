"""Names of the documents that read otherwise here: one table. Each is understood, and said once with what it now is.

Two keys of theirs are aliases of a group: `algorithm.workflow_type` of `pipeline=`, `actor_rollout_ref.model.model_type` of `env=`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from siirl.errors import UnknownNameError

WORKFLOW_TYPE, MODEL_TYPE = "algorithm.workflow_type", "actor_rollout_ref.model.model_type"
WORKFLOW_TYPES = {"grpo": "DEFAULT", "ppo": "DEFAULT", "dapo": "DAPO", "embodied_srpo": "EMBODIED"}
"""Pipeline to workflow_type; what code that reads the old key gets."""

NODE_IDS = {"dynaminc_sampling": "dynamic_sampling"}
"""Node ids of the documents."""


@dataclass(frozen=True)
class Assignment:
    """`key=value` and who said so."""

    key: str
    value: Any
    source: str


ALIASES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    (WORKFLOW_TYPE, "DEFAULT"): (("pipeline", "grpo"),),
    (WORKFLOW_TYPE, "DAPO"): (("pipeline", "dapo"),),
    (WORKFLOW_TYPE, "EMBODIED"): (("pipeline", "embodied_srpo"),),
    (MODEL_TYPE, "embodied"): (),
    ("algorithm.adv_estimator", "gspo"): (("algorithm.adv_estimator", "grpo"), ("actor_rollout_ref.actor.loss", "gspo")),
    ("algorithm.kl_penalty", "kl"): (("algorithm.kl_penalty", "k1"),),
    ("algorithm.kl_penalty", "mse"): (("algorithm.kl_penalty", "k2"),),
    ("algorithm.kl_penalty", "low_var_kl"): (("algorithm.kl_penalty", "k3"),),
    ("actor_rollout_ref.actor.kl_loss_type", "kl"): (("actor_rollout_ref.actor.kl_loss_type", "k1"),),
    ("actor_rollout_ref.actor.kl_loss_type", "mse"): (("actor_rollout_ref.actor.kl_loss_type", "k2"),),
    ("actor_rollout_ref.actor.kl_loss_type", "low_var_kl"): (("actor_rollout_ref.actor.kl_loss_type", "k3"),),
}
"""(key, value) of the documents to the assignments that mean the same here."""

EXPLANATIONS = {MODEL_TYPE: "nothing: env= says what kind of job it is"}


def translate(assignments: Iterable[Assignment]) -> tuple[list[Assignment], list[str]]:
    """Replace old names.

    Returns:
        The assignments in the same order, and one sentence for each alias that was used.

    Raises:
        UnknownNameError: A value of one of the two alias keys that the documents do not know.
    """
    translated: list[Assignment] = []
    notices: list[str] = []
    for assignment in assignments:
        value = str(assignment.value)
        replacement = ALIASES.get((assignment.key, value))
        if replacement is None:
            if assignment.key in (WORKFLOW_TYPE, MODEL_TYPE):
                known = [old for key, old in ALIASES if key == assignment.key]
                raise UnknownNameError.of(kind=f"value of {assignment.key} ({assignment.source})", name=value, known=known)
            translated.append(assignment)
            continue
        translated += [Assignment(key, new, assignment.source) for key, new in replacement]
        meaning = " ".join(f"{key}={new}" for key, new in replacement) or EXPLANATIONS[assignment.key]
        notices.append(f"{assignment.key}={value} ({assignment.source}) is read as {meaning}.")
    return translated, list(dict.fromkeys(notices))
