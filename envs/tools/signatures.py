"""Argument schemas from function signatures, and calls checked against them.

Worker processes import this module, so it imports little.
"""

import functools
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable
from typing import Any

import pydantic


@functools.cache
def function_and_model(reference: str) -> tuple[Callable[..., Any], type[pydantic.BaseModel]]:
    """Return the function `module:function` and the model of its arguments; imports its module.

    Raises:
        ValueError: No such function, or a signature without a schema.
    """
    function = _function(reference)
    return function, _arguments_model(function, reference)


async def call_function(call: dict[str, Any]) -> Any:
    """Execute a checked call, in a worker process."""
    function, model = function_and_model(call["function"])
    checked = model.model_validate(call["arguments"])
    given = {
        str(model.model_fields[field].alias): getattr(checked, field)
        for field in checked.model_fields_set
    }
    result = function(**given)
    return await result if inspect.isawaitable(result) else result


def _function(reference: str) -> Callable[..., Any]:
    if ":" not in reference:
        raise ValueError(f"A tool is named by module:function, got {reference!r}.")
    try:
        function = pkgutil.resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"Tool {reference!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if not inspect.isfunction(function):
        raise ValueError(f"Tool {reference!r} is not a function: {function!r}.")
    return function


def _arguments_model(function: Callable[..., Any], reference: str) -> type[pydantic.BaseModel]:
    """Pydantic model of the function's parameters; an untyped one accepts any value."""
    hints = typing.get_type_hints(function, include_extras=True)
    described = _described_parameters(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"Tool {reference!r}: parameter {parameter} cannot be passed by name.")
        default = ... if parameter.default is parameter.empty else parameter.default
        field = pydantic.Field(
            default, alias=parameter.name, description=described.get(parameter.name)
        )
        fields[f"argument_{len(fields)}"] = (
            hints.get(parameter.name, Any),
            field,
        )  # pydantic does not allow every name for a field
    try:
        model: type[pydantic.BaseModel] = pydantic.create_model(
            function.__name__, __config__=pydantic.ConfigDict(extra="forbid"), **fields
        )
        model.model_json_schema()
    except (pydantic.errors.PydanticUserError, NameError) as error:
        raise ValueError(f"Tool {reference!r}: its signature has no schema. {error}") from error
    return model


def _described_parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Descriptions under `Args:` in a docstring of Google's style."""
    section = re.search(
        r"^Args:\n((?:[ \t]+.*\n?|\n)+)", inspect.getdoc(function) or "", re.MULTILINE
    )
    if section is None:
        return {}
    entries = re.split(r"\n(?=    \S)", section[1].rstrip())
    named = (re.match(r"\s*(\w+)(?: \([^)]*\))?:\s*(.*)", entry, re.DOTALL) for entry in entries)
    return {match[1]: " ".join(match[2].split()) for match in named if match is not None}
