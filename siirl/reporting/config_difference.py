"""Lists the keys of a run whose values differ from the defaults, with both values.

Keys set by the user come first; their default is the value from the chosen groups, such as
pipeline=. Keys set by groups follow, with the defaults of the dataclasses in siirl.params.
`between` compares runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from siirl.files.yaml_text import check_expansion
from siirl.params.build import as_text
from siirl.params.schema import Key, keys_of
from siirl.params.training_args import SiiRLArguments
from siirl.params.user_settings import UserSettings

NO_VALUE = "-"  # of a key that a run does not have


class Difference(NamedTuple):
    """A key with its value, default, help text, and the place where the user set it."""

    key: str
    value: str
    default: str
    help: str
    source: str = ""
    """Empty for a key that the groups set."""


def from_defaults(config_file: Path, given: UserSettings) -> list[Difference]:
    """Keys of a config.yaml that differ from their default, the user's keys first; none for any
    other file.
    """
    defaults = {key.place: key for key in keys_of(SiiRLArguments)}
    found = [
        difference
        for place, value in flat(read_config(config_file), defaults)
        if (difference := _difference(place, value, defaults.get(place), given)) is not None
    ]
    return sorted(found, key=lambda difference: not difference.source)


def _difference(place: str, value: Any, key: Key | None, given: UserSettings) -> Difference | None:
    meaning = "" if key is None else str(key.metadata.get("help", ""))
    by_user = given.keys.get(place)
    if by_user is not None and by_user.default != value:
        default = "" if by_user.default is None and key is None else as_text(by_user.default)
        return Difference(place, as_text(value), default, meaning, by_user.source)
    if key is None:
        return Difference(place, as_text(value), "", "")
    default = _plain(key.default)
    return (
        Difference(place, as_text(value), as_text(default), meaning) if default != value else None
    )


def between(config_files: Mapping[str, Path]) -> list[tuple[str, Sequence[str]]]:
    """Keys that differ between runs (config.yaml by name), with the value of each run, or
    `NO_VALUE`.
    """
    defaults = {key.place: key for key in keys_of(SiiRLArguments)}
    flattened = [dict(flat(read_config(file), defaults)) for file in config_files.values()]
    places = dict.fromkeys(place for values in flattened for place in values)
    rows: list[tuple[str, Sequence[str]]] = []
    for place in places:
        shown = [as_text(values[place]) if place in values else NO_VALUE for values in flattened]
        if len(set(shown)) > 1:
            rows.append((place, shown))
    return rows


def flat(tree: Any, known: Mapping[str, Key], place: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings by dotted place; a key whose value is a mapping is a leaf."""
    if not isinstance(tree, dict) or (place in known):
        yield place, tree
        return
    for name, value in tree.items():
        yield from flat(value, known, f"{place}.{name}" if place else str(name))


def read_config(file: Path) -> dict[str, Any]:
    """Nested values of a config.yaml; empty if it is missing or damaged (`is_damaged`)."""
    return _values(file) or {}


def is_damaged(file: Path) -> bool:
    """Whether a config.yaml is there, but not readable as one."""
    return file.is_file() and not _values(file)


def _values(file: Path) -> dict[str, Any] | None:
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    try:
        check_expansion(text)
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None
    return tree if isinstance(tree, dict) else None


def _plain(value: Any) -> Any:
    """A default as YAML reads it back."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
