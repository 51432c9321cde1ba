"""Resolves function names, `module:Class.method` or `module.function`, and their arguments.

Resolving imports a module but does not load a model. Errors for unknown names list the known ones.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from envs.mistakes import user_code
from siirl.errors import ConfigError, UnknownNameError

# Parameters that a node's function may have; `**kwargs` gets everything that the caller has.
OFFERED = ("batch", "config", "context", "process_group", "agent_group", "node", "started")


def resolve_function(reference: str | Callable[..., Any], *, owner: str) -> Callable[..., Any]:
    """Import what `reference` names.

    Args:
        reference: `module:Class.method`, `module.function`, or a callable, which is returned
            unchanged.
        owner: The node or key that names it, for messages (`node 'function_reward'`).

    Raises:
        UnknownNameError: No such module or attribute, with the known ones.
        ConfigError: A name without module, a module that cannot be imported, or an object that is
            not callable.
    """
    if not isinstance(reference, str):
        function: Any = reference
    else:
        place, attributes = _split(reference, owner=owner)
        function = _import_module(place, reference=reference, owner=owner)
        for attribute in attributes:
            function = _attribute(
                function, attribute, place=place, reference=reference, owner=owner
            )
            place = f"{place}.{attribute}"
    if not callable(function):
        raise ConfigError(
            f"The function {reference!r} of {owner} is of type {type(function).__name__} and "
            "cannot be called."
        )
    return function  # type: ignore[no-any-return]


def check_signature(function: Callable[..., Any], *, owner: str) -> None:
    """Refuse a function with a parameter that no node gets.

    Raises:
        ConfigError: A required parameter that is not in `OFFERED`, a positional-only one, an `async
            def`, or a signature that cannot be read.
    """
    name = describe(function)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"The function {name} of {owner} is `async def`. Write a plain function that runs its "
            "own coroutines."
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:  # raised for some classes and functions written in C
        raise ConfigError(
            f"The function {name} of {owner} has no signature that Python can read. Write a "
            "function that calls it."
        ) from error
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        required = parameter.default is parameter.empty
        if parameter.kind is parameter.POSITIONAL_ONLY and required:
            raise ConfigError(
                f"The function {name} of {owner} takes {parameter.name!r} by position only; nodes "
                "are called by name."
            )
        if required and parameter.name not in OFFERED:
            hint = (
                " Make it a function or a staticmethod."
                if parameter.name in ("self", "cls")
                else " Give it a default."
            )
            known = ", ".join(OFFERED)
            raise ConfigError(
                f"The function {name} of {owner} asks for {parameter.name!r}, which no node "
                f"gets.{hint} Known: {known}."
            )


def arguments_for(
    function: Callable[..., Any], available: dict[str, Any], *, owner: str
) -> dict[str, Any]:
    """The entries of `available` that `function` has parameters for; all of them for `**kwargs`.

    Raises:
        ConfigError: A required parameter is not available.
    """
    parameters = inspect.signature(function).parameters.values()
    named = [
        parameter
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in available:
            known = ", ".join(sorted(available))
            raise ConfigError(
                f"{describe(function)} of {owner} asks for {parameter.name!r}, which is not given "
                f"here. Available: {known}."
            )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(available)
    return {
        parameter.name: available[parameter.name]
        for parameter in named
        if parameter.name in available
    }


def describe(function: Callable[..., Any]) -> str:
    """`module:name` of a function, for messages."""
    named = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _split(reference: str, *, owner: str) -> tuple[str, list[str]]:
    """Module name and attribute path."""
    if ":" in reference:
        module_name, _, path = reference.partition(":")
    else:
        module_name, _, path = reference.rpartition(".")
    attributes = path.split(".")
    if not all(part.isidentifier() for part in [*module_name.split("."), *attributes]):
        raise ConfigError(
            f"The function {reference!r} of {owner} names no module. Write 'module:Class.method' "
            "or 'module.function'."
        )
    return module_name, attributes


def _import_module(module_name: str, *, reference: str, owner: str) -> ModuleType:
    """Import package by package, so that an error can name the missing part."""
    parts = module_name.split(".")
    module: ModuleType | None = None
    for depth, part in enumerate(parts):
        if not _module_exists(".".join(parts[: depth + 1]), parent=module):
            _refuse_module(part, parent=module, reference=reference, owner=owner)
        with user_code(
            lambda raised: ConfigError(
                f"The function {reference!r} of {owner} cannot be imported: {raised}."
            )
        ):
            module = importlib.import_module(".".join(parts[: depth + 1]))
    assert module is not None  # `parts` is never empty
    return module


def _module_exists(name: str, *, parent: ModuleType | None) -> bool:
    if name in sys.modules:
        return True
    if parent is not None and not _search_path(parent):
        return False
    return importlib.util.find_spec(name) is not None


def _search_path(module: ModuleType) -> list[str]:
    """Folders of a package; none for a plain module."""
    specification = module.__spec__
    return list(specification.submodule_search_locations or []) if specification else []


def _refuse_module(name: str, *, parent: ModuleType | None, reference: str, owner: str) -> None:
    if parent is None:
        raise ConfigError(
            f"The function {reference!r} of {owner}: there is no module {name!r}. Install it, or "
            "put its folder on PYTHONPATH."
        )
    known = [module.name for module in pkgutil.iter_modules(_search_path(parent))]
    raise UnknownNameError.of(
        kind=f"module in {parent.__name__!r} (function {reference!r} of {owner})",
        name=name,
        known=known,
    )


def _attribute(holder: Any, attribute: str, *, place: str, reference: str, owner: str) -> Any:
    try:
        return getattr(holder, attribute)
    except AttributeError:
        known = [name for name in dir(holder) if not name.startswith("_")]
        raise UnknownNameError.of(
            kind=f"name in {place!r} (function {reference!r} of {owner})",
            name=attribute,
            known=known,
        ) from None
