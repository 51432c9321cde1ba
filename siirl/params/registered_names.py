"""Names of the advantage estimators and policy losses, read from source to avoid importing torch.

A new estimator is a function in a file of `siirl/algos/advantages/` under
`@register_adv_est("name")`: the choices of `algorithm.adv_estimator`, the keys that it reads and
the columns that it needs follow from there. A new loss is a function in a file of
`siirl/algos/policy_losses/` under `@register_policy_loss("name", ...)`: the choices of
`actor_rollout_ref.actor.loss` follow from there, and so does whether the loss has its own clip
bounds.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALGOS = Path(__file__).parent.parent / "algos"


@dataclass(frozen=True)
class Registration:
    """A registered function."""

    arguments: frozenset[str]
    """Its parameters."""
    options: Mapping[str, Any]
    """Constant keyword arguments of its decorator."""


def registrations_in(source: str, *, decorator: str) -> dict[str, Registration]:
    """Functions of a module under `decorator`, by the name that they are registered under."""
    found: dict[str, Registration] = {}
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for call in function.decorator_list:
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == decorator
            ):
                found[ast.literal_eval(call.args[0])] = Registration(
                    arguments=frozenset(argument.arg for argument in arguments),
                    options={
                        str(keyword.arg): keyword.value.value
                        for keyword in call.keywords
                        if isinstance(keyword.value, ast.Constant)
                    },
                )
    return found


def _registrations(folder: str, *, decorator: str) -> dict[str, Registration]:
    found: dict[str, Registration] = {}
    for file in sorted((ALGOS / folder).glob("*.py")):
        found |= registrations_in(file.read_text(), decorator=decorator)
    return found


_LOSSES = _registrations("policy_losses", decorator="register_policy_loss")

ESTIMATORS: Mapping[str, frozenset[str]] = {
    name: estimator.arguments
    for name, estimator in _registrations("advantages", decorator="register_adv_est").items()
}
"""Arguments by name of the estimator."""

LOSSES = tuple(_LOSSES)
"""Values of `actor_rollout_ref.actor.loss`."""

LOSSES_WITH_OWN_BOUNDS = tuple(
    name for name, loss in _LOSSES.items() if loss.options.get("own_bounds")
)
"""Losses whose clip bounds differ in scale from PPO's; these bounds override a pipeline's PPO
bounds."""


def estimators_taking(argument: str) -> tuple[str, ...]:
    """Names of the estimators that ask for `argument`."""
    return tuple(sorted(name for name, arguments in ESTIMATORS.items() if argument in arguments))


GROUP_ESTIMATORS = estimators_taking("index")
"""Advantages relative to the other rollouts of a prompt."""
