"""Lists the keys of a run whose values differ from the defaults, with both values.

Defaults are those of the dataclasses in siirl.params; groups such as pipeline= set many keys, which
are listed like any other. `between` compares runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from siirl.params.build import as_text
from siirl.params.schema import Key, keys_of
from siirl.params.training_args import SiiRLArguments
from siirl.params.yaml_text import check_expansion


class Difference(NamedTuple):
    """A key, its value, its default, and what the key does."""

    key: str
    value: str
    default: str
    help: str


def from_defaults(config_file: Path) -> list[Difference]:
    """Keys of a config.yaml that differ from their default; none for any other file."""
    defaults = {key.place: key for key in keys_of(SiiRLArguments)}
    found = []
    for place, value in flat(_read(config_file), defaults):
        key = defaults.get(place)
        if key is None:
            found.append(Difference(place, as_text(value), "", ""))
        elif _plain(key.default) != value:
            default = as_text(_plain(key.default))
            meaning = str(key.metadata.get("help", ""))
            found.append(Difference(place, as_text(value), default, meaning))
    return found


def between(config_files: Mapping[str, Path]) -> list[tuple[str, Sequence[str]]]:
    """Keys that differ between runs (config.yaml by name), with the value of each run."""
    defaults = {key.place: key for key in keys_of(SiiRLArguments)}
    flattened = [dict(flat(_read(file), defaults)) for file in config_files.values()]
    places = dict.fromkeys(place for values in flattened for place in values)
    rows = [
        (place, [as_text(values[place]) if place in values else "-" for values in flattened])
        for place in places
    ]
    return [(place, shown) for place, shown in rows if len(set(shown)) > 1]


def flat(tree: Any, known: Mapping[str, Key], place: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings by dotted place; a key whose value is a mapping is a leaf."""
    if not isinstance(tree, dict) or (place in known):
        yield place, tree
        return
    for name, value in tree.items():
        yield from flat(value, known, f"{place}.{name}" if place else str(name))


def _read(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    try:
        check_expansion(text)
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _plain(value: Any) -> Any:
    """A default as YAML reads it back."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
