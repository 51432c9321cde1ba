"""Registered functions take keyword arguments by name: exactly those in their signature.

A user's advantage or loss names the arguments that it needs. An argument that no caller provides is
refused when the function is registered, before the run starts.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, TypeVar

from envs.names import nearest
from siirl.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def register_in(
    registry: MutableMapping[str, Function], name: str, *, kind: str, known: Collection[str]
) -> Callable[[Function], Function]:
    """Decorator that registers a function whose required arguments are all in `known`.

    Raises:
        ConfigError: The name is taken by another function, or the function requires an argument
            that is not known.
    """

    def decorator(function: Function) -> Function:
        if name in registry and not same_definition(registry[name], function):
            raise ConfigError(
                f"{kind[0].upper()}{kind[1:]} {name!r} is already {name_of(registry[name])}: "
                "choose another name."
            )
        check_arguments(function, known=known, kind=kind)
        registry[name] = function
        return function

    return decorator


def check_arguments(function: Callable[..., Any], *, known: Collection[str], kind: str) -> None:
    """Raise ConfigError if `function` requires an argument that is not `known`, takes none of them,
    or has no readable signature; further arguments with defaults may have any name.
    """
    if not callable(function):
        raise ConfigError(
            f"{function!r:.80} is of type {type(function).__name__} and cannot be called: "
            f"the {kind} must be a function."
        )
    parameters = parameters_of(function, kind=kind)
    for name, parameter in parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"Argument {name!r} of {kind} {name_of(function)} is positional-only, but its "
                "arguments are passed by name."
            )
        if parameter.default is inspect.Parameter.empty and name not in known:
            raise ConfigError(
                f"Argument {name!r} of {kind} {name_of(function)} is not provided"
                f"{place_of(function)}.{nearest(name, known)} Give it a default, or take one of "
                f"{', '.join(sorted(known))}."
            )
    takes_all = inspect.Parameter.VAR_KEYWORD in {part.kind for part in parameters.values()}
    if not takes_all and not parameters.keys() & known:
        raise ConfigError(
            f"The {kind} {name_of(function)} takes none of the provided arguments: name those that "
            f"it needs of {', '.join(sorted(known))}."
        )


def parameters_of(function: Callable[..., Any], *, kind: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of `function` by name.

    Raises:
        ConfigError: Python cannot read them, as with some functions and classes written in C.
    """
    try:
        return inspect.signature(function).parameters
    except ValueError as error:
        raise ConfigError(
            f"The signature of {kind} {name_of(function)} cannot be read: write a function that "
            "calls it."
        ) from error


def read_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of `function` by name, read once: a loss runs in every mini-batch."""
    try:
        return _remembered(function)
    except TypeError:  # a callable object that has no hash
        return inspect.signature(function).parameters


@functools.lru_cache(maxsize=256)
def _remembered(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def named_arguments(
    function: Callable[..., Any], available: Mapping[str, Any], *, kind: str
) -> dict[str, Any]:
    """The entries of `available` that the signature of `function` names; all if it takes
    `**kwargs`.

    Raises:
        ConfigError: A required argument is not available; the message lists the available ones.
    """
    parameters = read_parameters(function)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(available)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in available:
            raise ConfigError(
                f"{kind} {name_of(function)} needs {name!r}, which this job does not have. It has: "
                f"{', '.join(sorted(available))}."
            )
    return {name: available[name] for name in parameters if name in available}


def same_definition(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions have the same definition, as after a module was loaded twice."""
    return definition(one) == definition(other)


def place_of(function: Callable[..., Any]) -> str:
    """File and line of a Python function in brackets; empty for other callables."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def name_of(function: Callable[..., Any]) -> str:
    """Qualified name of a function, or of the class of a callable object."""
    return definition(function)[1]


def definition(function: Callable[..., Any]) -> tuple[str, str]:
    """Module and qualified name of the code that a call runs."""
    if isinstance(function, functools.partial):
        return definition(function.func)
    code: Any = (
        function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    )
    return code.__module__, code.__qualname__
