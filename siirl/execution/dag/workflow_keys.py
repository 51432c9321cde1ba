"""Keys of a workflow file, with the types of their values: a table for the file, and one for a
node.

`check_values` refuses a value of another type. Left out: existence of names and fit of nodes, which
the graph checks when it is built.
"""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from siirl.errors import ConfigError, UnknownNameError

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 60


@dataclass(frozen=True)
class ValueType:
    """Type and bounds of a key's value."""

    description: str
    """Follows `must be` in messages."""
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list_of_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_text, value)))


TEXT = ValueType("text (quote what YAML reads as another type)", _is_text)
ANY_TEXT = ValueType(
    "text (quote what YAML reads as another type)", lambda value: isinstance(value, str)
)
FUNCTION = ValueType("text, 'module:function'", lambda value: value is None or _is_text(value))
TEXTS = ValueType("a list of texts, for example [rollout_actor]", _is_list_of_texts)
COUNT = ValueType("a whole number from 0 on", _is_count)
SWITCH = ValueType("true or false", lambda value: isinstance(value, bool))
MAPPING = ValueType("a mapping", lambda value: value is None or isinstance(value, dict))
NODES = ValueType(
    "a list with at least one node", lambda value: isinstance(value, list) and bool(value)
)

FILE_KEYS = {"pipeline_id": TEXT, "description": ANY_TEXT, "nodes": NODES}
NODE_KEYS = {
    "node_id": TEXT,
    "func": FUNCTION,
    "executable_ref": FUNCTION,
    "dependencies": TEXTS,
    "node_type": TEXT,
    "node_role": TEXT,
    "only_forward_compute": SWITCH,
    "moves_rows": SWITCH,
    "group": TEXT,
    "agent_group": COUNT,
    "config": MAPPING,
    "filter_plugin": FUNCTION,
    "retry_limit": COUNT,
    "requires": TEXTS,
    "provides": TEXTS,
    "aliases": TEXTS,
}


def check_values(
    mapping: Mapping[Any, Any],
    *,
    types: Mapping[str, ValueType],
    required: Iterable[str],
    place: str,
) -> None:
    """Refuse an unknown key, a value of another type, and a missing key.

    Args:
        mapping: Part of the file.
        types: Its known keys.
        required: Required keys.
        place: File and node, for messages.

    Raises:
        ConfigError: Names the place, the key and the value.
    """
    for key, value in mapping.items():
        if key not in types:
            raise UnknownNameError.of(
                kind=f"key in {place}", name=shown(key).strip("'"), known=types
            )
        if not types[key].fits(value):
            raise ConfigError(
                f"{place}: {key!r} must be {types[key].description}, and is {shown(value)}."
            )
    for key in required:
        if key not in mapping:
            raise ConfigError(f"{place}: {key!r} is missing; it must be {types[key].description}.")


def shown(value: Any) -> str:
    """A short form of a value for messages; YAML aliases can make a value very large."""
    return _shortener.repr(value)
