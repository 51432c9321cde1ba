"""Names and arguments of the advantage estimators, read from source to avoid importing torch.

A new estimator is a function in a file of `siirl/algos/advantages/` under
`@register_adv_est("name")`: the choices of `algorithm.adv_estimator`, the keys that it reads and
the columns that it needs follow from there.
"""

import ast
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "algos" / "advantages"
DECORATOR = "register_adv_est"


def estimators_in(source: str) -> dict[str, frozenset[str]]:
    """Arguments of each function of a module that is registered as an estimator, by the name that
    it is registered under.
    """
    found: dict[str, frozenset[str]] = {}
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for decorator in function.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Name)
                and decorator.func.id == DECORATOR
            ):
                name = ast.literal_eval(decorator.args[0])
                found[name] = frozenset(argument.arg for argument in arguments)
    return found


ESTIMATORS: Mapping[str, frozenset[str]] = {
    name: arguments
    for file in sorted(FOLDER.glob("*.py"))
    for name, arguments in estimators_in(file.read_text()).items()
}
"""Arguments by name of the estimator."""


def estimators_taking(argument: str) -> tuple[str, ...]:
    """Names of the estimators that ask for `argument`."""
    return tuple(sorted(name for name, arguments in ESTIMATORS.items() if argument in arguments))


GROUP_ESTIMATORS = estimators_taking("index")
"""Advantages relative to the other rollouts of a prompt."""
