"""Builds dataclasses from plain values; collects unknown keys, wrong types and values out of
bounds.

The module does not use OmegaConf: values are dicts, lists, strings, numbers, booleans and None.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import yaml

from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.files.paths import fault_of_path
from siirl.files.yaml_files import FLOAT, INTEGER
from siirl.params.schema import default_of, fields_of, join, keys_of, type_name, unknown_key

Arguments = TypeVar("Arguments")


class _WrongType(Exception):
    """A value that does not fit its annotation."""


def build(
    cls: type[Arguments],
    values: Mapping[str, Any],
    *,
    problems: list[SiirlError],
    place: str = "",
    source_of: Callable[[str], str] = lambda place: "config",
) -> Arguments:
    """Make an instance of `cls`; errors go to `problems`, and defaults replace bad values.

    Args:
        cls: A dataclass whose fields all have defaults.
        values: Plain values, possibly nested.
        problems: Receives the errors.
        place: Dotted place of `values` in the configuration.
        source_of: Returns the origin of the value at a place.
    """
    known = dict(fields_by_name(cls))
    for name in values.keys() - known.keys():
        wrong = join(place, str(name))
        problems.append(
            unknown_key(
                wrong, {key.place: key for key in keys_of(cls, place)}, source=source_of(wrong)
            )
        )
    given: dict[str, Any] = {}
    for name, (field, hint) in known.items():
        here = join(place, name)
        if name not in values:
            continue
        if dataclasses.is_dataclass(hint) and isinstance(values[name], Mapping):
            given[name] = build(
                typing.cast(type, hint),
                values[name],
                problems=problems,
                place=here,
                source_of=source_of,
            )
            continue
        try:
            given[name] = _convert(values[name], hint)
        except _WrongType:
            problems.append(
                _wrong_type(values[name], hint, default_of(field), here, source_of(here))
            )
            continue
        problems.extend(_out_of_bounds(given[name], field.metadata, here, source_of(here)))
    return cls(**given)


def fields_by_name(cls: type) -> Mapping[str, tuple[dataclasses.Field[Any], Any]]:
    """Fields of a dataclass with their annotations, by name."""
    return {field.name: (field, hint) for field, hint in fields_of(cls)}


def _convert(value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments)
    if origin is typing.Literal:
        return _require(value, value in arguments)
    if origin in (tuple, list):
        in_quotes = isinstance(value, str) and value.startswith("[")
        _require(value, not (in_quotes and _fits_without_quotes(value, hint)))
        return _convert_sequence(value, origin, arguments)
    if origin is dict or hint is dict:
        return dict(_require(value, isinstance(value, Mapping)))
    if hint is float:
        return float(
            _require(value, isinstance(value, int | float) and not isinstance(value, bool))
        )
    if hint is int:
        return _require(value, isinstance(value, int) and not isinstance(value, bool))
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # `env.suite=10`: YAML reads a number, but the user means a name
    return _require(value, isinstance(value, hint))


def _convert_union(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return None if hint is type(None) and value is None else _convert(value, hint)
        except _WrongType:
            continue
    raise _WrongType


def _convert_sequence(value: Any, origin: type, arguments: tuple[Any, ...]) -> Any:
    element = arguments[0] if arguments else Any
    if isinstance(value, list | tuple):
        return origin(_convert(item, element) for item in value)
    return origin([_convert(value, element)])  # `trainer.logger=console` means a list of one


def _require(value: Any, holds: bool) -> Any:
    if not holds:
        raise _WrongType
    return value


def _wrong_type(value: Any, hint: Any, default: Any, place: str, source: str) -> ConfigError:
    wanted = type_name(hint)
    article = {"integer": "an ", "number": "a ", "list": "a ", "mapping": "a "}.get(
        wanted.split(" ")[0], ""
    )
    if _fits_without_quotes(value, hint):
        remedy = "write ${oc.decode:...} around it" if "${" in source else "leave out the quotes"
        return ConfigError(
            f"{place}={value!r} ({source}) is text, but must be {article}{wanted}: {remedy}."
        )
    example = (
        ""
        if default in (None, (), {}, "") or default is dataclasses.MISSING
        else f", for example {place}={as_text(default)}"
    )
    if wanted.startswith("text") and isinstance(value, bool | float):
        example = ": put it in quotes"
    elements = value if isinstance(value, list) else [value]
    are_scalars = all(isinstance(each, str | int | float) for each in elements)
    if wanted.startswith("list of text") and are_scalars:
        example = f": put {'each one' if isinstance(value, list) else 'it'} in quotes"
    if isinstance(value, Mapping) and "${" in source:  # the name of a group, which has many keys
        setting = f"{place} ({source}) is a mapping, but"
    else:
        setting = f"{place}={as_text(value)} ({source})"
    return ConfigError(f"{setting} must be {article}{wanted}{example}.")


_BOOLEANS = ("true", "True", "TRUE", "false", "False", "FALSE")
_NULLS = ("null", "Null", "NULL")


def _fits_without_quotes(value: Any, hint: Any) -> bool:
    """Whether a text of the wrong type would be of the right one without quotes around it."""
    if not isinstance(value, str):
        return False
    try:
        _convert(_without_quotes(value), hint)
    except (yaml.YAMLError, _WrongType):
        return False
    except (ValueError, RecursionError):  # Python's limits on digits and on nesting
        return False
    return True


def _without_quotes(text: Any) -> Any:
    """What a text is without quotes, on the command line as in a file, where `yes` is true too."""
    if not isinstance(text, str):  # a list within a list
        return text
    if text in _BOOLEANS:
        return text.lower() == "true"
    if text in _NULLS:
        return None
    if re.fullmatch(INTEGER, text):
        return int(text)
    if re.fullmatch(FLOAT, text):
        return float(text)
    if not text.startswith(("[", "{")):
        return text
    read = yaml.load(text, yaml.BaseLoader)  # leaves all values text
    return [_without_quotes(item) for item in read] if isinstance(read, list) else read


def _out_of_bounds(
    value: Any, metadata: Mapping[str, Any], place: str, source: str
) -> list[SiirlError]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return _out_of_list_bounds(value, metadata, place, source)
    if isinstance(value, str) and value in metadata.get("refused", {}):
        return [
            ConfigError(
                f"{place}={value} ({source}) is not supported: {metadata['refused'][value]}."
            )
        ]
    if metadata.get("choices") and not metadata.get("plug_in") and value not in metadata["choices"]:
        return [
            UnknownNameError.of(
                kind=f"{place} ({source})", name=str(value), known=metadata["choices"]
            )
        ]
    if metadata.get("path") and isinstance(value, str):
        fault = fault_of_path(value)
        return [] if fault is None else [ConfigError(f"{place} ({source}) {fault}")]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    if not math.isfinite(value):
        return [ConfigError(f"{place}={as_text(value)} ({source}) must be a finite number.")]
    bounds = (
        (
            f"at least {metadata.get('minimum')}",
            metadata.get("minimum") is not None and value < metadata["minimum"],
        ),
        (
            f"larger than {metadata.get('above')}",
            metadata.get("above") is not None and value <= metadata["above"],
        ),
        (
            f"at most {metadata.get('maximum')}",
            metadata.get("maximum") is not None and value > metadata["maximum"],
        ),
    )
    return [
        ConfigError(f"{place}={as_text(value)} ({source}) must be {bound}.")
        for bound, broken in bounds
        if broken
    ]


def _out_of_list_bounds(
    values: Sequence[Any], metadata: Mapping[str, Any], place: str, source: str
) -> list[SiirlError]:
    setting = f"{place}={as_text(values)} ({source})"
    repeated = [value for number, value in enumerate(values) if value in values[:number]]
    problems: list[SiirlError] = []
    if metadata.get("filled") and not values:
        problems.append(ConfigError(f"{setting} names nothing: give one or more, or leave it out."))
    if metadata.get("unique") and repeated:
        problems.append(
            ConfigError(f"{setting} has {as_text(repeated[0])} twice: leave one of them out.")
        )
    for number, value in enumerate(values):
        problems.extend(_out_of_bounds(value, metadata, f"{place}[{number}]", source))
    return problems


def as_text(value: Any) -> str:
    """A value in command-line syntax."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(as_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {as_text(item)}" for key, item in value.items()) + "}"
    return str(value)
