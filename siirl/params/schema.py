"""Flattens the configuration's dataclasses to a list of keys, for `--help` and errors about unknown
keys.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envs.names import close_matches, listed
from siirl.errors import UnknownNameError

ALIKE = 0.78
"""Least likeness to a key of another group, of which there are hundreds; difflib's own 0.6 finds
`groups` for `runs`, and 0.75 `steps` for `eps`."""


@dataclass(frozen=True)
class Key:
    """One leaf of the configuration."""

    place: str
    """Dotted, for example `trainer.total_steps`."""
    hint: Any
    """Its type annotation."""
    default: Any
    metadata: Mapping[str, Any]

    @property
    def is_open(self) -> bool:
        """Whether it is a dict; any key is allowed below it."""
        return typing.get_origin(self.hint) is dict or self.hint is dict


def join(place: str, name: str) -> str:
    """`place.name`, or `name` at the root."""
    return f"{place}.{name}" if place else name


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field; a factory is called each time."""
    return (
        field.default_factory()
        if field.default_factory is not dataclasses.MISSING
        else field.default
    )


@functools.cache
def fields_of(cls: type) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    """Fields of a dataclass with their resolved annotations."""
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    return tuple((field, hints[field.name]) for field in fields)


def keys_of(cls: type, place: str = "") -> Iterator[Key]:
    """All leaves of a dataclass, depth first, in the order of declaration."""
    for field, hint in fields_of(cls):
        if dataclasses.is_dataclass(hint):
            yield from keys_of(typing.cast(type, hint), join(place, field.name))
        else:
            yield Key(join(place, field.name), hint, default_of(field), field.metadata)


def groups_of(cls: type, place: str = "") -> Iterator[tuple[str, type]]:
    """All groups of a dataclass, itself first, as (place, class)."""
    yield place, cls
    for field, hint in fields_of(cls):
        if dataclasses.is_dataclass(hint):
            yield from groups_of(typing.cast(type, hint), join(place, field.name))


def value_of(config: Any, place: str) -> Any:
    """The value of a key, by its dotted place in an instance."""
    return functools.reduce(getattr, place.split("."), config)


def type_name(hint: Any) -> str:
    """An annotation as shown to users: `integer or null`, `list of integers`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if part is type(None) else type_name(part) for part in arguments)
    if origin is typing.Literal:
        return " or ".join(repr(value) for value in arguments)
    if origin in (tuple, list):
        element = type_name(arguments[0]) if arguments else ""
        plural = f"{element}s" if element in ("integer", "number") else element
        return f"list of {plural}" if plural else "list"
    if origin is dict:
        return "mapping"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )


def find_key(place: str, known: Mapping[str, Key]) -> Key | None:
    """The leaf that `place` names, or the dict that contains it."""
    parts = place.split(".")
    for length in range(len(parts), 0, -1):
        key = known.get(".".join(parts[:length]))
        if key is not None:
            return key if length == len(parts) or key.is_open else None
    return None


def unknown_key(
    place: str, known: Mapping[str, Key], *, source: str, groups: tuple[str, ...] = ()
) -> UnknownNameError:
    """Error for an unknown key: lists its known neighbours, or keys of the same or a similar name
    elsewhere.

    Args:
        place: The unknown key.
        known: All keys.
        source: Origin of the key: command line or file.
        groups: Names that may be chosen by `group=option`, shown where the first part of `place` is
            unknown.
    """
    parts = place.split(".")
    for length in range(len(parts) - 1, -1, -1):
        prefix = ".".join(parts[:length]) + "." if length else ""
        level = sorted(
            {name[len(prefix) :].split(".")[0] for name in known if name.startswith(prefix)}
        )
        if level:
            break
    tried, level = parts[length], sorted({*level, *(groups if length == 0 else ())})
    nearest = [prefix + name for name in close_matches(tried, level)]
    leaves = [name.split(".")[-1] for name in known]
    alike = close_matches(parts[-1], leaves, cutoff=ALIKE)
    elsewhere = [name for name, leaf in zip(known, leaves, strict=True) if leaf in alike]
    # `data.lr` is a misplaced `...optim.lr`; `trainer.total_step` a misspelt neighbour.
    proposals = nearest if nearest and length == len(parts) - 1 else (elsewhere or nearest)
    hint = (
        f" Did you mean {' or '.join(repr(name) for name in proposals[:3])}?" if proposals else ""
    )
    where = f"Keys of {prefix[:-1]}" if prefix else "Groups of keys"
    return UnknownNameError(
        f"Unknown key {place!r} ({source}).{hint} {where}: {listed(tried, level)}. "
        f"Type: siirl train --help {prefix[:-1]}".rstrip()
    )
